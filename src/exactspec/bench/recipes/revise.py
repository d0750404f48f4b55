"""Multi-turn revise: a text, and then the same text again and again with one property changed. Every turn counts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from exactspec.bench.recipes.base import CountTokens, Draft, Message, Plan, fit_draft, pick
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recipes.prose import Paragraph, paragraphs

Text: TypeAlias = tuple[tuple[str, ...], ...]
"""Paragraphs of sentences."""

_MOST_TOKENS = 1700  # of one answer, about 1,200 words
_FEWEST_TOKENS = 170
_MOST_PARAGRAPHS = 120
_WORD: Final = re.compile(r"[A-Za-z][a-z]{3,}")
_BRITISH: Final = {
    **{"behavior": "behaviour", "color": "colour", "center": "centre", "honor": "honour", "favor": "favour"},
    **{"initialize": "initialise", "initialized": "initialised", "serialize": "serialise", "normalize": "normalise"},
    **{"optimized": "optimised", "recognized": "recognised", "customize": "customise", "synchronize": "synchronise"},
    **{"serialized": "serialised", "normalized": "normalised", "organized": "organised", "specialized": "specialised"},
    **{"canceled": "cancelled", "labeled": "labelled", "dialog": "dialogue", "catalog": "catalogue", "gray": "grey"},
    **{"finalized": "finalised", "emphasize": "emphasise", "minimize": "minimise", "summarize": "summarise"},
}
_NAMES: Final = ("Meridian", "Tallow", "Quillon", "Brackwater", "Ostrava", "Lindqvist", "Harrowgate", "Pellucid")
_ADDED: Final = (
    "This holds for every release.",
    "See the manual for an example.",
    "Nothing else is affected.",
    "The default is safe in most cases.",
)


@dataclass(frozen=True, slots=True)
class Change:
    """A request, and the text that answers it; `kind` names it."""

    kind: str
    request: str
    text: Text


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A conversation of 1 to 6 revise turns (more only where the size asks for it), all of them measured.

    The first answer is prose of the library. Variants: `last`, every turn changes the answer before it; `older`,
    the last turn goes back to the first answer. Raises ValueError if the materials do not give the size.
    """
    rng = random.Random(seed)
    variant = pick(("last", "older"), seed)
    return fit_draft("revise", rng, size, count, lambda attempt: _plan(attempt, size, materials, variant))


