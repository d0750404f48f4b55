"""``exactspec`` as a program over a model of hashes; the model's name says what is wrong with it.

tiny: nothing. wrong: it says other tokens now and then, whatever the others do. leaky: it holds on to memory.
stuck: it stands still for a while at a certain token. other: it has another identity.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

from scripted import ByteTokenizer, hash_target

from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.engine import Engine


def open_engine(name: str, **options: Any) -> Engine:
    kept: list[bytes] = []

    def before(forwards: int) -> None:
        time.sleep(0.001)
        if name == "leaky":
            kept.append(b"x" * 100_000)

    target = hash_target(vocab_size=260, max_length=options["context"] or 20_000, before=before)
    if name == "other":
        target.identity = "list-target/2"
    if name == "wrong":
        right = target._logits

        def wrong(path: list[int]) -> Any:
            logits = right(path)
            return -logits if target.forwards % 50 == 49 else logits

        target._logits = wrong
    speculation = options.get("speculation")
    return Engine(target, ByteTokenizer(eos=()), **({} if speculation is None else {"speculation": speculation}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], services=dataclasses.replace(Services.of_process(), open_engine=open_engine)))
