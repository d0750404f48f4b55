"""Translation with a glossary: only names, code, placeholders and links come back; copying must not cost time."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Final

from exactspec.bench.recipes import words
from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials

_SENTENCES = 1600
_SLOT: Final = re.compile(r"\{([a-zA-Z]+)\}")
_KEPT: Final = re.compile(
    "|".join(
        [r"`[^`]*`", r"\{\w+\}", r"%[sd]", r"https?://\S+?(?=[.,]?(?:\s|$))"]
        + [
            rf"\b{re.escape(name)}\b"
            for name in sorted((*words.PRODUCTS, *words.KEYS), key=lambda name: (-len(name), name))
        ]
    )
)
_WORD: Final = re.compile(r"[A-Za-z]+")


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A manual in markdown, to be put word by word into a language whose words the glossary at its top states.

    Variants: `toy`, and `finnish`, `greek`, `korean`: made-up words in that script beside the real names of days and
    months. Products, keys, code, placeholders, links and numbers stay. Raises ValueError if no number of sentences
    gives the size.
    """
    rng = random.Random(seed)
    variant = pick(tuple(words.LANGUAGES), seed)
    return fit_draft("glossary", rng, size, count, lambda attempt: _plan(attempt, size, variant))


def _plan(rng: random.Random, size: int, variant: str) -> Plan:
    share = min(1.0, 0.2 + size / 4096)  # a short prompt has no room for many words
    slots = {"n": words.NOUNS, "v": words.VERBS, "a": words.ADJECTIVES, "d": words.DETERMINERS}
    slots |= {"p": words.PREPOSITIONS, "c": words.CONJUNCTIONS, "m": words.MODALS, "r": words.ADVERBS}
    choices: dict[str, Sequence[str]] = {
        slot: rng.sample(each, max(3, int(share * len(each)))) for slot, each in slots.items()
    }
    choices |= {"code": words.CODES, "key": words.KEYS, "hole": words.HOLES}
    choices |= {"url": words.URLS, "product": words.PRODUCTS}
    sentences = [_sentence(rng, rng.choice(words.PATTERNS), choices) for _ in range(_SENTENCES)]
    syllables, days, months = words.LANGUAGES[variant]
    made: dict[str, str] = {}
    for real, english in ((days, words.DAYS), (months, words.MONTHS)):
        if real is not None:
            made |= {word.lower(): other for word, other in zip(english, real, strict=True)}
    seed = rng.getrandbits(64)

    def build(n: int) -> Draft:
        text = _manual(sentences[:n])
        needed = dict.fromkeys(word.lower() for part in _KEPT.split(text) for word in _WORD.findall(part))
        mapped = _map(random.Random(seed), sorted(needed), made, syllables)
        listed = "\n".join(f"{word} = {mapped[word]}" for word in sorted(needed))
        ask = (
            "Translate the manual below word by word, in the order of its words, with this glossary. A word that "
            "begins with a capital letter keeps one. Products, keys, code, placeholders, links, numbers and all "
            "signs stay. Write the translation and nothing else."
        )
        return Draft(user(f"{ask}\n\n{listed}\n\n---\n\n{text}"), translate(text, mapped), ("made up",), n, variant)

    return len(sentences), build


def _sentence(rng: random.Random, pattern: str, choices: Mapping[str, Sequence[str]]) -> str:
    """The pattern with its slots filled; no word twice in a sentence."""
    used: set[str] = set()

    def fill(slot: re.Match[str]) -> str:
        if slot[1] == "date":
            return f"{rng.choice(words.DAYS)}, {rng.randint(1, 28)} {rng.choice(words.MONTHS)}"
        each = choices[slot[1].lower().rstrip("2")]
        word = rng.choice([word for word in each if word not in used] or each)
        used.add(word)
        return word.capitalize() if slot[1].isupper() else word

    return _SLOT.sub(fill, pattern)


def _manual(sentences: list[str]) -> str:
    """Sections of seven sentences: a heading, a paragraph of four, a list of three."""
    parts: list[str] = []
    for at in range(0, len(sentences), 8):
        heading, *rest = sentences[at : at + 8]
        parts.append("## " + heading.rstrip("."))
        if rest[:4]:
            parts.append(" ".join(rest[:4]))
        if rest[4:]:
            parts.append("\n".join(f"- {sentence}" for sentence in rest[4:]))
    return "\n\n".join(parts)


def _map(rng: random.Random, needed: list[str], made: Mapping[str, str], syllables: tuple[str, ...]) -> dict[str, str]:
    """A word for each, no two the same. Every word of the manual's vocabulary is drawn, whether it is needed or
    not, so that the map does not change with the manual's length."""
    vocabulary = {*words.NOUNS, *words.VERBS, *words.ADJECTIVES, *words.DETERMINERS, *words.PREPOSITIONS, *needed}
    vocabulary |= {*words.CONJUNCTIONS, *words.MODALS, *words.ADVERBS}
    vocabulary |= {word.lower() for word in (*words.DAYS, *words.MONTHS)}
    mapped = dict(made)
    taken = set(made.values())
    for word in sorted(vocabulary - set(made)):
        while True:
            other = "".join(rng.choice(syllables) for _ in range(2 if len(taken) < len(syllables) ** 2 * 0.7 else 3))
            if other not in taken:
                break
        taken.add(other)
        mapped[word] = other
    return mapped


def translate(text: str, mapped: Mapping[str, str]) -> str:
    """Word by word; what `_KEPT` matches stays."""

    def word(found: re.Match[str]) -> str:
        other = mapped[found[0].lower()]
        return other[0].upper() + other[1:] if found[0][0].isupper() else other

    out: list[str] = []
    at = 0
    for kept in _KEPT.finditer(text):
        out += [_WORD.sub(word, text[at : kept.start()]), kept[0]]
        at = kept.end()
    return "".join([*out, _WORD.sub(word, text[at:])])
