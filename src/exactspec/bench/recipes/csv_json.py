"""CSV to JSON and back: keys come from the reply itself, values from the next row of the prompt."""

from __future__ import annotations

import csv
import io
import json
import random
from typing import Any, Final

from exactspec.bench.recipes import tables
from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials

_KEYS: Final = {  # names asked for in the JSON, by column
    **{"code": "statusCode", "name": "displayName", "phrase": "short_text", "description": "long_text", "id": "partId"},
    **{"aliases": "otherNames", "encoding": "codec", "count": "number_of_names", "char": "glyph", "value": "codePoint"},
    **{"stock": "unitsInStock", "price": "unit_price", "tags": "labels", "note": "remark", "message": "errorText"},
}
_VARIANTS: Final = ("lines", "indented", "to_csv")


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A table of Python's, or the made-up stock list with quotes, commas, empty cells and numbers that are text.

    Variants: `lines`, one JSON object a line; `indented`, an array; `to_csv`, the other way round. Whole numbers
    become JSON numbers, lists (words with semicolons between) arrays; all else stays text. Raises ValueError if no
    number of rows gives the size.
    """
    rng = random.Random(seed)
    return fit_draft("csv_json", rng, size, count, lambda attempt: _plan(attempt, pick(_VARIANTS, seed)))


def _plan(rng: random.Random, variant: str) -> Plan:
    name, table = tables.choose(rng)
    others = [i for i in range(len(table.columns)) if i != table.key]
    columns = sorted([table.key, *rng.sample(others, rng.randint(2, len(others)))])
    table = table.only(columns)
    keys = [_KEYS.get(column, column) for column in table.columns]

    def build(n: int) -> Draft:
        part = table.head(n)
        records = [dict(zip(keys, map(_value, row), strict=True)) for row in part.rows]
        if variant == "to_csv":
            shown, gold = json.dumps(records, indent=1, ensure_ascii=False), csv_text(part)
            text = f"Turn this JSON into CSV.\n{_csv_rules(part, keys)}\n\n{shown}"
        else:
            shown, gold = csv_text(part), json_text(records, indented=variant == "indented")
            text = f"Turn this CSV into JSON.\n{_json_rules(part, keys, variant)}\n\n{shown}"
        return Draft(user(text), gold, (name,), n, variant)

    return len(table.rows), build


def csv_text(table: tables.Table) -> str:
    """With a header; fields quoted where they must be."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([";".join(cell) if isinstance(cell, tuple) else cell for cell in row] for row in table.rows)
    return out.getvalue().rstrip("\n")


def json_text(records: list[dict[str, Any]], *, indented: bool) -> str:
    """An array indented by two, or one object a line."""
    if indented:
        return json.dumps(records, indent=2, ensure_ascii=False)
    return "\n".join(json.dumps(record, ensure_ascii=False) for record in records)


def _value(cell: tables.Cell) -> str | int | list[str]:
    return list(cell) if isinstance(cell, tuple) else cell


def _json_rules(table: tables.Table, keys: list[str], variant: str) -> str:
    form = "an array, indented by two spaces" if variant == "indented" else "one object a line, no array around them"
    told = f"Write {form}. Keys, in this order: {', '.join(keys)}."
    numbers, lists = ([keys[i] for i in table.of_kind(kind)] for kind in (int, tuple))
    if numbers:
        told += f" {', '.join(numbers)}: numbers."
    if lists:
        told += f" {', '.join(lists)}: arrays of the words between semicolons."
    return told + " All else is text. Write nothing else."


def _csv_rules(table: tables.Table, keys: list[str]) -> str:
    columns = ", ".join(f"{key} -> {column}" for key, column in zip(keys, table.columns, strict=True))
    told = f"The first line names the columns, in this order: {columns}. Quote a field only where it must be."
    if table.of_kind(tuple):
        told += " Join arrays by semicolons."
    return told + " Write nothing else."
