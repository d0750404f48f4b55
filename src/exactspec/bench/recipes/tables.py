"""Tables that every Python holds (statuses, errors, characters, encodings) and a made-up stock list, as rows."""

from __future__ import annotations

import errno
import html.entities
import os
import random
import signal
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from encodings.aliases import aliases
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, TypeAlias

Cell: TypeAlias = str | int | tuple[str, ...]

_BLOCKS: Final = ((0xA1, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x2190, 0x2211), (0x3042, 0x3096))
_ITEMS: Final = ("hinge", "bracket", "washer", "dowel", "gasket", "spindle", "clamp", "rivet", "collar", "latch")
_FINISHES: Final = ("brass", "steel", "oak", "zinc", "nylon", "copper", "cork", "felt", "bronze", "walnut")
_NOTES: Final = (
    'sold as "classic", last batch',
    "",
    "heavy, two parcels",
    "",
    'fits 1/2" pipes only',
    "Größe prüfen",
    "discontinued, see catalogue",
    "",
)
_TAGS: Final = ("indoor", "outdoor", "heavy", "small", "bulk", "spare", "new")


@dataclass(frozen=True, slots=True)
class Table:
    """`columns`: names; a column holds text, whole numbers, or lists of words throughout. `key`: index of a column
    in which no two rows agree. `title`: what a row is, in the plural."""

    title: str
    columns: tuple[str, ...]
    key: int
    rows: tuple[tuple[Cell, ...], ...]

    def kind(self, column: int) -> type:
        """`str`, `int` or `tuple`."""
        return type(self.rows[0][column])

    def of_kind(self, kind: type) -> list[int]:
        """Indices of the columns of a kind."""
        return [i for i in range(len(self.columns)) if self.kind(i) is kind]

    def only(self, columns: Sequence[int]) -> Table:
        """With these columns alone, which hold the key; in the given order."""
        rows = tuple(tuple(row[i] for i in columns) for row in self.rows)
        return Table(self.title, tuple(self.columns[i] for i in columns), list(columns).index(self.key), rows)

    def head(self, n: int) -> Table:
        """Its first n rows."""
        return Table(self.title, self.columns, self.key, self.rows[:n])


def _statuses(rng: random.Random) -> Table:
    rows = [(s.value, s.name, s.phrase, s.description, s.value // 100) for s in HTTPStatus]
    return Table("HTTP statuses", ("code", "name", "phrase", "description", "group"), 0, tuple(rows))


def _errors(rng: random.Random) -> Table:
    rows = [(number, name, os.strerror(number), hex(number)) for number, name in sorted(errno.errorcode.items())]
    return Table("error numbers", ("number", "name", "message", "hex"), 1, tuple(rows))


def _signals(rng: random.Random) -> Table:
    found = sorted(signal.valid_signals())
    rows = [(int(s), getattr(s, "name", f"SIGRT+{int(s) - 34}"), signal.strsignal(s) or "", hex(s)) for s in found]
    return Table("signals", ("number", "name", "meaning", "hex"), 0, tuple(rows))


def _characters(rng: random.Random) -> Table:
    rows = []
    for first, last in _BLOCKS:
        for point in range(first, last + 1):
            char = chr(point)
            name = unicodedata.name(char, "")
            if name and char.isprintable():
                kinds = (unicodedata.category(char), unicodedata.bidirectional(char))
                rows.append((f"U+{point:04X}", char, name.lower(), *kinds, point, unicodedata.decomposition(char)))
    return Table("characters", ("code", "char", "name", "category", "direction", "value", "parts"), 0, tuple(rows))


def _entities(rng: random.Random) -> Table:
    rows = []
    for name, text in sorted(html.entities.html5.items()):
        if name.endswith(";") and text.isprintable() and not text.isspace() and not unicodedata.combining(text[-1]):
            rows.append((name, text, " ".join(f"U+{ord(c):04X}" for c in text), len(name), ord(text[0])))
    return Table("HTML entities", ("entity", "text", "points", "length", "first"), 0, tuple(rows))


def _encodings(rng: random.Random) -> Table:
    names: dict[str, list[str]] = {}
    for alias, name in sorted(aliases.items()):
        names.setdefault(name, []).append(alias)
    rows = [(name, tuple(known), len(known), max(known, key=len)) for name, known in sorted(names.items())]
    return Table("encodings", ("encoding", "aliases", "count", "longest"), 0, tuple(rows))


def _stock(rng: random.Random) -> Table:
    rows = []
    for i in range(900):
        name = f"{rng.choice(_FINISHES)} {rng.choice(_ITEMS)}, {rng.randint(2, 90)} mm"
        tags = tuple(sorted(rng.sample(_TAGS, rng.randint(0, 3))))
        price = f"{rng.randint(0, 60)}.{rng.randint(0, 99):02}"
        shelf = f"{rng.randint(0, 40):03}"
        rows.append((f"P{i + 1:04}", name, rng.randint(0, 5000), price, tags, shelf, rng.choice(_NOTES)))
    return Table("parts", ("id", "name", "stock", "price", "tags", "shelf", "note"), 0, tuple(rows))


TABLES: Final[Mapping[str, Callable[[random.Random], Table]]] = MappingProxyType(
    {
        "http.HTTPStatus": _statuses,
        "errno": _errors,
        "signal": _signals,
        "unicodedata": _characters,
        "html.entities": _entities,
        "encodings.aliases": _encodings,
        "stock": _stock,
    }
)
"""By the module they are of; `stock` is made up."""


def choose(rng: random.Random, names: Sequence[str] | None = None) -> tuple[str, Table]:
    """A table of the given names, or of all; from a random row on, so that seeds differ."""
    name = rng.choice(list(TABLES) if names is None else list(names))
    table = TABLES[name](rng)
    at = rng.randrange(len(table.rows))
    return name, Table(table.title, table.columns, table.key, table.rows[at:] + table.rows[:at])
