"""Eight clients at once, of every kind: each reply is that of its lone run, bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scripted import ByteTokenizer, hash_target
from served import Serve

from exactspec.engine import Engine

LINE = "def area(width, height):\n    return width * height\n"
BODIES: list[dict[str, Any]] = [
    {"prompt": LINE * 12, "temperature": 0, "max_tokens": 60, "speculative": {"draft": "copy"}},
    {"prompt": LINE, "temperature": 0.8, "seed": 1, "max_tokens": 25, "speculative": {"draft": "none"}},
    {"prompt": LINE * 3, "temperature": 1.0, "seed": 2, "max_tokens": 40, "speculative": {"draft": "recycle"}},
    {"prompt": LINE * 3, "temperature": 1.0, "seed": 3, "max_tokens": 33, "n": 2, "speculative": {"draft": "auto"}},
    {"prompt": "b" * 700, "temperature": 0, "max_tokens": 50, "speculative": {"draft": "copyspec", "max_nodes": 3}},
    {"prompt": LINE[:20], "temperature": 0, "max_tokens": 48, "speculative": {"draft": "self", "max_nodes": 5}},
    {"prompt": LINE * 2, "temperature": 0, "max_tokens": 30, "prediction": {"type": "content", "content": LINE}},
    {"prompt": "a", "temperature": 0.7, "seed": 4, "max_tokens": 60, "logprobs": 2, "frequency_penalty": 0.5},
]


def test_replies_are_those_of_lone_runs(serve: Serve) -> None:
    def engine() -> Engine:
        return Engine(hash_target(vocab_size=260, order=3), ByteTokenizer(eos=()))

    def ask(running: Any, body: dict[str, Any]) -> list[Any]:
        status, _, reply = running.post("/v1/completions", {**body, "return_token_ids": True})
        assert status == 200, reply
        return [(c["token_ids"], c["text"], c["logprobs"]) for c in reply["choices"]]

    alone = [ask(serve(engine(), scheduler={"prefix_cache": False}), body) for body in BODIES]
    together = serve(engine(), scheduler={"max_running": 6, "max_rows": 24})
    with ThreadPoolExecutor(len(BODIES)) as clients:
        for _ in range(10):
            assert list(clients.map(lambda body: ask(together, body), BODIES)) == alone
    stats = together.service.scheduler.stats()
    assert stats.completion_tokens > 2 * stats.steps  # they did share them
