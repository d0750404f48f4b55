"""Packed models on the disk: the bits of a fresh load, or packed again; never anything else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_files import matrices, write_gguf
from tiny_tokenizers import CHATML, corpus
from tiny_weights import RandomWeights

from exactspec.target import array_file, packed_source, packed_store
from exactspec.target.array_file import ArrayWriter, is_intact, open_arrays
from exactspec.target.base import Segment, Want
from exactspec.target.cpu import describe_cpu
from exactspec.target.exact import ExactTarget
from exactspec.target.gguf_file import GgufSource
from exactspec.target.kernels.compile import load_kernels
from exactspec.target.load import OpenModel, open_model
from exactspec.target.pack import PackedModel, pack_model
from exactspec.target.packed_source import PackedSource
from exactspec.target.packed_store import HEAD, MANIFEST, WEIGHTS, PackedStore
from exactspec.target.plain import fingerprint

PACKING, AGAIN = "packing the weights, once", "the kept model is damaged: packing it again"


@pytest.fixture(scope="module")
def packing():
    return load_kernels(describe_cpu()).packing


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A qwen2 file with biases, scaled rotary frequencies, a head of its own and a chat template."""
    freqs = np.linspace(1, 8, 8, dtype=np.float32)
    stored = {"rope_freqs.weight": (freqs, packed_gguf_type())}
    return write_gguf(tmp_path / "m.gguf", "qwen2", stored=stored, template=CHATML)


def packed_gguf_type():
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType.F32


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def load(home: Path, packing) -> Callable[..., tuple[OpenModel, PackedModel, list[str]]]:
    """Open and pack: the open model, the packed one, and what was said."""

    def call(path: Path, **options: object) -> tuple[OpenModel, PackedModel, list[str]]:
        said: list[str] = []
        opened = open_model(path, packed=PackedStore(home), **options)
        assert isinstance(opened.source, PackedSource)
        packed = opened.source.packed(packing, 2, progress=said.append)
        opened.source.close()
        return opened, packed, said

    return call


def folder_of(home: Path) -> Path:
    (folder,) = (use.path for use in PackedStore(home).list())
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_a_kept_model_has_the_bits_of_a_fresh_one(tmp_path, load, packing, tied):
    path = write_gguf(tmp_path / "t.gguf", weights=matrices(3, tied=tied))
    expected = pack_model(GgufSource(path), packing, 1)
    _, first, said = load(path)
    assert said == [PACKING]
    _, second, said = load(path)
    assert said == []
    assert fingerprint(first) == fingerprint(second) == fingerprint(expected)
    assert (second.embed is second.head) == tied
    assert second.nbytes == expected.nbytes


def test_logits_and_identity_are_equal(model, home):
    results = []
    for packed in (None, PackedStore(home), PackedStore(home)):
        target = ExactTarget(open_model(model, packed=packed).source, threads=2)
        (rows,) = target.forward([Segment.chain(target.new_cache(), list(range(40)), Want.LOGITS)])
        results.append((rows.logits.tobytes(), target.identity))
        target.close()
    assert results[0] == results[1] == results[2]


def test_a_kept_model_is_not_opened(model, load, monkeypatch):
    load(model)
    monkeypatch.setattr(GgufSource, "__init__", None)
    opened, packed, said = load(model)
    assert said == []
    assert packed.config.rope_divisors is not None
    np.testing.assert_array_equal(packed.config.rope_divisors, np.linspace(1, 8, 8, dtype=np.float32))
    assert opened.source.config.attention_bias


def test_weights_are_views_of_the_file_and_cannot_be_written(model, load):
    load(model)
    _, packed, _ = load(model)
    for array in (packed.head.stored, packed.layers[0].qkv_bias, packed.final_norm):
        assert not array.flags.writeable
        assert array.ctypes.data % array_file.ALIGNMENT == 0


