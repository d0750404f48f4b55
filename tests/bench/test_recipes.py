"""Gold replies, computed a second time in other ways; the share that can be copied; what is done without materials."""

from __future__ import annotations

import ast
import csv
import io
import json
import random
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bench.piece_tokenizer import PieceTokenizer

from exactspec.bench.recipes.materials import Materials
from exactspec.bench.workloads import Workload, build

TOKENIZER = PieceTokenizer()
SHARES = {  # of docs/benchmarks.md: least and most of the gold that can be copied
    "code_edit": (0.9, 1.0),
    "rename": (0.8, 1.0),
    "rag_quotes": (0.4, 0.9),
    "json_reemit": (0.9, 1.0),
    "glossary": (0.1, 0.7),
    "log_evidence": (0.3, 0.7),
    "revise": (0.8, 1.0),
    "agent": (0.35, 0.95),
    "csv_json": (0.75, 1.0),
    "md_table": (0.85, 1.0),
    "legal": (0.65, 1.0),
    "sql_rewrite": (0.65, 1.0),
}


@cache
def made(recipe: str, seed: int, size: int = 900) -> Workload:
    return build(recipe, tokenizer=TOKENIZER, size=size, seed=seed)


def prompt_of(workload: Workload) -> str:
    return workload.messages[-1]["content"]


def of_variants(recipe: str, seeds: int, size: int = 900) -> dict[str, list[Workload]]:
    """Workloads of the first seeds, by the first word of their variant."""
    found: dict[str, list[Workload]] = {}
    for seed in range(seeds):
        workload = made(recipe, seed, size)
        found.setdefault(workload.meta.variant.split(" ")[0], []).append(workload)
    return found


@pytest.mark.parametrize("recipe", sorted(SHARES))
def test_share_that_can_be_copied(recipe: str) -> None:
    least, most = SHARES[recipe]
    for seed, size in ((0, 900), (1, 900), (0, 2048)):
        workload = made(recipe, seed, size)
        assert least <= workload.meta.copy_share <= most, workload.id
        assert abs(workload.meta.prompt_tokens - size) <= 0.05 * size


def code_of(workload: Workload) -> str:
    return prompt_of(workload).split("```python\n")[1].split("```")[0]


def patched(before: str, diff: str) -> str:
    """A unified diff, applied by its line numbers."""
    lines, out, at = before.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(re.match(r"@@ -(\d+)", line)[1])  # type: ignore[index]
            out += lines[at : start - 1]
            at = start - 1
        elif line.startswith("+"):
            out.append(line[1:])
        else:
            assert lines[at] == line[1:]
            if line.startswith(" "):
                out.append(lines[at])
            at += 1
    return "".join(out + lines[at:])


def test_code_edit_does_what_it_says() -> None:
    asked = set()
    for seed in range(12):
        workload = made("code_edit", seed, 1500)
        before, gold = code_of(workload), workload.gold
        tree = ast.parse(gold)
        number, style = workload.meta.variant.split()
        if style == "diff":
            assert patched(before, prompt_of(workload).split("```diff\n")[1].split("```")[0]) == gold
        else:
            request = prompt_of(workload).split("```\n\n")[1]
            edits = re.findall(r"^\d+\. (.*)$", request, re.MULTILINE) or [request.splitlines()[0]]
            assert len(edits) == (1 if number == "twins" else int(number))
            functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
            for edit in edits:
                kind, done = edited_as(edit, gold, functions)
                assert done, edit
                asked.add(kind)
        if number == "twins":
            (twin,) = [f.name for f in ast.parse(before).body if isinstance(f, ast.FunctionDef) and "_again" in f.name]
            kept = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == twin.removesuffix("_again")]
            was = [f for f in ast.parse(before).body if isinstance(f, ast.FunctionDef) and f.name == kept[0].name]
            assert ast.dump(kept[0]) == ast.dump(was[0])
    assert len(asked) >= 3


