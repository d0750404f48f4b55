"""JSON re-emission: an array of records comes back whole, with one small change."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from exactspec.bench.recipes import tables
from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials

Records: TypeAlias = list[dict[str, Any]]

_MINIFIED: Final = 4  # one seed in so many: input without spaces, output with
_REVIEWERS: Final = ("Ines", "Tomasz", "Yuki", "Odile", "Bram", "Zoë", "Łucja", "Håkon")


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    request: str
    records: Records


_Kind: TypeAlias = Callable[[random.Random, Records], _Change]


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Records nested up to four levels, made of a table of Python's; one change of five kinds (`set`, `drop`,
    `rename`, `sort`, `keep`), which names the variant, with `minified` where the input has no spaces.

    Raises ValueError if no number of records gives the size.
    """
    rng = random.Random(seed)
    minified = seed % _MINIFIED == _MINIFIED - 1
    return fit_draft("json_reemit", rng, size, count, lambda attempt: _plan(attempt, pick(_KINDS, seed), minified))


def _plan(rng: random.Random, kind: _Kind, minified: bool) -> Plan:
    name, table = tables.choose(rng)
    depth = rng.choice((1, 2, 4))
    records = [_record(rng, table, row, depth) for row in table.rows]
    ascii_only, ordered = rng.random() < 0.5, rng.random() < 0.5
    base = rng.getrandbits(64)

    def build(n: int) -> Draft:
        some = records[:n]
        change = kind(random.Random(base), some)
        dumps = partial(json.dumps, ensure_ascii=ascii_only, sort_keys=ordered)
        shown = dumps(some, separators=(",", ":")) if minified else dumps(some, indent=2)
        style = "Indent the result by two spaces per level" if minified else "Keep the format and the order of keys"
        ask = f"{change.request} {style}. Return the whole JSON and nothing else."
        text = f"These are {n} records about {table.title}:\n\n```json\n{shown}\n```\n\n{ask}"
        return Draft(
            user(text), dumps(change.records, indent=2), (name,), n, change.kind + (" minified" if minified else "")
        )

    return len(records), build


def _record(rng: random.Random, table: tables.Table, row: tuple[tables.Cell, ...], depth: int) -> dict[str, Any]:
    """A row and a made-up review, on one level, or the row's end and the review one and up to three levels down."""
    cells = [(name, _plain(cell)) for name, cell in zip(table.columns, row, strict=True)]
    review = {"by": rng.choice(_REVIEWERS), "score": rng.randint(1, 99)}
    if depth == 1:
        return {**dict(cells), **review}
    if depth == 2:
        return {**dict(cells[:3]), "detail": {**dict(cells[3:]), **review}}
    return {**dict(cells[:2]), "detail": {**dict(cells[2:]), "checks": {"open": [], "review": review}}}


def _review(record: dict[str, Any]) -> dict[str, Any]:
    """The object that holds the score."""
    if "score" in record:
        return record
    (inner,) = (value for value in record.values() if isinstance(value, dict))
    return _review(inner)


def _plain(cell: tables.Cell) -> str | int | list[str]:
    return list(cell) if isinstance(cell, tuple) else cell


def _set(rng: random.Random, records: Records) -> _Change:
    new = copy.deepcopy(records)
    at = rng.randrange(len(new))
    score = 100 + rng.randrange(900)
    _review(new[at])["score"] = score
    key = next(iter(new[at]))
    return _Change("set", f"Set the score to {score} in the record whose {key} is {_told(new[at][key])}.", new)


def _drop(rng: random.Random, records: Records) -> _Change:
    new = copy.deepcopy(records)
    for record in new:
        del _review(record)["by"]
    return _Change("drop", 'Drop the key "by" from every record.', new)


def _rename(rng: random.Random, records: Records) -> _Change:
    names = [("score", "points"), ("by", "reviewed_by"), (list(records[0])[1], "secondField")]
    old, new_name = rng.choice(names)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {new_name if key == old else key: renamed(inner) for key, inner in value.items()}
        return value

    return _Change("rename", f'Rename the key "{old}" to "{new_name}" everywhere.', [renamed(r) for r in records])


def _sort(rng: random.Random, records: Records) -> _Change:
    new = sorted(records, key=lambda record: _review(record)["score"])
    return _Change("sort", "Sort the records by score, ascending; equal ones stay in their order.", new)


def _keep(rng: random.Random, records: Records) -> _Change:
    least = rng.randint(10, 35)
    new = [record for record in records if _review(record)["score"] >= least]
    return _Change("keep", f"Keep only the records with a score of at least {least}.", new or records[:1])


def _told(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_KINDS: Final[tuple[_Kind, ...]] = (_set, _keep, _drop, _rename, _sort)