def test_the_tokenizer_and_the_chat_template_are_the_files_own(model, load):
    ours, kept = open_model(model).tokenizer, [load(model)[0].tokenizer, load(model)[0].tokenizer]
    texts = [*corpus(), "", "<|im_end|>", "<|im_start|>user", "\ufdd0", "a" * 3000, "\x00", "🧭" * 50]
    messages = [{"role": "user", "content": "no <|im_end|> é"}]
    for tokenizer in kept:
        assert [tokenizer.encode(text) for text in texts] == [ours.encode(text) for text in texts]
        assert tokenizer.chat(messages) == ours.chat(messages)
        pieces = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
        assert pieces == [ours.token_bytes(id) for id in range(ours.vocab_size)]
        assert (tokenizer.eos_ids, tokenizer.bos_id) == (ours.eos_ids, ours.bos_id)
        assert tokenizer.has_chat_template


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    **{f"flip {at}": (lambda path, at=at: flip(path, at)) for at in (0, 0.3, 1)},
    "truncate": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "lose": Path.unlink,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "unreadable": lambda path: path.chmod(0),
}


def hides(home: Path) -> bool:
    """Whether permissions keep this user from reading."""
    probe = home / "probe"
    probe.touch(mode=0)
    return not os.access(probe, os.R_OK)


@pytest.mark.parametrize("name", [MANIFEST, HEAD, WEIGHTS])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_packed_again(model, home, load, name, damage):
    _, before, _ = load(model)
    expected = fingerprint(before)
    del before
    if damage == "unreadable" and not hides(home):
        pytest.skip("this user may read every file")
    DAMAGES[damage](folder_of(home) / name)
    opened, packed, said = load(model)
    assert said == [AGAIN]
    assert fingerprint(packed) == expected
    assert opened.tokenizer.encode("hello") == open_model(model).tokenizer.encode("hello")
    _, packed, said = load(model)
    assert said == []
    assert fingerprint(packed) == expected


def test_a_file_where_its_folder_should_be(model, home, load):
    load(model)
    folder = folder_of(home)
    shutil.rmtree(folder)
    folder.touch()
    assert load(model)[2] == [AGAIN]
    assert load(model)[2] == []


@pytest.mark.parametrize("stored", [{}, [], 5, "x", {"format": 1}, {"format": 99}, None])
def test_a_manifest_of_another_form_counts_as_damaged(model, home, load, stored):
    """Its own checksum right, what it says not."""
    load(model)
    body = json.dumps(stored).encode()
    digest = packed_store.hashlib.sha256(body).hexdigest().encode()
    (folder_of(home) / MANIFEST).write_bytes(digest + b"\n" + body)
    assert load(model)[2] == [AGAIN]
    assert load(model)[2] == []


def with_code(monkeypatch, digit: str) -> None:
    monkeypatch.setattr(packed_store, "code_key", lambda: digit * 16)


def codes(home: Path) -> set[str]:
    return {use.path.name.partition("-")[2][0] for use in PackedStore(home).list()}


def test_two_versions_of_the_code_both_stay_and_no_third(model, home, load, monkeypatch):
    for digit in "01":
        with_code(monkeypatch, digit)
        assert load(model)[2] == [PACKING]
    for digit in "0101":
        with_code(monkeypatch, digit)
        assert load(model)[2] == []
    (zero,) = (use.path for use in PackedStore(home).list() if use.path.name.endswith("0" * 16))
    os.utime(zero / MANIFEST, (time.time() - 60,) * 2)
    with_code(monkeypatch, "2")
    assert load(model)[2] == [PACKING]
    assert codes(home) == {"1", "2"}


def test_another_version_that_is_not_in_use_goes(model, home, load, monkeypatch):
    with_code(monkeypatch, "0")
    load(model)
    os.utime(folder_of(home) / MANIFEST, (time.time() - 8 * 86400,) * 2)
    with_code(monkeypatch, "1")
    load(model)
    assert codes(home) == {"1"}


def test_a_version_that_is_being_packed_stays(model, home, load, monkeypatch):
    with_code(monkeypatch, "0")
    load(model)
    store, old = PackedStore(home), folder_of(home)
    partial = old.with_name(f".partial-{old.name}")
    partial.mkdir()
    dead = old.with_name(f".partial-{'d' * 16}-{'e' * 16}")
    dead.mkdir()
    os.utime(old / MANIFEST, (0, 0))
    with store.locked(packed_store.ModelKey(GgufSource(model).sha256)):
        with_code(monkeypatch, "1")
        load(model)
    assert old.exists()
    assert partial.exists()
    assert not dead.exists()


