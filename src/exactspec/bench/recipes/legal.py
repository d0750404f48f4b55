"""Legal clause extraction: whole sections come back word by word, in the order of a checklist, not of the documents."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.contracts import ASKED, Contract, Section, amended, contracts
from exactspec.bench.recipes.licences import licences
from exactspec.bench.recipes.materials import Materials

_VARIANTS: Final = ("extract", "parties", "differences")
_CHANGED = 0.35  # share of a contract's sections that its second version words differently
_OTHER_NAMES: Final = ("Vendor", "Recipient", "Grantor", "Beneficiary", "Company", "Partner")


@dataclass(frozen=True, slots=True)
class _Part:
    """A document, or the first sections of it."""

    contract: Contract
    sections: tuple[Section, ...]

    @property
    def text(self) -> str:
        return self.contract.render(self.sections)


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Made-up contracts and a checklist of topics, each in one of the documents.

    Variants: `extract`, a JSON object with document, section number and exact text, or null; `parties`, the same
    with the parties under other names; `differences`, sections that two versions word differently, with both
    sentences. Raises ValueError if no number of sections gives the size.
    """
    rng = random.Random(seed)
    variant = pick(_VARIANTS, seed)
    return fit_draft("legal", rng, size, count, lambda attempt: _plan(attempt, contracts(attempt), (), variant))


def make_licences(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """`extract` on the licences that Debian installs, filled up with made-up contracts, or on those alone."""
    rng = random.Random(seed)
    found = licences(materials)

    def plan(attempt: random.Random) -> Plan:
        some = list(found)
        attempt.shuffle(some)
        files = tuple(contract.title for contract in some)
        return _plan(attempt, [*some, *contracts(attempt)], files, "extract")

    return fit_draft("legal_licences", rng, size, count, plan)


def _plan(rng: random.Random, documents: Sequence[Contract], files: tuple[str, ...], variant: str) -> Plan:
    base = rng.getrandbits(64)
    seconds = [amended(rng, contract, _CHANGED) for contract in documents] if variant == "differences" else []

    def build(n: int) -> Draft | None:
        parts = _first(documents, n)
        inner = random.Random(base)
        shown = {part.contract.title for part in parts}
        used = tuple(name for name in files if name in shown) or ("made up",)
        made = _differences(parts, seconds) if seconds else _extraction(inner, parts, variant == "parties")
        return None if made is None else Draft(user(made[0]), made[1], used, n, variant)

    return sum(len(contract.sections) for contract in documents), build


def _first(documents: Sequence[Contract], n: int) -> list[_Part]:
    """The first n sections, document by document."""
    parts: list[_Part] = []
    for contract in documents:
        if n <= 0:
            break
        parts.append(_Part(contract, contract.sections[:n]))
        n -= len(contract.sections)
    return parts


def _extraction(rng: random.Random, parts: Sequence[_Part], rename: bool) -> tuple[str, str] | None:
    """A checklist in a seeded order, each topic of a seeded document; null where that has none."""
    topics = list(ASKED)
    rng.shuffle(topics)
    wanted: dict[str, _Part] = {}
    for topic in topics:
        order = rng.sample(parts, len(parts))
        having = [part for part in order if any(section.topic == topic for section in part.sections)]
        wanted[topic] = (having or order)[0]
    answer: dict[str, dict[str, str] | None] = {}
    names = _new_names(rng, parts) if rename else {}
    for topic, part in wanted.items():
        section = next((section for section in part.sections if section.topic == topic), None)
        answer[topic] = None
        if section is not None:
            number = section.number.rstrip(".")
            text = _renamed(section.text, names)
            answer[topic] = {"document": part.contract.title, "section": number, "text": text}
    if sum(value is not None for value in answer.values()) < min(2, len(parts)):
        return None
    listed = "\n".join(f"- {topic}: {part.contract.title}" for topic, part in wanted.items())
    ask = (
        "From the documents above, extract one clause for each topic of this list, from the document named beside it. "
        "Reply with a JSON object, indented by two spaces, with the topics as keys in the order of the list. The value "
        "has the keys document, section (its number) and text (the whole section below its heading, word by word), or "
        "is null where the document has no such section."
    )
    if rename:
        told = ", ".join(f'"{old}" by "{new}"' for old, new in names.items())
        ask += f" In the texts, and only there, replace {told}."
    body = "\n\n".join(part.text for part in parts)
    return f"{body}\n\n---\n\n{ask}\n\n{listed}", json.dumps(answer, indent=2, ensure_ascii=False)


def _new_names(rng: random.Random, parts: Sequence[_Part]) -> dict[str, str]:
    """Two parties of each document, at most three documents, under other names."""
    old = [party for part in parts for party in part.contract.parties][: len(_OTHER_NAMES)]
    return dict(zip(old, rng.sample(_OTHER_NAMES, len(old)), strict=True))


def _renamed(text: str, names: dict[str, str]) -> str:
    if not names:
        return text
    return re.sub(rf"\b(?:{'|'.join(names)})\b", lambda found: names[found[0]], text)


def _differences(parts: Sequence[_Part], seconds: Sequence[Contract]) -> tuple[str, str] | None:
    """Both versions of every document, all first ones before all second ones; a sentence pair for each difference."""
    body: list[str] = ["# FIRST VERSION", *(part.text for part in parts), "# SECOND VERSION"]
    found: list[str] = []
    for part, second in zip(parts, seconds, strict=False):
        again = second.sections[: len(part.sections)]
        body.append(second.render(again))
        for old, new in zip(part.sections, again, strict=True):
            for before, after in zip(old.sentences, new.sentences, strict=True):
                if before != after:
                    where = f"{part.contract.title}, section {old.number} {old.topic}"
                    found.append(f'{where}\nfirst: "{before}"\nsecond: "{after}"')
    if not found:
        return None
    ask = (
        "Compare the two versions section by section. For each sentence that differs give the document with the "
        'section\'s number and topic on one line, then "first:" and "second:" with the sentence in quotes, each on a '
        "line of its own, with an empty line between the differences. Write nothing else."
    )
    return "\n\n".join([*body, "---", ask]), "\n\n".join(found)