def edited_as(edit: str, gold: str, functions: list[Any]) -> tuple[str, bool]:
    """Which kind of edit that is, and whether the text shows it."""
    if found := re.match(r'Give the function (\w+) .* the docstring "(.*)"', edit):
        return "docstring", any(f.name == found[1] and ast.get_docstring(f) == found[2] for f in functions)
    if found := re.match(r"At the top of the function (\w+) .*, return None if (\w+) is None", edit):
        tests = [ast.unparse(f.body[0]) for f in functions if f.name == found[1]]
        return "guard", f"if {found[2]} is None:\n    return None" in tests
    if found := re.match(r"In the function (\w+) .* to (\w+)\.", edit):
        return "default", any(found[2] in map(ast.unparse, f.args.defaults) for f in functions if f.name == found[1])
    if found := re.match(r"Delete the method (\w+) of the class (\w+)", edit):
        classes = [c for c in ast.walk(ast.parse(gold)) if isinstance(c, ast.ClassDef) and c.name == found[2]]
        names = [getattr(member, "name", "") for c in classes for member in c.body]
        return "delete", found[1] not in names
    found = re.match(r"Import (\w+) .*the function (\w+) .*statement (.*)\.$", edit)
    assert found
    begins = any(ast.unparse(f.body[0]).replace("'", '"') == found[3] for f in functions if f.name == found[2])
    return "import", f"import {found[1]}\n" in gold and begins