def _plan(rng: random.Random, size: int, materials: Materials, variant: str) -> Plan:
    fewest = max(2 if variant == "older" else 1, -(-size // _MOST_TOKENS) - 1)
    turns = max(fewest, min(rng.randint(1, 6), size // _FEWEST_TOKENS - 1))
    taken = list(islice(paragraphs(rng, materials), min(_MOST_PARAGRAPHS, size // 20)))
    sentences = sum(len(paragraph.sentences) for paragraph in taken)
    base = rng.getrandbits(64)

    def build(n: int) -> Draft:
        text, files = _first(taken, n)
        return _conversation(random.Random(base), text, files, turns, variant, n)

    return sentences, build


def _first(taken: Sequence[Paragraph], n: int) -> tuple[Text, tuple[str, ...]]:
    """The first n sentences of the paragraphs, and whose they are."""
    text: list[tuple[str, ...]] = []
    files: dict[str, None] = {}
    for paragraph in taken:
        if n <= 0:
            break
        text.append(paragraph.sentences[:n])
        files[paragraph.file] = None
        n -= len(paragraph.sentences)
    return tuple(text), tuple(files)


def _conversation(
    rng: random.Random, first: Text, files: tuple[str, ...], turns: int, variant: str, units: int
) -> Draft:
    topic = rng.choice(_NAMES)
    versions = [first]
    messages: list[Message] = [
        {"role": "user", "content": f"Write the notes for the {topic} release, in plain paragraphs."},
        {"role": "assistant", "content": render(first)},
    ]
    earlier: list[int] = []
    kinds: list[str] = []
    for turn in range(turns):
        last = turn == turns - 1
        if last and variant == "older":
            change = _change(rng, first, [], avoid=kinds)
            opening = "Forget all changes so far and take your very first version again. On that one, do only this: "
            change = Change(change.kind, opening + change.request, change.text)
        else:
            change = _change(rng, versions[-1], versions[:-1], avoid=kinds[-1:])
        messages.append({"role": "user", "content": change.request + " Reply with the whole text and nothing else."})
        if not last:
            earlier.append(len(messages))
            messages.append({"role": "assistant", "content": render(change.text)})
        versions.append(change.text)
        kinds.append(change.kind)
    return Draft(tuple(messages), render(versions[-1]), files, units, variant, tuple(earlier))


def render(text: Text) -> str:
    """Paragraphs with an empty line between them."""
    return "\n\n".join(" ".join(sentences) for sentences in text)


def _change(rng: random.Random, text: Text, before: Sequence[Text], *, avoid: Sequence[str]) -> Change:
    """The first kind, in a seeded order, that changes the text; one not in `avoid` if there is one."""
    kinds: list[Callable[[random.Random, Text], Change | None]] = [_name, _lower, _british, _third, _add, _bullets]
    rng.shuffle(kinds)
    found = [change for kind in kinds if (change := kind(rng, text)) is not None and change.text != text]
    if before and before[-1] != text and rng.random() < 0.2:
        found.insert(0, Change("undo", "Undo the last change.", before[-1]))
    found.sort(key=lambda change: change.kind in avoid)
    return found[0]


def _map(text: Text, each: Callable[[str], str]) -> Text:
    return tuple(tuple(each(sentence) for sentence in sentences) for sentences in text)


def _name(rng: random.Random, text: Text) -> Change | None:
    counts: dict[str, int] = {}
    for word in _WORD.findall(render(text)):
        counts[word] = counts.get(word, 0) + 1
    often = sorted(word for word, n in counts.items() if 2 <= n <= 40 and len(word) > 4) or sorted(counts)
    if not often:
        return None
    old, new = rng.choice(often), rng.choice(_NAMES)
    whole = re.compile(rf"\b{old}\b")
    return Change(
        "name", f'Replace the word "{old}" by "{new}" wherever it occurs.', _map(text, lambda s: whole.sub(new, s))
    )


def _lower(rng: random.Random, text: Text) -> Change:
    return Change("lower", "Write everything in lower case.", _map(text, str.lower))


def _british(rng: random.Random, text: Text) -> Change | None:
    words = {word for word in _WORD.findall(render(text)) if word in _BRITISH}
    if not words:
        return None
    listed = ", ".join(f"{word} -> {_BRITISH[word]}" for word in sorted(words))
    whole = re.compile(rf"\b(?:{'|'.join(sorted(words))})\b")
    new = _map(text, lambda s: whole.sub(lambda found: _BRITISH[found[0]], s))
    return Change("british", f"Use British spelling for these words: {listed}.", new)


def _third(rng: random.Random, text: Text) -> Change | None:
    """Counted through the whole text; paragraphs left empty go."""
    kept: list[tuple[str, ...]] = []
    at = 0
    for sentences in text:
        left = tuple(s for i, s in enumerate(sentences, at + 1) if i % 3)
        at += len(sentences)
        if left:
            kept.append(left)
    if at < 6:
        return None
    return Change("third", "Leave out every third sentence, counted through the whole text.", tuple(kept))


def _add(rng: random.Random, text: Text) -> Change:
    added = rng.choice(_ADDED)
    return Change("add", f'Add the sentence "{added}" at the end of every paragraph.', tuple((*s, added) for s in text))


def _bullets(rng: random.Random, text: Text) -> Change | None:
    if any(sentences[0].startswith("- ") for sentences in text):
        return None
    bulleted = tuple(("- " + sentences[0], *sentences[1:]) for sentences in text)
    return Change("bullets", 'Make every paragraph a bullet: put "- " in front of it.', bulleted)
