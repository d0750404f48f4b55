"""C1, no copy: a story is asked for, from words of which none occurs twice. Nothing in the prompt helps a drafter."""

from __future__ import annotations

import keyword
import mimetypes
import random
import re

from exactspec.bench.recipes.base import CountTokens, Draft, Message, fit_units, user
from exactspec.bench.recipes.materials import Materials

_WORD = re.compile(r"(?<![A-Za-z0-9_])[a-z]{4,12}(?![A-Za-z0-9_])")
_MIME_TYPES = "/etc/mime.types"
_GOLD_WORDS = 160


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Words drawn without repetition, so no pair of words occurs twice in prompt and gold together.

    The gold is text of further words of the same kind, for replay only: a real model writes its own story.
    Raises ValueError if no number of words gives the size.
    """
    rng = random.Random(seed)
    words, files = vocabulary(materials)
    rng.shuffle(words)
    usable = len(words) - _GOLD_WORDS

    def messages(n: int) -> tuple[Message, ...]:
        return user(
            "Write a story about a journey that nobody has told before. Choose freely from the words below, use each "
            "at most once, and never write the same sentence twice. Do not repeat the list.\n\n" + " ".join(words[:n])
        )

    n = fit_units(usable, size, lambda n: count(messages(n)))
    if n is None:
        raise ValueError(f"no_copy: no number of words gives a prompt of {size} tokens within 5%: ask for another size")
    rest = words[n : n + _GOLD_WORDS]
    lengths = (7, 9, 8, 11, 6)
    sentences: list[str] = []
    while rest:
        length = lengths[len(sentences) % len(lengths)]
        sentences.append(" ".join(rest[:length]).capitalize() + ".")
        rest = rest[length:]
    return Draft(messages(n), " ".join(sentences), files, n)


def vocabulary(materials: Materials) -> tuple[list[str], tuple[str, ...]]:
    """Distinct lower-case words, sorted: keywords, names of media types, identifiers of the library's top level."""
    words = {word for word in (*keyword.kwlist, *keyword.softkwlist) if _WORD.fullmatch(word)}
    mime = materials.system_lines(_MIME_TYPES)
    if mime:
        files: tuple[str, ...] = ("keyword", _MIME_TYPES, "library")
    else:  # slim images lack the file; Python has a shorter table of its own
        mime, files = sorted(mimetypes.types_map.values()), ("keyword", "mimetypes", "library")
    for line in mime:
        words.update(_WORD.findall(line))
    for name, text in materials.library_texts():
        if "/" not in name:
            words.update(_WORD.findall(text))
    return sorted(words), files
