"""The licences that Debian installs, cut into their numbered sections; slim installations lack them."""

from __future__ import annotations

import re
from typing import Final

from exactspec.bench.recipes.contracts import ASKED, Contract, Section
from exactspec.bench.recipes.materials import Materials

_FOLDER: Final = "/usr/share/common-licenses"
_NAMES: Final = ("GPL-3", "GPL-2", "Apache-2.0", "LGPL-2.1", "MPL-2.0", "GFDL-1.3", "Artistic")
_HEADING: Final = re.compile(r"(?m)^ {0,3}(\d{1,2}(?:\.\d{1,2})?)\. +(\S.*)$")
_LONGEST = 4000  # characters of a section
_WORDS: Final = {
    "warranty": ("warranty", "warranties", "merchantability"),
    "liability": ("liable", "liability", "damages"),
    "termination": ("terminate", "termination", "terminated"),
    "patents": ("patent", "patents"),
    "notices": ("notice", "notices"),
}


def licences(materials: Materials) -> list[Contract]:
    """Those that are there, as documents without parties. A section's topic is that of `ASKED` whose words it holds
    most often, "other" if none; of a topic, only the section with most of them counts, so that there is one answer."""
    found = []
    for name in _NAMES:
        text = materials.system_text(f"{_FOLDER}/{name}")
        sections = _sections(text) if text else ()
        if sections:
            found.append(Contract(f"{_FOLDER}/{name}", ("", ""), sections))
    return found


def _sections(text: str) -> tuple[Section, ...]:
    heads = list(_HEADING.finditer(text))
    bodies: list[tuple[str, str]] = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = " ".join(text[head.start(2) : following.start() if following else len(text)].split())
        if len(body) <= _LONGEST and '"' not in body and "\\" not in body:
            bodies.append((head[1], body))
    best: dict[str, int] = {}
    for topic in ASKED:
        counts = [sum(body.lower().split().count(word) for word in _WORDS[topic]) for _, body in bodies]
        if counts and max(counts) > 0:
            best[topic] = counts.index(max(counts))
    topics = {at: topic for topic, at in best.items()}
    return tuple(Section(f"{number}.", topics.get(i, "other"), (body,)) for i, (number, body) in enumerate(bodies))