def test_another_model_stays(model, tmp_path, home, load):
    load(model)
    other = write_gguf(tmp_path / "other.gguf", weights=matrices(9))
    load(other)
    assert len(PackedStore(home).list()) == 2
    assert load(model)[2] == load(other)[2] == []


def test_what_nobody_used_for_long_goes(model, tmp_path, home, load):
    load(model)
    old = folder_of(home)
    os.utime(old / MANIFEST, (0, 0))
    assert load(model)[2] == []  # using it is a use
    load(write_gguf(tmp_path / "b.gguf", weights=matrices(8)))
    assert old.exists()
    os.utime(old / MANIFEST, (0, 0))
    load(write_gguf(tmp_path / "c.gguf", weights=matrices(9)))
    assert not old.exists()


def test_a_file_that_changed_is_another_model(model, load):
    _, before, _ = load(model)
    stat = model.stat()
    weights = matrices(5, bias=True)
    write_gguf(model, "qwen2", weights)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    _, after, said = load(model)
    assert said == [PACKING]
    assert fingerprint(after) != fingerprint(before)


@pytest.mark.parametrize("record", ["", "[]", "5", '"x"', "[" * 100_000, '{"sha256": "x"}'])
def test_a_damaged_record_of_a_hash_is_made_again(model, home, load, record):
    load(model)
    (path,) = (home / "hashes").iterdir()
    before = path.read_text()
    path.write_text(record)
    assert load(model)[2] == []
    assert path.read_text() == before


