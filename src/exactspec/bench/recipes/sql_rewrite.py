"""SQL rewrite: queries come back with small systematic changes; table and column names repeat many times."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, pick, user
from exactspec.bench.recipes.materials import Materials

_TEXTS: Final = ("name", "city", "category", "label", "owner", "region", "comment")
_NUMBERS: Final = ("amount", "price", "weight", "score", "duration", "level", "quantity")
_STATUSES: Final = ("open", "closed", "late", "new")
_WORD: Final = re.compile(r"\w+")
_MOST_TABLES = 150
_ROWS = 30  # of each table, when a rewrite is run beside the original
_TABLES_PER_QUERY = 4


@dataclass(frozen=True, slots=True)
class Table:
    """A table with an id, a reference to a `parent` (None: a number), one status, texts and whole numbers."""

    name: str
    parent: str | None
    texts: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"{self.parent}_id" if self.parent else "source_id"

    def ddl(self) -> str:
        """Its CREATE TABLE."""
        columns = ["id INTEGER PRIMARY KEY", f"{self.reference} INTEGER", "status TEXT"]
        columns += [f"{name} TEXT" for name in self.texts] + [f"{name} INTEGER" for name in self.numbers]
        return f"CREATE TABLE {self.name} (\n  " + ",\n  ".join(columns) + "\n);"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What is asked for, and the reply. `pairs`: each query with what SQLite can run of its rewrite, on the tables
    `ddl` and `new_ddl`; on data with every status `status`, if that is given, both must give the same rows."""

    request: str
    text: str
    pairs: list[tuple[str, str]]
    ddl: list[str]
    new_ddl: list[str]
    status: str | None = None

    def check(self) -> None:
        """ValueError if a query gives other rows after the rewrite than before it, on the same random data."""
        used = [i for i, table in enumerate(self.ddl) if any(_named(table, query) for query, _ in self.pairs)]
        one, other = (random_database([each[i] for i in used], status=self.status) for each in (self.ddl, self.new_ddl))
        try:
            for query, changed in self.pairs:
                if one.execute(query).fetchall() != other.execute(changed).fetchall():
                    raise ValueError(f"sql_rewrite: the rewrite changes the result of {query}")
        finally:
            one.close()
            other.close()


