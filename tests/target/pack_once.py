"""Opens and packs one model in a process of its own: ``pack_once.py MODEL HOME [stop]``.

Prints what the load says, then a hash of everything that is packed. With ``stop`` it prints ``half`` when the first
part is on the disk, and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from exactspec.target import packed_source
from exactspec.target.cpu import describe_cpu
from exactspec.target.kernels.compile import load_kernels
from exactspec.target.load import open_model
from exactspec.target.packed_source import PackedSource
from exactspec.target.packed_store import PackedStore
from exactspec.target.plain import fingerprint


def main(path: str, home: str, *options: str) -> None:
    packing = load_kernels(describe_cpu()).packing
    if options:
        whole = packed_source.pack_parts

        def parts(*arguments):
            for part in whole(*arguments):
                yield part
                print("half", flush=True)
                time.sleep(600)

        packed_source.pack_parts = parts
    source = open_model(path, packed=PackedStore(Path(home))).source
    assert isinstance(source, PackedSource)
    print(fingerprint(source.packed(packing, 2, progress=print)), flush=True)


main(*sys.argv[1:])
