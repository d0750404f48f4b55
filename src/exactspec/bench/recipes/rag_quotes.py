"""RAG answer with quotations: a few sentences of many passages are quoted exactly, in a frame of other words."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recipes.prose import Paragraph, paragraphs

_FEWEST_WORDS, _MOST_WORDS = 60, 250  # of a passage
_FEWEST_SMALL = 20  # in a prompt of less than 1,000 tokens
_WORDS_PER_TOKEN = 0.9  # more than there are, so that there are passages enough
_TERM: Final = re.compile(r"[a-z]{6,}")
_FEWEST_HITS, _MOST_HITS = 2, 4
_TERMS = 2
_COPIES = 3
_NOWHERE: Final = ("carburettor", "philately", "seismograph", "marmalade", "gondola", "trombone")
_VARIANTS: Final = ("terms", "near_copies", "no_passage")
_FRAMES: Final = (
    "{p} takes the matter up directly. It puts it like this: {q}",
    "Something on it is also found in {p}. The sentence that settles the question reads: {q}",
    "A further mention comes from {p}. There one is told: {q}",
    "Worth reading, too, is {p}. What counts in it: {q}",
    "The author of {p} deals with it in passing. In the original wording: {q}",
    "Nor should {p} be left out. To quote the place that matters: {q}",
    "More detail can be had from {p}. Its decisive words are these: {q}",
    "Finally look at {p}, which adds a point of its own. Literally: {q}",
)
_SWAPPED: Final = ("always", "rarely", "formerly")


@dataclass(frozen=True, slots=True)
class Passage:
    """60 to 250 words of one file, whole paragraphs joined."""

    file: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    def sentence_with(self, term: str) -> str | None:
        """The first sentence that has the word, in any case."""
        whole = re.compile(rf"\b{term}\b", re.IGNORECASE)
        return next((sentence for sentence in self.sentences if whole.search(sentence)), None)


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Numbered passages of the library's docstrings, and a question about words that 2 to 4 of them hold.

    Variants: `terms`; `no_passage`, one of the words is in none of them; `near_copies`, three passages differ in one
    word only, and the one with a certain word is wanted in full. Raises ValueError if no number of passages gives
    the size.
    """
    rng = random.Random(seed)
    variant = pick(_VARIANTS, seed)
    return fit_draft(
        "rag_quotes", rng, size, count, lambda attempt: _plan(attempt, size, materials, variant), attempts=96
    )


def _plan(rng: random.Random, size: int, materials: Materials, variant: str) -> Plan:
    pool = passages(
        rng, materials, words=int(size * _WORDS_PER_TOKEN), fewest=_FEWEST_WORDS if size >= 1000 else _FEWEST_SMALL
    )
    base = rng.getrandbits(64)

    def build(n: int) -> Draft | None:
        return _ask(random.Random(base), pool[:n], variant)

    return len(pool), build


def passages(rng: random.Random, materials: Materials, *, words: int, fewest: int = _FEWEST_WORDS) -> list[Passage]:
    """Passages of at least so many words in all, in a seeded order."""
    found: list[Passage] = []
    total = 0
    part: list[Paragraph] = []
    for paragraph in paragraphs(rng, materials):
        if part and part[-1].file != paragraph.file:
            part = []
        part.append(paragraph)
        length = sum(each.words for each in part)
        if length < fewest:
            continue
        if length <= _MOST_WORDS:
            found.append(Passage(paragraph.file, tuple(s for each in part for s in each.sentences)))
            total += length
        part = []
        if total >= words:
            break
    rng.shuffle(found)
    return found


def _ask(rng: random.Random, pool: Sequence[Passage], variant: str) -> Draft | None:
    copies = _near_copies(rng, pool) if variant == "near_copies" else None
    shown = list(pool)
    if copies is not None:
        shown = [passage for passage in shown if passage is not copies[0]]
        for copied in copies[1:]:
            shown.insert(rng.randrange(len(shown) + 1), copied)
    elif variant == "near_copies":
        return None
    numbers = {passage.text: f"[P{i}]" for i, passage in enumerate(shown, 1)}
    terms = _terms(rng, shown)
    if not terms:
        return None
    if variant == "no_passage":
        terms.insert(rng.randrange(len(terms) + 1), rng.choice(_NOWHERE))
    question, gold = _terms_asked(rng, terms, shown, numbers)
    if copies is not None:
        more = f'Three passages differ in one word only. Which of them says "{_SWAPPED[0]}"? Quote it in full.'
        question = f"{question} {more}"
        wanted = copies[1]
        gold += f'\n\nOf the three that differ in one word only, it is {numbers[wanted.text]}: "{wanted.text}"'
    body = "\n\n".join(f"{numbers[passage.text]} {passage.text}" for passage in shown)
    files = tuple(sorted({passage.file for passage in shown}))
    return Draft(user(f"{body}\n\n{question}"), gold, files, len(shown), variant)


def _terms(rng: random.Random, shown: Sequence[Passage]) -> list[str]:
    """At most `_TERMS` words that 2 to 4 of the passages hold, each in a sentence worth quoting."""
    hits: dict[str, int] = {}
    for passage in shown:
        for word in set(_TERM.findall(passage.text.lower())):
            hits[word] = hits.get(word, 0) + 1
    candidates = sorted(word for word, n in hits.items() if _FEWEST_HITS <= n <= _MOST_HITS)
    rng.shuffle(candidates)
    found: list[str] = []
    for word in candidates:
        quoted = [passage.sentence_with(word) for passage in shown]
        held = [sentence for sentence in quoted if sentence is not None]
        if _FEWEST_HITS <= len(held) <= _MOST_HITS and all(8 <= len(sentence.split()) <= 50 for sentence in held):
            found.append(word)
        if len(found) == _TERMS:
            break
    return found


def _terms_asked(
    rng: random.Random, terms: Sequence[str], shown: Sequence[Passage], numbers: dict[str, str]
) -> tuple[str, str]:
    frames = list(_FRAMES)
    rng.shuffle(frames)
    parts: list[str] = []
    used = 0
    for term in terms:
        lines = []
        for passage in shown:
            quoted = passage.sentence_with(term)
            if quoted is not None:
                frame = frames[used % len(frames)]
                lines.append(frame.format(p=numbers[passage.text], q=f'"{quoted}"'))
                used += 1
        parts.append(f"{term}:\n" + ("\n".join(lines) or "No passage speaks of it."))
    listed = ", ".join(f'"{term}"' for term in terms)
    question = (
        f"Which passages speak of {listed}? Take one word after the other. For each passage answer in two sentences: "
        "name it by its number, and quote exactly the first sentence that has the word. Say so where there is none."
    )
    return question, "\n\n".join(parts)


def _near_copies(rng: random.Random, pool: Sequence[Passage]) -> list[Passage] | None:
    """A passage, and three copies of it which differ in one adverb; the first copy is the one asked for."""
    fitting = [passage for passage in pool if not any(word in passage.text.lower() for word in _SWAPPED)]
    if not fitting:
        return None
    original = rng.choice(fitting)
    at = rng.randrange(len(original.sentences))
    words = original.sentences[at].split()
    place = rng.randrange(1, max(2, len(words)))
    copies = [original]
    for adverb in _SWAPPED[:_COPIES]:
        changed = " ".join([*words[:place], adverb, *words[place:]])
        sentences = (*original.sentences[:at], changed, *original.sentences[at + 1 :])
        copies.append(Passage(original.file, sentences))
    return copies
