"""A trace says what happened: trees, accepted paths, and texts that harm no terminal and no page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from scripted import ByteTokenizer, IdTokenizer, Oracle, RandomTree, hash_target, script_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.results import Completion
from exactspec.trace.page import page
from exactspec.trace.steps import Trace, in_order, shown, trace_of
from exactspec.trace.table import table

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3


def drafted(seed: int = 0, tokens: int = 60, **options: Any) -> tuple[Completion, Engine]:
    plain = Engine(hash_target(), IdTokenizer(97), draft="none").generate(PROMPT, SamplingParams(max_tokens=tokens))
    drafter = RandomTree(vocab_size=97, text=[*PROMPT, *plain.token_ids], seed=seed, nodes=12)
    engine = Engine(hash_target(), IdTokenizer(97), draft=drafter)
    return engine.generate(PROMPT, SamplingParams(max_tokens=tokens), record_steps=True, **options), engine


def trace(seed: int = 0, tokens: int = 60) -> Trace:
    done, engine = drafted(seed, tokens)
    return trace_of(done, draft="random", token_bytes=engine.tokenizer.token_bytes)


def test_steps_hold_what_was_verified_and_accepted() -> None:
    found = trace()
    done = found.completion
    history = list(PROMPT)
    accepted = 0
    for step in found.steps:
        assert step.record.context == len(history)
        assert len(step.nodes) == step.record.rows - 1
        path = [node for node in step.nodes if node.accepted]
        assert len(path) == step.record.accepted
        # The accepted nodes are a path from the root down, and what was emitted first.
        assert [node.depth for node in path] == list(range(1, len(path) + 1))
        assert [node.id for node in path] == [token.id for token in step.tokens[: len(path)]]
        assert all(token.source == "random" for token in step.tokens[: len(path)])
        for node in step.nodes:
            assert node.depth == (1 if node.parent < 0 else step.nodes[node.parent].depth + 1)
        history += [token.id for token in step.tokens]
        accepted += len(path)
        assert step.tau == pytest.approx((len(history) - len(PROMPT)) / step.number)
    assert history[len(PROMPT) :] == list(done.token_ids)
    assert accepted == done.metrics.num_accepted_tokens > 10


def test_plain_steps_and_no_record_cost_nothing() -> None:
    engine = Engine(hash_target(), IdTokenizer(97), draft="none")
    params = SamplingParams(max_tokens=5)
    assert engine.generate(PROMPT, params).steps == ()
    done = engine.generate(PROMPT, params, record_steps=True)
    found = trace_of(done, draft="none", token_bytes=engine.tokenizer.token_bytes)
    assert [step.nodes for step in found.steps] == [()] * 5
    assert "no draft" in "".join(page(found))


@pytest.mark.parametrize("seed", range(5))
def test_nodes_in_order_stand_behind_their_parents(seed: int) -> None:
    for step in trace(seed).steps:
        order = in_order(step.nodes)
        assert sorted(order) == list(range(len(step.nodes)))
        for place, number in enumerate(order):
            parent = step.nodes[number].parent
            if parent >= 0:
                # Between a node and its parent there are nodes below that parent only.
                above = order.index(parent)
                assert above < place
                assert all(step.nodes[n].depth > step.nodes[parent].depth for n in order[above + 1 : place])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b" the", "·the"),
        (b"a\nb\tc\\", "a\\nb\\tc\\\\"),
        ("é".encode(), "é"),
        ("é".encode()[:1], "\\xc3"),
        (b"ok\xff\xfe", "ok\\xff\\xfe"),
        (b"\x1b[31m", "\\u001b[31m"),
        ("\u202eabc\u2028".encode(), "\\u202eabc\\u2028"),
        ("\u00a0\U000e0001".encode(), "\\u00a0\\U000e0001"),
        (b"", "<7>"),
        (b"<script>", "<script>"),
    ],
)
def test_tokens_fit_a_line_whatever_their_bytes(data: bytes, text: str) -> None:
    assert shown(data, 7) == text


HOSTILE = b"<script>alert(1)</script> \x1b[2J\x00 \xff\xc3 \xe2\x80\xae &amp; \"quoted\" 'x' <!-- --> </code>\n"


def hostile() -> Trace:
    script = list(HOSTILE)
    engine = Engine(
        script_target(3, script), ByteTokenizer(), draft=Oracle([1, 2, 3, *script], length=6, wrong_every=4)
    )
    done = engine.generate([1, 2, 3], SamplingParams(max_tokens=len(script)), record_steps=True)
    merged = replace(done, tokens=done.tokens)
    # All of it as one token as well.
    return trace_of(merged, draft="<b>oracle</b>", token_bytes=lambda t: HOSTILE if t == ord("<") else bytes([t]))


TAGS = "html head meta title style body h1 h2 p dl dt dd div span code details summary"


class Reader(HTMLParser):
    """Every tag must close, and none may be there that the page does not write."""

    KNOWN = frozenset(TAGS.split())

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.details = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.KNOWN
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.details += tag == "details"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")


def test_the_page_is_whole_and_escapes_every_text() -> None:
    found = hostile()
    written = "".join(page(found))
    reader = Reader()
    reader.feed(written)
    reader.close()
    assert reader.open == []
    assert reader.details == len(found.steps)
    assert "<script" not in written
    assert not any(ord(c) < 32 and c != "\n" for c in written)
    assert "\u202e" not in written
    written.encode("utf-8")
    assert "<script>alert(1)</script>" in "".join(reader.text)
    assert "prefers-color-scheme: dark" in written


def test_a_thousand_steps_are_folded() -> None:
    short, long = trace(tokens=20), trace(tokens=400)
    many = replace(long, steps=tuple(replace(long.steps[i % len(long.steps)], number=i + 1) for i in range(1000)))
    written = "".join(page(many))
    assert written.count("<details>") == 1000
    assert len(written) < 8_000_000
    assert "".join(page(short)).count("<details open>") == len(short.steps)


def test_the_table_shows_steps_and_trees() -> None:
    found = trace()
    lines = list(table(found, nodes=100, color=False))
    assert len(lines) == 2 + len(found.steps) + sum(len(step.nodes) for step in found.steps)
    assert not any("\x1b" in line for line in lines)
    few = list(table(found, nodes=3, color=True))
    assert any(line.strip().startswith("... and") for line in few)
    assert len(list(table(found, nodes=0, color=False))) == 2 + len(found.steps)
    for step in found.steps:
        accepted = [f"+ {node.text}" for node in step.nodes if node.accepted]
        assert all(any(text in line for line in few) for text in accepted)
    assert not any("\x1b" in line or "\x00" in line for line in table(hostile(), nodes=50, color=False))


def test_json_holds_all_of_it() -> None:
    found = trace()
    value = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert value["token_ids"] == list(found.completion.token_ids)
    assert len(value["steps"]) == value["metrics"]["num_steps"]
    assert (
        sum(node["accepted"] for step in value["steps"] for node in step["nodes"])
        == (value["metrics"]["num_accepted_tokens"])
    )
    assert {"context", "rows", "propose_s", "verify_s", "walk_s", "tau", "nodes", "tokens"} <= value["steps"][0].keys()
    json.dumps(hostile().as_dict()).encode("utf-8")
