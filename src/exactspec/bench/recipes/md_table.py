"""Markdown table edit: the table, or the page it is in, comes back with one change; padding makes long runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias

from exactspec.bench.recipes import tables
from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recipes.prose import paragraphs

_SOURCES: Final = ("http.HTTPStatus", "errno", "signal", "unicodedata", "encodings.aliases", "stock")
_PAGES: Final = 3  # one seed in so many: a page around the table
_PARAGRAPHS = 4


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text: `cells` with the header first, all rows of one length. `padded`: columns as wide as their
    longest cell, or as `widths` says, if that is wider."""

    cells: tuple[tuple[str, ...], ...]
    padded: bool
    widths: tuple[int, ...] = ()

    def render(self) -> str:
        """One line a row, and dashes below the header."""
        columns = range(len(self.cells[0]))
        least = self.widths or (3,) * len(columns)
        widths = [max(3, least[i], *(len(row[i]) for row in self.cells)) if self.padded else 0 for i in columns]
        dashes = tuple("-" * (width or 3) for width in widths)
        lines = [self.cells[0], dashes, *self.cells[1:]]
        return "\n".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
            for row in lines
        )

    @property
    def kept_widths(self) -> tuple[int, ...]:
        """Widths of the columns as they are, which an edit of cells leaves."""
        return tuple(max(3, *(len(row[i]) for row in self.cells)) for i in range(len(self.cells[0])))


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    request: str
    grid: Grid


_Kind: TypeAlias = Callable[[random.Random, Grid, tables.Table], _Change]


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A padded or unpadded table and one change of six kinds: `cell`, `computed`, `delete`, `move`, `sort`, `pad`.

    The variant is the kind, with `page` where the table stands in a page with text around. Raises ValueError if no
    number of rows gives the size.
    """
    rng = random.Random(seed)
    page = seed % _PAGES == 1
    return fit_draft("md_table", rng, size, count, lambda attempt: _plan(attempt, materials, pick(_KINDS, seed), page))


def _plan(rng: random.Random, materials: Materials, kind: _Kind, page: bool) -> Plan:
    name, table = tables.choose(rng, _SOURCES)
    padded = rng.random() < 0.7
    around = list(islice(paragraphs(rng, materials), _PARAGRAPHS)) if page else []
    base = rng.getrandbits(64)
    files = tuple(dict.fromkeys([name, *(paragraph.file for paragraph in around)]))

    def build(n: int) -> Draft | None:
        if n < 3:
            return None
        cells = (table.columns, *(tuple(map(_text, row)) for row in table.rows[:n]))
        grid = Grid(cells, padded and kind is not _pad)
        change = kind(random.Random(base), grid, table.head(n))
        before, after = (_page(table.title, [p.text for p in around], g.render()) for g in (grid, change.grid))
        whole = "page" if page else "table"
        ask = f"{change.request} Return the whole {whole} and nothing else."
        variant = change.kind + (" page" if page else "")
        return Draft(user(f"{ask}\n\n{before}"), after, files, n, variant)

    return len(table.rows), build


def _page(title: str, around: Sequence[str], table: str) -> str:
    if not around:
        return table
    half = len(around) // 2
    above, below = "\n\n".join(around[:half]), "\n\n".join(around[half:])
    return f"# A list of {title}\n\n{above}\n\n## The list\n\n{table}\n\n## Remarks\n\n{below}"


def _text(cell: tables.Cell) -> str:
    text = ", ".join(cell) if isinstance(cell, tuple) else str(cell)
    return text.replace("|", "\\|")


def _named(grid: Grid, table: tables.Table, row: int) -> str:
    return f"the row whose {grid.cells[0][table.key]} is {grid.cells[row][table.key]}"


def _cell(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    """A cell takes what another row has there, so that no column grows; padding stays as it is."""
    row = rng.randrange(1, len(grid.cells))
    column = rng.choice([i for i in range(len(table.columns)) if i != table.key])
    others = sorted({r[column] for r in grid.cells[1:] if r[column] != grid.cells[row][column]}) or ["-"]
    new = rng.choice(others)
    changed = (*grid.cells[row][:column], new, *grid.cells[row][column + 1 :])
    cells = (*grid.cells[:row], changed, *grid.cells[row + 1 :])
    request = f'In {_named(grid, table, row)}, the {grid.cells[0][column]} should be "{new}".'
    request += " Keep the column widths." if grid.padded else ""
    return _Change("cell", request, replace(grid, cells=cells, widths=grid.kept_widths))


def _computed(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    column = rng.choice(table.of_kind(str))
    head = grid.cells[0][column]
    lengths = [str(len(str(row[column]))) for row in table.rows]
    cells = tuple((*row, new) for row, new in zip(grid.cells, [f"{head}_length", *lengths], strict=True))
    request = f"Add a last column {head}_length with the number of characters of {head} in every row."
    return _Change("computed", request, replace(grid, cells=cells))


def _delete(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    cells = tuple((row[0], *row[2:]) for row in grid.cells)
    return _Change("delete", "Delete the second column.", replace(grid, cells=cells))


def _move(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    rows = list(grid.cells[1:])
    old = rng.randrange(len(rows))
    named = _named(grid, table, old + 1)
    moved = rows.pop(old)
    if old == 0:
        rows.append(moved)
        where = "last"
    else:
        rows.insert(0, moved)
        where = "first"
    return _Change("move", f"Move {named} so that it comes {where}.", replace(grid, cells=(grid.cells[0], *rows)))


def _sort(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    column = rng.choice([i for i in range(len(table.columns)) if table.kind(i) is not tuple])
    down = rng.random() < 0.5
    order = sorted(range(len(table.rows)), key=lambda i: table.rows[i][column], reverse=down)
    cells = (grid.cells[0], *(grid.cells[i + 1] for i in order))
    how = "largest first" if down else "smallest first"
    what = "as numbers" if table.kind(column) is int else "as text, by code points"
    request = f"Sort the rows by {grid.cells[0][column]} {what}, {how}; equal rows keep their order."
    return _Change("sort", request, replace(grid, cells=cells))


def _pad(rng: random.Random, grid: Grid, table: tables.Table) -> _Change:
    request = "Pad the cells with spaces so that every column is as wide as its longest cell."
    return _Change("pad", request, replace(grid, padded=True))


_KINDS: Final[tuple[_Kind, ...]] = (_cell, _computed, _sort, _delete, _move, _pad)
