"""Running prose from the docstrings of the Python library: paragraphs of whole sentences, file by file."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from exactspec.bench.recipes.materials import Materials, text_of

_Node: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_SMALLEST, _LARGEST = 4_000, 120_000  # bytes of a file: smaller ones say little, larger ones take long to parse
_FEWEST_WORDS = 12
_SENTENCE_END: Final = re.compile(r"(?<!cf[.])(?<!e[.]g[.])(?<!i[.]e[.])(?<=[a-z0-9)\"'][.!?])\s+(?=[A-Z])")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 ,.;:'()\-/_!?\"=*]+")
_NOT_PROSE: Final = re.compile(r">>>|\.\. |^\s*[-*+|]|::|  ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences of one paragraph, single-spaced, and the library file that it is from."""

    file: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def words(self) -> int:
        return len(self.text.split())


def paragraphs(rng: random.Random, materials: Materials, *, fewest: int = _FEWEST_WORDS) -> Iterator[Paragraph]:
    """Paragraphs of at least `fewest` words, no two the same, from the library's files in a seeded order."""
    files = materials.library_files(_SMALLEST, _LARGEST)
    rng.shuffle(files)
    seen: set[str] = set()
    for name, path in files:
        text = text_of(path)
        if text is None or '"""' not in text:
            continue
        for paragraph in _of_file(name, text):
            if paragraph.words >= fewest and paragraph.text not in seen:
                seen.add(paragraph.text)
                yield paragraph


def _of_file(name: str, text: str) -> Iterator[Paragraph]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in _documented(tree):
        for block in (ast.get_docstring(node) or "").split("\n\n"):
            joined = " ".join(block.split())
            if _NOT_PROSE.search(block) or not _PLAIN.fullmatch(joined) or joined[-1] != "." or not joined[0].isupper():
                continue
            yield Paragraph(name, tuple(_SENTENCE_END.split(joined)))


def _documented(node: _Node) -> Iterator[_Node]:
    """The node, and the classes and functions straight in it; faster than a walk through all expressions."""
    yield node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(inner)