def _named(ddl: str, query: str) -> bool:
    return re.search(rf"\b{ddl.split()[2]}\b", query) is not None


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A seeded schema as DDL, and queries with CTEs, joins and CASE, one for every four tables.

    Variants: `rename`, a column everywhere; `filter`, one condition more in every CTE; `dialect`, IFNULL, back-ticks
    and LIMIT to standard SQL; `subquery`, each becomes a CTE; `explain`, a sentence on each CTE and then the query
    again. Where SQLite runs both, the rewrite must give the original's rows on random data. Raises ValueError if no
    number of tables gives the size.
    """
    rng = random.Random(seed)
    variant = pick(tuple(_VARIANTS), seed)
    rewrites: dict[int, _Rewrite] = {}
    draft = fit_draft(
        "sql_rewrite", rng, size, count, lambda attempt: _plan(attempt, size, materials, variant, rewrites)
    )
    rewrites[draft.units].check()
    return draft


def _plan(rng: random.Random, size: int, materials: Materials, variant: str, rewrites: dict[int, _Rewrite]) -> Plan:
    """`rewrites`: filled with what was built, by the number of tables."""
    tables = _schema(rng, [name for name in materials.package_names() if 3 < len(name) < 12], 1 if size < 4000 else 4)
    longest = 1 if size < 1000 else rng.randint(2, 3)
    base = rng.getrandbits(64)
    rewrites.clear()

    def build(n: int) -> Draft | None:
        if n < 2:
            return None
        some = tables[:n]
        # A query is the same however many tables and queries follow.
        queries = [
            _query(random.Random(base + i), tables[: _TABLES_PER_QUERY * i + 2], variant, i, longest)
            for i in range(max(1, n // _TABLES_PER_QUERY))
        ]
        rewrites[n] = rewrite = _VARIANTS[variant](random.Random(base), some, queries)
        shown = "\n\n".join(table.ddl() for table in some) + f"\n\nQueries:\n\n{_all(queries)}"
        ask = f"These are the tables of a database.\n\n{shown}\n\n{rewrite.request} Write nothing else."
        return Draft(user(ask), rewrite.text, ("library module names",), n, variant)

    return len(tables), build


def _schema(rng: random.Random, names: Sequence[str], fewest: int) -> list[Table]:
    """`fewest`: columns of text, and of numbers, that a table has at least."""
    chosen = rng.sample(list(names), min(_MOST_TABLES, len(names)))
    tables: list[Table] = []
    for i, name in enumerate(chosen):
        parent = chosen[rng.randrange(max(0, i - 4), i)] if i else None
        kinds = tuple(f"{name}_{kind}" for kind in rng.sample(_TEXTS, rng.randint(fewest, fewest + 2)))
        numbers = tuple(f"{name}_{number}" for number in rng.sample(_NUMBERS, rng.randint(fewest, fewest + 2)))
        tables.append(Table(name, parent, kinds, numbers))
    return tables


def _query(rng: random.Random, tables: Sequence[Table], variant: str, number: int, longest: int) -> str:
    """A chain of a table and its parents, a CTE for each, joined and summed up."""
    table = rng.choice(tables[1:])
    by_name = {each.name: each for each in tables}
    chain = [table]
    while chain[-1].parent is not None and len(chain) < longest:
        chain.append(by_name[chain[-1].parent])
    quote = "`" if variant == "dialect" else ""

    def q(name: str) -> str:
        return f"{quote}{name}{quote}"

    ctes = []
    for each in chain:
        columns = ["id", each.reference, "status", *each.texts[:2], *each.numbers[:2]]
        first, last = each.numbers[0], each.numbers[-1]
        listed = ",\n    ".join(q(name) for name in columns)
        ctes.append(
            f"{each.name}_part AS (\n  SELECT\n    {listed},\n    IFNULL({q(last)}, 0) AS {last}_known\n"
            f"  FROM {q(each.name)}\n  WHERE {q(first)} > {rng.randrange(5, 40)}\n)"
        )
    aliases = [f"{each.name}_part" for each in chain]
    joins = "".join(
        f"\nJOIN {alias} ON {alias}.{q('id')} = {below}.{q(each.reference)}"
        for each, below, alias in zip(chain, aliases, aliases[1:], strict=False)
    )
    top, bottom = chain[-1], chain[0]
    group = f"{aliases[-1]}.{q(top.texts[0])}"
    sums = f"SUM({aliases[0]}.{bottom.numbers[-1]}_known)"
    case = (
        f"CASE WHEN {sums} > {rng.randrange(50, 400)} THEN 'large' WHEN {sums} > {rng.randrange(5, 50)} "
        f"THEN 'medium' ELSE 'small' END"
    )
    where = ""
    if variant == "subquery":
        where = (
            f"\nWHERE {aliases[0]}.id IN (SELECT id FROM {bottom.name} WHERE status = '{rng.choice(_STATUSES)}' "
            f"AND {bottom.numbers[-1]} < {rng.randrange(50, 95)})"
        )
    return (
        f"WITH {', '.join(ctes)}\nSELECT\n  {group} AS grouped_{number},\n  COUNT(*) AS how_many,\n"
        f"  {sums} AS total_{bottom.numbers[-1]},\n  {case} AS size_class\nFROM {aliases[0]}{joins}{where}\n"
        f"GROUP BY {group}\nORDER BY how_many DESC, grouped_{number}\nLIMIT {rng.randrange(5, 50)};"
    )


def _all(queries: Sequence[str]) -> str:
    return "```sql\n" + "\n\n".join(queries) + "\n```"


def _rewrite(
    request: str,
    queries: Sequence[str],
    changed: Sequence[str],
    ddl: list[str],
    *,
    new_ddl: list[str] | None = None,
    status: str | None = None,
) -> _Rewrite:
    pairs = list(zip(queries, changed, strict=True))
    return _Rewrite(request, _all(changed), pairs, ddl, ddl if new_ddl is None else new_ddl, status)


def _rename(rng: random.Random, tables: Sequence[Table], queries: Sequence[str]) -> _Rewrite:
    renamed: dict[str, str] = {}
    columns = {name for table in tables for name in (*table.texts, *table.numbers)}
    for query in queries:  # one of each, so that no query stays as it is
        used = set(_WORD.findall(query)) & columns
        old = rng.choice(sorted(used))
        renamed[old] = "_".join(reversed(old.split("_"))) + "_value"

    def renew(text: str) -> str:
        return _WORD.sub(lambda found: renamed.get(found[0], found[0]), text)

    changed = [renew(query) for query in queries]
    listed = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
    request = f"These columns have new names: {listed}. Write all queries again with them; aliases made of them stay."
    ddl = [table.ddl() for table in tables]
    return _rewrite(request, queries, changed, ddl, new_ddl=[renew(statement) for statement in ddl])


def _filter(rng: random.Random, tables: Sequence[Table], queries: Sequence[str]) -> _Rewrite:
    """Results may differ from the originals'; on tables that hold nothing else they may not."""
    status = rng.choice(_STATUSES)
    where = re.compile(r"(?m)^(  WHERE .*)$")
    changed = [where.sub(rf"\1 AND status = '{status}'", query) for query in queries]
    request = f"Add AND status = '{status}' to the WHERE of every CTE, at its end, and write all queries again."
    return _rewrite(request, queries, changed, [table.ddl() for table in tables], status=status)