class Renamer(ast.NodeTransformer):
    """Identifiers in every field of the tree that holds one, dotted names part by part."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                setattr(node, name, ".".join(self.names.get(part, part) for part in value.split(".")))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self.names.get(name, name) for name in node.names]
        return super().generic_visit(node)


class Unhinted(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        if isinstance(node.annotation, ast.Name) and node.annotation.id == "object":
            node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        assert node.returns is not None
        if isinstance(node.returns, ast.Name) and node.returns.id == "object":
            node.returns = None
        return self.generic_visit(node)


def test_rename_gives_the_same_tree_with_other_names() -> None:
    found = of_variants("rename", 8)
    assert set(found) == {"name", "camel", "class", "hints"}
    for variant, workloads in found.items():
        for workload in workloads:
            before, gold = code_of(workload), workload.gold
            request = prompt_of(workload).split("```\n\n")[1]
            assert before != gold
            if variant == "hints":
                assert ast.dump(Unhinted().visit(ast.parse(gold))) == ast.dump(ast.parse(before))
                continue
            names = dict(re.findall(r"(\w+) -> (\w+)", request)) or dict(re.findall(r"(\w+) to (\w+)", request)[:1])
            if variant == "class":
                ((old, new),) = names.items()
                words = re.split(r"(\W+)", before)
                assert "".join(new if word == old else word for word in words) == gold
            else:
                assert ast.dump(Renamer(names).visit(ast.parse(before))) == ast.dump(ast.parse(gold))
                assert re.findall(r"#.*", before) == re.findall(r"#.*", gold) or "#" in before  # comments stay


def test_rag_quotes_the_right_passages() -> None:
    found = of_variants("rag_quotes", 6)
    assert set(found) == {"terms", "near_copies", "no_passage"}
    for variant, workloads in found.items():
        for workload in workloads:
            *body, question = prompt_of(workload).split("\n\n")
            passages = {text.split(" ", 1)[0]: text.split(" ", 1)[1] for text in body}
            terms = re.findall(r'"([a-z]+)"', question.split("?")[0])
            answers = workload.gold.split("\n\n")
            for term, answer in zip(terms, answers, strict=False):
                holding = {n for n, text in passages.items() if re.search(rf"(?i)\b{term}\b", text)}
                assert set(re.findall(r"\[P\d+\]", answer)) == holding
                for line in answer.splitlines()[1:] if holding else []:
                    number = re.search(r"\[P\d+\]", line)[0]  # type: ignore[index]
                    quoted = line.split('"', 1)[1].removesuffix('"')
                    assert quoted in passages[number]
                    assert re.search(rf"(?i)\b{term}\b", quoted)
                assert holding or answer.endswith("No passage speaks of it.")
            if variant == "near_copies":
                word = re.search(r'says "(\w+)"', question)[1]  # type: ignore[index]
                number, text = re.search(r'(\[P\d+\]): "(.*)"$', answers[-1]).groups()  # type: ignore[union-attr]
                assert passages[number] == text
                assert word in text
                near = [p for p in passages.values() if len(set(p.split()) ^ set(text.split())) <= 2]
                assert len(near) == 3
            assert ("No passage" in workload.gold) == (variant == "no_passage")


def test_json_is_what_the_request_makes_of_it() -> None:
    kinds, minified = set(), 0
    for seed in range(10):
        workload = made("json_reemit", seed)
        shown = prompt_of(workload).split("```json\n")[1].split("\n```")[0]
        request = prompt_of(workload).rsplit("\n\n", 1)[1]
        before, gold = json.loads(shown), json.loads(workload.gold)
        kinds.add(workload.meta.variant.split()[0])
        minified += "minified" in workload.meta.variant
        assert ("\n" in shown) != ("minified" in workload.meta.variant)
        if found := re.match(r"Set the score to (\d+) in the record whose (\w+) is (.*?)\. (?:Keep|Indent)", request):
            (record,) = [r for r in before if r[found[2]] == json.loads(found[3])]
            text = json.dumps(record)
            before[before.index(record)] = json.loads(re.sub(r'"score": \d+', f'"score": {found[1]}', text))
        elif request.startswith("Drop"):
            before = json.loads(re.sub(r'"by": "[^"]*", |, "by": "[^"]*"', "", json.dumps(before)))
        elif found := re.match(r'Rename the key "(\w+)" to "(\w+)"', request):
            before = json.loads(json.dumps(before).replace(f'"{found[1]}": ', f'"{found[2]}": '))
        elif request.startswith("Sort"):
            before.sort(key=lambda r: int(re.search(r'"score": (\d+)', json.dumps(r))[1]))  # type: ignore[index]
        else:
            least = int(re.search(r"at least (\d+)", request)[1])  # type: ignore[index]
            before = [r for r in before if int(re.search(r'"score": (\d+)', json.dumps(r))[1]) >= least]  # type: ignore[index]
        assert json.dumps(before) == json.dumps(gold)
    assert len(kinds) == 5
    assert minified > 0


def test_glossary_is_used_word_by_word() -> None:
    found = of_variants("glossary", 4)
    assert len(found) == 4
    for workload in (workloads[0] for workloads in found.values()):
        head, text = prompt_of(workload).split("\n\n---\n\n")
        glossary = dict(line.split(" = ") for line in head.split("\n\n")[1].splitlines())
        assert len(set(glossary.values())) == len(glossary)
        translated = 0
        for old, new in zip(text.split(), workload.gold.split(), strict=True):
            core = old.rstrip(".,")
            if core.lower() in glossary:
                assert new.rstrip(".,").lower() == glossary[core.lower()].lower()
                assert new[len(new.rstrip(".,")) :] == old[len(core) :]
                translated += 1
            else:
                assert new == old
        assert translated > 20


def test_log_evidence_is_in_the_log() -> None:
    workload = made("log_evidence", 0, 2048)
    log = prompt_of(workload).split("\n\n", 1)[1].splitlines()
    quoted = re.findall(r"`(.*)`", workload.gold)
    places = [log.index(line) for line in quoted]
    assert places == sorted(places)
    assert len(set(places)) == 6
    assert len({line.split()[1] for line in quoted}) == 1
    worker = re.search(r"worker (\d+)", quoted[1])[1]  # type: ignore[index]
    of_worker = [line for line in log if f"worker {worker} " in line]
    assert of_worker == quoted[1:]
    assert [line[:8] for line in log] == sorted(line[:8] for line in log) or log[0][:2] == "23"
    assert len(workload.gold.rsplit("\n\n", 1)[1].split(". ")) == 3


def revised(request: str, text: str, versions: list[str]) -> str:
    """A request of `revise`, carried out on the text."""
    if found := re.search(r'Replace the word "(\w+)" by "(\w+)"', request):
        return "".join(found[2] if word == found[1] else word for word in re.split(r"(\W+)", text))
    if "lower case" in request:
        return text.lower()
    if found := re.search(r'Add the sentence "(.*)" at', request):
        return "\n\n".join(f"{paragraph} {found[1]}" for paragraph in text.split("\n\n"))
    if "bullet" in request:
        return "\n\n".join(f"- {paragraph}" for paragraph in text.split("\n\n"))
    if "Undo" in request:
        return versions[-2]
    for old, new in re.findall(r"(\w+) -> (\w+)", request):
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def test_revise_computes_every_turn() -> None:
    kinds = set()
    for seed in range(8):
        workload = made("revise", seed, 1200)
        versions = [workload.messages[1]["content"]]
        assert 1 <= len(workload.turns) <= 6
        for turn in workload.turns:
            request = workload.messages[turn.before - 1]["content"]
            base = versions[0] if request.startswith("Forget") else versions[-1]
            assert turn.gold != base
            if "every third sentence" in request:
                kinds.add("third")
                assert turn.gold.split() == [w for w in turn.gold.split() if w in base.split()]
                assert 0.4 * len(base) < len(turn.gold) < 0.95 * len(base)
            else:
                assert turn.gold == revised(request, base, versions)
                kinds.add(request[:12])
            versions.append(turn.gold)
        assert (workload.meta.variant == "older") == any(m["content"].startswith("Forget") for m in workload.messages)
    assert len(kinds) >= 4


def test_revise_counts_sentences_through_the_whole_text(tmp_path: Path) -> None:
    sentences = [f"Item {n} of the list is kept in box {7 * n}." for n in range(150)]
    paragraphs = [" ".join(sentences[i : i + 3 + i % 2]) for i in range(0, 140, 5)]
    (tmp_path / "boxes.py").write_text('"""' + "\n\n".join(paragraphs) + '\n"""\n' + "x = 1\n" * 500)
    asked = 0
    for seed in range(30):
        materials = Materials(library=tmp_path)
        workload = build("revise", tokenizer=TOKENIZER, size=600, seed=seed, materials=materials)
        first, request, *_ = (message["content"] for message in workload.messages[1:])
        if "every third sentence" in request:
            asked += 1
            before = re.findall(r"Item .*?\.", first)
            kept = [sentence for i, sentence in enumerate(before) if i not in range(2, len(before), 3)]
            assert re.findall(r"Item .*?\.", workload.turns[0].gold) == kept
    assert asked > 1


def test_agent_quotes_what_it_read() -> None:
    edits = 0
    for seed in range(5):
        workload = made("agent", seed, 2048)
        assert 1 <= len(workload.turns) <= 3
        history = [*workload.messages, {"role": "assistant", "content": workload.gold}]
        calls = [json.loads(m["content"].splitlines()[-1]) for m in history if m["role"] == "assistant"]
        results = [m["content"].removeprefix("Result:\n") for m in history if m["content"].startswith("Result:\n")]
        assert len(results) == len(calls) - 1
        assert calls[0]["tool"] == "list_dir"
        for call, seen in zip(calls[1:], results, strict=True):
            if call["tool"] == "edit":
                read = "\n".join(line[7:] for line in seen.splitlines())
                assert call["old"] in read
                assert call["new"] != call["old"]
                edits += 1
        for call, result in zip(calls, results, strict=False):
            if call["tool"] == "edit":
                assert result == f"{call['path']}: 1 place changed"
            if call["tool"] == "grep" and result != "nothing found":
                assert all(call["pattern"] in line or line.startswith("...") for line in result.splitlines())
    assert edits > 5


def test_csv_and_json_hold_the_same() -> None:
    found = of_variants("csv_json", 9)
    assert set(found) == {"lines", "indented", "to_csv"}
    for variant, workloads in found.items():
        for workload in workloads:
            rules, shown = prompt_of(workload).split("\n\n", 1)
            if variant == "to_csv":
                text, records = workload.gold, json.loads(shown)
            else:
                text = shown
                records = json.loads(
                    workload.gold if variant == "indented" else f"[{','.join(workload.gold.split(chr(10)))}]"
                )
            head, *rows = csv.reader(io.StringIO(text))
            assert len(rows) == len(records) == workload.meta.units
            for row, record in zip(rows, records, strict=True):
                assert row == [";".join(v) if isinstance(v, list) else str(v) for v in record.values()]
            if variant == "to_csv":
                assert dict(re.findall(r"(\w+) -> (\w+)", rules)) == dict(zip(records[0], head, strict=True))
            else:
                assert ", ".join(records[0]) in rules
                numbers = re.search(r" ([\w, ]+): numbers", rules)
                told = numbers[1].split(", ") if numbers else []
                assert told == [key for key, value in records[0].items() if isinstance(value, int)]


def cells_of(table: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line[1:-1].split(" |")] for line in table.splitlines() if line.startswith("|")]
    return [rows[0], *rows[2:]]


def test_md_table_edits_cells() -> None:
    kinds = set()
    for seed in range(12):
        workload = made("md_table", seed)
        request, before = prompt_of(workload).split("\n\n", 1)
        head, *old = cells_of(before)
        new_head, *new = cells_of(workload.gold)
        kind = workload.meta.variant.split()[0]
        kinds.add(kind)
        if kind == "delete":
            assert [[r[0], *r[2:]] for r in (head, *old)] == [new_head, *new]
        elif kind == "computed":
            column = head.index(new_head[-1].removesuffix("_length"))
            assert [[*r, str(len(r[column].replace("\\|", "|")))] for r in old] == new
        elif kind == "move":
            named = re.search(r"the row whose (\w+) is (.*) so that it comes (\w+)\.", request)
            assert named
            (row,) = [r for r in old if r[head.index(named[1])] == named[2]]
            rest = [r for r in old if r is not row]
            assert new == ([*rest, row] if named[3] == "last" else [row, *rest])
        elif kind == "cell":
            changed = [(a, b) for x, y in zip(old, new, strict=True) for a, b in zip(x, y, strict=True) if a != b]
            assert len(changed) == 1
            assert f'should be "{changed[0][1]}"' in request
        elif kind == "sort":
            column = head.index(re.search(r"by (\w+) as", request)[1])  # type: ignore[index]
            keys: list[Any] = [int(r[column]) if "as numbers" in request else r[column] for r in new]
            assert keys == sorted(keys, reverse="largest first" in request)
            assert sorted(new) == sorted(old)
        else:
            assert old == new
            assert len({len(line) for line in workload.gold.splitlines() if line.startswith("|")}) == 1
        page = [line for line in before.splitlines() if not line.startswith("|")]
        assert page == [line for line in workload.gold.splitlines() if not line.startswith("|")]
    assert len(kinds) == 6


def test_legal_texts_are_those_of_the_documents() -> None:
    found = of_variants("legal", 6, 2048)
    assert set(found) == {"extract", "parties", "differences"}
    for workload in (w for variant in ("extract", "parties") for w in found[variant]):
        body, ask = prompt_of(workload).split("\n\n---\n\n")
        documents = {part.split("\n")[0].removeprefix("# "): part for part in re.split(r"\n\n(?=# )", body)}
        listed = dict(re.findall(r"^- (\w+): (.*)$", ask, re.MULTILINE))
        answer = json.loads(workload.gold)
        assert list(answer) == list(listed)
        back = {new: old for old, new in re.findall(r'"(\w+)" by "(\w+)"', ask)}
        for topic, value in answer.items():
            document = documents[listed[topic]]
            section = re.search(rf"(?m)^(\d+)\. {topic.capitalize()}\n(.*)$", document)
            if value is None:
                assert section is None
            else:
                assert section
                text = "".join(back.get(word, word) for word in re.split(r"(\W+)", value["text"]))
                assert (value["document"], value["section"], text) == (listed[topic], section[1], section[2])
        assert bool(back) == (workload.meta.variant == "parties")
    for workload in found["differences"]:
        first, second = prompt_of(workload).split("# SECOND VERSION")
        pairs = re.findall(r'first: "(.*)"\nsecond: "(.*)"', workload.gold)
        for old, new in pairs:
            assert old in first
            assert new in second
        lines = zip(first.split("\n\n", 1)[1].splitlines(), second.strip().splitlines(), strict=False)
        assert sum(a != b for a, b in lines) == len(pairs)


def test_sql_gives_the_same_rows() -> None:
    found = of_variants("sql_rewrite", 10)
    assert set(found) == {"rename", "filter", "dialect", "subquery", "explain"}
    for variant, workloads in found.items():
        workload = workloads[-1]
        prompt = prompt_of(workload)
        ddl = re.findall(r"CREATE TABLE [^;]*;", prompt)
        queries, rewritten = (
            re.search(r"```sql\n(.*?)\n```", text, re.DOTALL)[1].split("\n\n")  # type: ignore[index]
            for text in (prompt, workload.gold)
        )
        assert len(queries) == len(rewritten)
        names = dict(re.findall(r"(\w+) -> (\w+)", prompt))
        other = [re.sub(r"\w+", lambda m, names=names: names.get(m[0], m[0]), statement) for statement in ddl]
        status = re.search(r"Add AND status = '(\w+)'", prompt)
        results = [rows_of(ddl, queries, status and status[1]), rows_of(other, rewritten, status and status[1])]
        assert results[0] == results[1], variant
        assert any(results[0])
        if variant != "explain":
            assert all(a != b for a, b in zip(queries, rewritten, strict=True))
        if variant == "dialect":
            assert not re.search(r"`[a-z]|IFNULL|LIMIT", "\n".join(rewritten))
            assert workload.gold.count("COALESCE(") == prompt.split("Queries:")[1].count("IFNULL(")


def rows_of(ddl: list[str], queries: list[str], status: str | None) -> list[list[Any]]:
    """What the queries give on random numbers; FETCH FIRST, which SQLite lacks, is read as LIMIT."""
    database = sqlite3.connect(":memory:")
    for table, statement in enumerate(ddl):
        rng = random.Random(table)
        database.execute(statement)
        columns = re.findall(r"^  \w+ (\w+)", statement, re.MULTILINE)
        for i in range(1, 41):
            tail = [rng.randrange(100) if kind == "INTEGER" else f"t{rng.randrange(4)}" for kind in columns[3:]]
            row = [i, rng.randrange(1, 41), status or rng.choice(("open", "closed", "late", "new")), *tail]
            database.execute(f"INSERT INTO {statement.split()[2]} VALUES ({','.join('?' * len(row))})", row)
    found = [
        database.execute(re.sub(r"FETCH FIRST (\d+) ROWS ONLY", r"LIMIT \1", query)).fetchall() for query in queries
    ]
    database.close()
    return found


def test_without_system_files_there_is_a_fallback(tmp_path: Path) -> None:
    bare = Materials(system=tmp_path)
    for recipe in ("no_copy", "false_friend", "legal_licences"):
        workload = build(recipe, tokenizer=TOKENIZER, size=1024, seed=0, materials=bare)
        assert abs(workload.meta.prompt_tokens - 1024) <= 51
        assert not any(name.startswith("/") for name in workload.meta.files)


def test_licences_are_used_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "usr/share/common-licenses"
    folder.mkdir(parents=True)
    sections = "\n".join(
        f"  {i}. {title}.\n\nThe holder {word} this part {i} as is, and nothing beyond it is given.\n"
        for i, (title, word) in enumerate((("Warranty", "offers no warranty for"), ("End", "may terminate")), 1)
    )
    (folder / "GPL-3").write_text(f"A LICENCE\n\n{sections}")
    workload = build("legal_licences", tokenizer=TOKENIZER, size=900, seed=0, materials=Materials(system=tmp_path))
    assert workload.meta.files == ("/usr/share/common-licenses/GPL-3",)
    answer = json.loads(workload.gold)
    assert (
        answer["warranty"] is None
        or "GPL-3" not in answer["warranty"]["document"]
        or (answer["warranty"]["text"].startswith("Warranty. The holder offers"))
    )
    assert "1. Warranty\nWarranty. The holder offers no warranty" in prompt_of(workload)


def test_same_python_library_wherever_it_lies(tmp_path: Path) -> None:
    """A copy of the library at another place gives the same bytes."""
    here = Materials()
    for name, path in here.library_files(2_000, 6_000)[:150]:
        target = tmp_path / "lib" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "lib/site-packages").mkdir()
    (tmp_path / "lib/site-packages/other.py").write_text("x = 1\n" * 900)
    moved = Materials(library=tmp_path / "lib")
    one = build("code_edit", tokenizer=TOKENIZER, size=512, seed=0, materials=moved)
    (tmp_path / "lib").rename(tmp_path / "elsewhere")
    again = build(
        "code_edit", tokenizer=TOKENIZER, size=512, seed=0, materials=Materials(library=tmp_path / "elsewhere")
    )
    assert one == again
    assert "site-packages" not in one.meta.files[0]
