"""Texts that are there already: folders of text or code, the Python library, JSON lines of chats."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from exactspec.bench.recipes.materials import Materials
from exactspec.json_lines import json_lines
from exactspec.target.tokenizer import Tokenizer
from exactspec.training.capture import Text
from exactspec.training.prompts import held_out_file

LIBRARY: Final = "library"
_LARGEST = 2_000_000  # bytes of a file
_SHORTEST = 16  # tokens of a piece
_LARGEST_SHARE = 4  # pieces taken of one file


def corpus(
    tokenizer: Tokenizer, folders: Sequence[str], *, tokens: int, length: int, seed: int, held_out: bool = False
) -> Iterator[Text]:
    """Pieces of at most `length` tokens, `tokens` of them in all or as many as there are, at most 4 of a file.

    A piece is named by file and place, and the same seed gives the same pieces. Of `LIBRARY`, files that are held out
    are left out (with `held_out`: only they are taken). ValueError on a folder that is none.
    """
    files: list[tuple[str, Path]] = []
    for folder in folders:
        if folder == LIBRARY:
            found = Materials().library_files(2000, _LARGEST)
            files += [(f"{LIBRARY}/{name}", path) for name, path in found if held_out_file(name) == held_out]
        elif not Path(folder).is_dir():
            raise ValueError(f"corpus: {folder} is no folder")
        elif not held_out:
            files += [(str(path), path) for path in _files(Path(folder))]
    rng = random.Random(f"corpus {seed}")
    rng.shuffle(files)
    left = tokens
    for name, path in files:
        if left <= 0:
            return
        text = _text(path)
        if text is None:
            continue
        ids = tokenizer.encode(text)
        starts = list(range(0, max(1, len(ids) - _SHORTEST), length))
        for start in sorted(rng.sample(starts, min(_LARGEST_SHARE, len(starts)))):
            piece = ids[start : start + length]
            if len(piece) < _SHORTEST or left <= 0:
                continue
            left -= len(piece)
            yield Text(f"corpus:{name}:{start}", "corpus", piece)


def _files(folder: Path) -> list[Path]:
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [Path(at, name) for name in sorted(names) if not name.startswith(".")]
    return [path for path in found if path.is_file() and path.stat().st_size <= _LARGEST]


def _text(path: Path) -> str | None:
    """None for what is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return None
    return None if "\0" in text else text


def chats(tokenizer: Tokenizer, path: Path) -> Iterator[Text]:
    """One text a line of ``{"messages": [{"role", "content"}, ...]}``. ValueError names the line."""
    for number, line in json_lines(path):
        try:
            yield chat_text(tokenizer, line["messages"], name=f"chat:{path.name}:{number}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: no usable conversation ({error})") from None


def chat_text(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, name: str) -> Text:
    """A conversation through the chat template. Answer tokens are what the template writes between asking for the
    assistant's turn and its end, the token that ends the turn included. ValueError if the template changes earlier
    turns when later ones come, or nothing is answered."""
    ids = tokenizer.chat(messages, add_generation_prompt=False)
    answer = np.zeros(len(ids), dtype=bool)
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start = len(before := tokenizer.chat(messages[:i]))
        end = len(upto := tokenizer.chat(messages[: i + 1], add_generation_prompt=False))
        if ids[:end] != upto or upto[:start] != before:
            raise ValueError("the chat template writes earlier turns anew")
        ends = [at for at in range(start, end) if ids[at] in tokenizer.eos_ids]
        answer[start : ends[0] + 1 if ends else end] = True
    if not answer.any():
        raise ValueError("no message of the assistant")
    return Text(name, "chat", ids, answer)