def _dialect(rng: random.Random, tables: Sequence[Table], queries: Sequence[str]) -> _Rewrite:
    def standard(query: str) -> str:
        query = query.replace("IFNULL(", "COALESCE(").replace("`", '"')
        return re.sub(r"LIMIT (\d+);", r"FETCH FIRST \1 ROWS ONLY;", query)

    changed = [standard(query) for query in queries]
    request = (
        "Write all queries again in standard SQL: COALESCE for IFNULL, double quotes for back-ticks, and FETCH FIRST n "
        "ROWS ONLY for LIMIT n."
    )
    # SQLite knows no FETCH FIRST: that part is taken back for the check.
    runnable = [re.sub(r"FETCH FIRST (\d+) ROWS ONLY;", r"LIMIT \1;", query) for query in changed]
    ddl = [table.ddl() for table in tables]
    return _Rewrite(request, _all(changed), list(zip(queries, runnable, strict=True)), ddl, ddl)


def _subquery(rng: random.Random, tables: Sequence[Table], queries: Sequence[str]) -> _Rewrite:
    inner = re.compile(r"IN \((SELECT id FROM (\w+) WHERE [^()]*)\)")
    changed = []
    for query in queries:
        found = inner.search(query)
        assert found is not None
        name = f"chosen_{found[2]}"
        query = inner.sub(f"IN (SELECT id FROM {name})", query)
        changed.append(query.replace("\n)\nSELECT\n", f"\n), {name} AS (\n  {found[1]}\n)\nSELECT\n", 1))
    request = (
        "In every query, turn the subquery in the WHERE into a last CTE named chosen_ and the name of its table, and "
        "select id from that. Write all queries again."
    )
    return _rewrite(request, queries, changed, [table.ddl() for table in tables])


def _explain(rng: random.Random, tables: Sequence[Table], queries: Sequence[str]) -> _Rewrite:
    parts = []
    for query in queries:
        ctes = re.findall(r"(\w+) AS \(\n  SELECT[^)]*?\b(\w+), 0\)[^)]*?FROM (\w+)\n  WHERE (.*)", query)
        lines = [
            f"- {name} takes from {table} what has {condition}, and puts 0 where {column} is missing."
            for name, column, table, condition in ctes
        ]
        parts.append("\n".join(lines) + f"\n\n```sql\n{query}\n```")
    request = (
        "Explain the CTEs of each query, one line each (what it takes from which table, and where it puts 0), and then "
        "write the query again without a change."
    )
    return _Rewrite(request, "\n\n".join(parts), [], [], [])


def random_database(ddl: Sequence[str], *, status: str | None = None) -> sqlite3.Connection:
    """A database in memory with the tables and the same random rows for the same shapes; every status is `status`,
    if that is given."""
    database = sqlite3.connect(":memory:")
    for number, statement in enumerate(ddl):
        rng = random.Random(number)
        database.execute(statement)
        name = statement.split()[2]
        columns = database.execute(f"PRAGMA table_info({name})").fetchall()
        for i in range(1, _ROWS + 1):
            row: list[object] = [i, rng.randrange(1, _ROWS + 1), status or rng.choice(_STATUSES)]
            for column in columns[3:]:
                known = rng.random() < 0.9
                value = rng.randrange(0, 100) if column[2] == "INTEGER" else f"v{rng.randrange(6)}"
                row.append(value if known else None)
            database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
    return database


_VARIANTS: Final[dict[str, Callable[[random.Random, Sequence[Table], Sequence[str]], _Rewrite]]] = {
    "rename": _rename,
    "dialect": _dialect,
    "filter": _filter,
    "subquery": _subquery,
    "explain": _explain,
}
