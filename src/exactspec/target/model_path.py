"""A model given by its path: a GGUF file, or a folder of safetensors as transformers writes it."""

from __future__ import annotations

import stat
from pathlib import Path

from exactspec.target.json_file import indexed_files
from exactspec.target.named import ModelError


def check_path(path: Path) -> Path:
    """The GGUF file or the safetensors folder at `path`; raises ModelError if it is neither, or incomplete.

    A folder without safetensors that holds exactly one GGUF file stands for that file.
    """
    if path.is_dir():
        return _check_folder(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe might wait for ever
            raise ModelError(f"{path} is a pipe or a device; give a GGUF file on a disk, or a folder")
        with open(path, "rb") as file:
            magic = file.read(20)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    if magic.startswith(b"version https://git-"):
        raise ModelError(f"{path} is a Git LFS pointer, not the model: run 'git lfs pull' in its folder")
    if not magic.startswith(b"GGUF"):
        raise ModelError(f"{path} is not a GGUF file; give a GGUF file or a folder with config.json and *.safetensors")
    return path


def is_complete_folder(path: Path) -> bool:
    """Whether `path` holds a whole safetensors model with its tokenizer."""
    try:
        return _check_folder(path) == path and (path / "tokenizer.json").is_file()
    except ModelError:
        return False


def _check_folder(path: Path) -> Path:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    if not any(name.endswith(".safetensors") for name in names):
        ggufs = [name for name in names if name.endswith(".gguf")]
        if len(ggufs) == 1:
            return check_path(path / ggufs[0])
        if ggufs:
            raise ModelError(f"{path} holds several GGUF files; give the path of one: {', '.join(ggufs)}")
        raise ModelError(f"{path} holds neither *.safetensors nor a GGUF file")
    if "config.json" not in names:
        raise ModelError(f"{path} has safetensors but no config.json")
    if "model.safetensors.index.json" in names:
        try:
            shards = indexed_files(path / "model.safetensors.index.json")
        except (OSError, ValueError):
            raise ModelError(f"{path}: model.safetensors.index.json cannot be read") from None
        if missing := [name for name in shards if name not in names]:
            raise ModelError(f"{path}: {len(missing)} of {len(shards)} files are missing, the first is {missing[0]}")
    return path