def test_the_hash_of_a_path_is_computed_once(model, load, monkeypatch):
    opened, _, _ = load(model)
    expected = GgufSource(model).sha256
    assert opened.source.sha256 == expected

    def refuse(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr("exactspec.target.gguf_file.hashlib.file_digest", refuse)
    assert load(model)[0].source.sha256 == expected


# --- several processes, and processes that die -------------------------------------------------------------------


def start(*arguments: object) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("pack_once.py")
    return subprocess.Popen([sys.executable, script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_pack_once(model, home, packing):
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in [start(model, home), start(model, home)]]
    expected = fingerprint(pack_model(GgufSource(model), packing, 1))
    assert [lines[-1] for lines in outputs] == [expected, expected]
    assert sum(lines.count(PACKING) for lines in outputs) == 1


def test_who_comes_second_waits_and_finds_it(model, home, load, packing):
    waiting, found = threading.Event(), []
    source = open_model(model, packed=PackedStore(home)).source
    assert isinstance(source, PackedSource)

    def say(line: str) -> None:
        found.append(line)
        waiting.set()

    thread = threading.Thread(target=lambda: found.append(fingerprint(source.packed(packing, 1, progress=say))))
    store = PackedStore(home)
    with store.locked(packed_store.ModelKey(source.sha256)):
        thread.start()
        assert waiting.wait(60)
        fresh = GgufSource(model)
        store.build(
            packed_store.ModelKey(source.sha256),
            origin="here",
            config=fresh.config,
            parts=packed_source.pack_parts(fresh, packing, 1),
            vocabulary=None,
        )
    thread.join(60)
    assert found == ["waiting for another process that packs this model", fingerprint(load(model)[1])]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_process_leaves_nothing_that_is_used(model, home, load, packing):
    process = start(model, home, "stop")
    assert process.stdout is not None
    lines = iter(process.stdout)
    assert [next(lines).strip(), next(lines).strip()] == [PACKING, "half"]
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    (left,) = PackedStore(home).list()
    assert left.path.name.startswith(".partial-")
    assert not left.current
    _, packed, said = load(model)
    assert said == [PACKING]
    assert fingerprint(packed) == fingerprint(pack_model(GgufSource(model), packing, 1))
    assert not left.path.exists()


def test_an_interrupted_packing_leaves_nothing(model, home, load, monkeypatch):
    def interrupted(*_: object):
        yield from ()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packed_source, "pack_parts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(model)
    assert PackedStore(home).list() == ()
    assert load(model)[2] == [PACKING]


# --- nowhere to keep it -------------------------------------------------------------------------------------------


def works_in_memory(load, model, packing, reason: str) -> None:
    _, packed, said = load(model)
    assert reason in said[-1]
    assert said[-1].endswith("or set EXACTSPEC_HOME to a folder that can be written")
    assert fingerprint(packed) == fingerprint(pack_model(GgufSource(model), packing, 1))


def test_a_home_that_is_a_file(model, home, load, packing):
    home.touch()
    works_in_memory(load, model, packing, "Not a directory" if os.name == "posix" else "cannot be kept")
    assert home.read_bytes() == b""


def test_a_disk_that_is_full_from_the_start(model, home, load, packing, monkeypatch):
    monkeypatch.setattr(packed_source, "_SPARE", 1 << 60)
    works_in_memory(load, model, packing, "MB are free")
    assert PackedStore(home).list() == ()


@pytest.mark.parametrize("after", [0, 5000, 100_000])
def test_a_disk_that_fills_up_on_the_way(model, home, load, packing, monkeypatch, after):
    write = ArrayWriter._write

    def full(self: ArrayWriter, data: memoryview) -> None:
        if self._at + len(data) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(ArrayWriter, "_write", full)
    works_in_memory(load, model, packing, "No space left on device")
    assert PackedStore(home).list() == ()


def test_a_damaged_model_file_is_still_an_error(tmp_path, home, load):
    weights = matrices(0)
    weights["layers.1.up"][7, 9] = np.nan
    path = write_gguf(tmp_path / "bad.gguf", weights=weights)
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight holds values that are not finite"):
        load(path)
    assert PackedStore(home).list() == ()


# --- the store ----------------------------------------------------------------------------------------------------


def test_list_check_and_delete(model, tmp_path, home, load):
    load(model)
    store = PackedStore(home)
    (use,) = store.list()
    assert (use.origin, use.current, use.sha256) == (str(model), True, GgufSource(model).sha256)
    assert use.bytes == sum(file.stat().st_size for file in use.path.iterdir())
    assert store.check(use)
    flip(use.path / WEIGHTS, 0.5)
    assert not store.check(use)
    load(write_gguf(tmp_path / "other.gguf", weights=matrices(9)))
    assert store.delete(use) == use.bytes
    assert [one.origin for one in store.list()] == [str(tmp_path / "other.gguf")]
    assert use.belongs_to(model)
    assert use.belongs_to(tmp_path)
    assert not use.belongs_to(tmp_path / "m")


def test_what_cannot_be_deleted_is_named_with_its_folder(model, home, load, monkeypatch):
    load(model)
    store = PackedStore(home)
    (use,) = store.list()

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied", "manifest.json")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PermissionError) as caught:
        store.delete(use)
    assert caught.value.filename == str(use.path)


# --- files of arrays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_block_of_a_large_file_is_checked(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(array_file, "BLOCK", 4096)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 255, size, dtype=np.uint8) for size in (1, 5000, 4096, 12345)]
    arrays += [rng.standard_normal((7, 5)).astype(np.float32), np.zeros((0, 3)), np.array(5)]
    with ArrayWriter(tmp_path / "a") as writer:
        assert [writer.put(array) for array in arrays] == list(range(len(arrays)))
        record = writer.finish()
    assert len(record.crcs) == -(-record.bytes // 4096) > 5
    get = open_arrays(tmp_path / "a", record)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(get(i), array)
        assert get(i).dtype == array.dtype
    del get
    assert is_intact(tmp_path / "a", record, threads=threads)
    whole = (tmp_path / "a").read_bytes()
    for at in range(0, len(whole), 997):
        (tmp_path / "a").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        assert not is_intact(tmp_path / "a", record, threads=threads)
    (tmp_path / "a").write_bytes(whole)
    assert is_intact(tmp_path / "a", record, threads=threads)


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_field_of_every_family_is_kept(home, packing, shape):
    """Norms of heads, windows, factors: whatever a family's configuration and layers hold."""
    source = RandomWeights(shape, tied_head=shape == "gemma3")
    expected = pack_model(source, packing, 1)
    for _ in range(2):
        key = packed_store.ModelKey(source.sha256)
        store = PackedStore(home)
        kept = PackedSource(
            lambda: source,
            store=store,
            key=key,
            origin=Path("x"),
            config=source.config,
            entry=store.find(key),
        )
        packed = kept.packed(packing, 1)
        assert fingerprint(packed) == fingerprint(expected)
        assert (packed.embed.stored is packed.head.stored) == (expected.embed.stored is expected.head.stored)
    assert len(store.list()) == 1
