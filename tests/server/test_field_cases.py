"""Faults that people reported of other servers, over HTTP: cases 1, 4, 12-16, 20-22, 24-26 (23: test_connections)."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from scripted import EOS, ByteTokenizer, ListTarget, Oracle, Raw, hash_target, script_target
from served import Running, Serve

from exactspec.engine import Engine
from exactspec.params import SamplingParams

USER = [{"role": "user", "content": "go"}]
CHAT = len(ByteTokenizer().chat(USER))


def both(running: Running, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The whole reply, and the events of the same request streamed."""
    status, _, reply = running.post(path, body)
    assert status == 200, reply
    return reply, running.events(path, body)


def joined(events: Sequence[Any], index: int = 0) -> str:
    text = ""
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return text


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of calls that run at the same time."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_01_eos_in_the_middle_of_a_copy(serve: Serve) -> None:
    prompt = [11, 12, 13, 2, 21, 22, 23, 24, 31, 11, 12]
    engine = Engine(script_target(len(prompt), [13, 2, 21, 22, 23, 24, 25]), ByteTokenizer(eos=[2]))
    body = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "stream_options": {"include_usage": True}}
    running = serve(engine)
    status, _, reply = running.post("/v1/completions", {k: v for k, v in body.items() if k != "stream_options"})
    assert status == 200
    events = running.events("/v1/completions", body)
    for text, reason, usage in (
        (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"], reply["usage"]),
        (joined(events), events[-3]["choices"][0]["finish_reason"], events[-2]["usage"]),
    ):
        assert (text, reason, usage["completion_tokens"]) == (chr(13), "stop", 2)


@pytest.mark.parametrize("draft", ["none", "copy"])
def test_04_stop_text_inside_a_block(serve: Serve, draft: str) -> None:
    prompt = "la di da stop-here la di da stop-here la di da"
    target = script_target(len(prompt), list(b" stop-here la di da"))
    running = serve(Engine(target, ByteTokenizer(), draft=draft))
    body = {"prompt": prompt, "stop": ["stop-here"], "logprobs": 2, "max_tokens": 64, "temperature": 0}
    reply, events = both(running, "/v1/completions", body)
    choice = reply["choices"][0]
    streamed = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert (choice["text"], joined(events), choice["finish_reason"]) == (" ", " ", "stop")
    assert reply["usage"]["completion_tokens"] == 10  # up to the token that ends the match
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == 10
    assert [token for one in streamed for token in one["tokens"]] == choice["logprobs"]["tokens"]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.7, "seed": 3}])
def test_12_logprobs_are_those_of_plain_decoding(serve: Serve, sampling: dict[str, Any]) -> None:
    prompt = list(b"abcabcabdabcabcabdabcabcabdabc")
    params = SamplingParams(max_tokens=40, logprobs=3, **sampling)
    plain = Engine(hash_target(vocab_size=260), ByteTokenizer(eos=()), draft="none").generate(prompt, params)
    oracle = Oracle([*prompt, *plain.token_ids], length=5, wrong_every=4, vocab_size=260)
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer(eos=()), draft=oracle))
    reply, events = both(running, "/v1/completions", {"prompt": prompt, "max_tokens": 40, "logprobs": 3, **sampling})
    assert reply["exactspec"]["num_accepted_tokens"] > 10
    values = reply["choices"][0]["logprobs"]["token_logprobs"]
    assert values == pytest.approx([t.logprob for t in plain.tokens], abs=1e-4)
    assert len({round(v, 6) for v in values}) > 3  # not all alike
    for top in reply["choices"][0]["logprobs"]["top_logprobs"]:
        assert list(top.values()) == sorted(top.values())
    streamed = [e["choices"][0]["logprobs"]["token_logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert [value for one in streamed for value in one] == values


def test_13_schema_and_drafts_that_do_not_fit(serve: Serve) -> None:
    """The model wants ``nil``, as the prompt shows; what comes is JSON, and the same alone."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "note": {"type": ["string", "null"]}},
        "required": ["name", "note"],
        "additionalProperties": False,
    }
    wish = b'{"name": "Bo", "note": nil}'
    prompt = '{"name": "Ada", "note": nil}\n' * 3

    def logits(path: list[int]) -> Any:
        """Goes on with the wish from where the answer stands by its last characters; ends after a brace."""
        row = [0.0] * 260
        answer = bytes(t for t in path[len(prompt) :] if t < 256)
        at = len(answer) if wish.startswith(answer) else len(wish)
        row[wish[at] if at < len(wish) else ord("}")] = 9.0
        row[EOS] = 8.0 if answer.endswith(b"}") else 0.0
        return np.array(row, dtype=np.float32)

    running = serve(Engine(ListTarget(logits, vocab_size=260), ByteTokenizer()), scheduler={"max_running": 4})
    body = {"prompt": prompt, "guided_json": schema, "max_tokens": 200, "temperature": 0}

    def ask() -> tuple[str, str]:
        status, _, reply = running.post("/v1/completions", body)
        assert status == 200, reply
        return reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]

    texts = [ask()]
    for _ in range(5):
        texts += at_once([ask] * 4)
    assert len(texts) == 21
    assert len(set(texts)) == 1
    assert texts[0][1] == "stop"
    jsonschema.validate(json.loads(texts[0][0]), schema)
    assert json.loads(texts[0][0])["name"] == "Bo"


def test_14_seeds(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer(eos=())))

    def ask(seed: int | None) -> tuple[str, int]:
        body = {"prompt": "Three unusual fruit names:", "top_p": 0.9, "seed": seed, "max_tokens": 32}
        reply = running.post("/v1/completions", body)[2]
        return reply["choices"][0]["text"], reply["exactspec"]["seed"]

    state = random.getstate()
    results = at_once([lambda seed=seed: ask(seed) for seed in [7, 1, 7, 2, 7, 3, 7, 4, 7, 5]])
    assert len({text for text, seed in results if seed == 7}) == 1
    assert len({text for text, _ in results}) == 6
    assert ask(8)[0] != ask(7)[0]
    (one, seed), (two, _) = ask(None), ask(None)
    assert one != two
    assert ask(seed)[0] == one  # the seed that was drawn is told
    assert random.getstate() == state


def test_15_parallel_requests_with_other_seeds(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260, order=None), ByteTokenizer(eos=())))
    line = {"prompt": "Copy this line 12 times: river stones stay cold", "seed": 1, "stop": "13."}
    bodies = [line] * 3 + [{"prompt": "List the steps for lentil soup", "seed": seed} for seed in (2, 3, 4)]
    bodies = [{**body, "temperature": 0, "max_tokens": 40} for body in bodies]
    bodies[4]["temperature"] = 1.0

    def ask(body: dict[str, Any]) -> str:
        return str(running.post("/v1/completions", body)[2]["choices"][0]["text"])

    alone = [ask(body) for body in bodies]
    for _ in range(3):
        assert at_once([lambda body=body: ask(body) for body in bodies]) == alone


def test_16_rows_without_a_draft_beside_rows_with_one(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260, order=2), ByteTokenizer(eos=())))
    bodies = [
        {"prompt": "abababababab", "logit_bias": {"97": 50, "98": 49}, "frequency_penalty": 0.5},
        {"prompt": list(range(100, 160)), "temperature": 1.0, "seed": 3},
        {"prompt": "xyxyxyxyxyz", "prediction": {"type": "content", "content": "never said"}},
    ]
    bodies = [{"temperature": 0, "max_tokens": 30, **body} for body in bodies]

    def ask(body: dict[str, Any]) -> str:
        return str(running.post("/v1/completions", body)[2]["choices"][0]["text"])

    alone = [ask({**body, "speculative": {"draft": "none"}}) for body in bodies]
    assert at_once([lambda body=body: ask(body) for body in bodies]) == alone
    for proposal in ([], None, "rubbish", [1, 2, 3]):
        other = serve(Engine(hash_target(vocab_size=260, order=2), ByteTokenizer(eos=()), draft=Raw(proposal)))
        status, _, reply = other.post("/v1/completions", bodies[1])
        assert (status, reply["choices"][0]["text"]) == (200, alone[1])


TEXT = "🧭🧪 naïve — ジャケット 한국어 👩‍🔧"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("max_tokens", [2, 5, 200])
def test_20_characters_split_over_tokens(serve: Serve, max_tokens: int, path: str) -> None:
    chat = "chat" in path
    script = [*TEXT.encode(), EOS]
    running = serve(Engine(script_target(CHAT if chat else 1, script), ByteTokenizer(), draft="none"))
    body = {"messages": USER} if chat else {"prompt": "a"}
    reply, events = both(running, path, {**body, "temperature": 0, "max_tokens": max_tokens})
    choice = reply["choices"][0]
    whole = choice["message"]["content"] if chat else choice["text"]
    assert joined(events) == whole == bytes(script[: min(max_tokens, len(script) - 1)]).decode(errors="ignore")
    assert "�" not in json.dumps(events, ensure_ascii=False)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("script", "stop", "text"),
    [
        ("PQRSTUVWXYZ12", ["STUVWXY"], "PQR"),
        ("PQRSTUVxyz", ["STUVWXY"], "PQRSTUVxyz"),
        ("xxEFGyy", ["FG", "EFGH"], "xxE"),
        ("café au lait", ["é a"], "caf"),
    ],
)
def test_21_a_stop_string_does_not_leak(serve: Serve, path: str, script: str, stop: list[str], text: str) -> None:
    chat = "chat" in path
    ids = [*script.encode(), EOS]
    length = CHAT if chat else 1
    context = ByteTokenizer().chat(USER) if chat else [97]
    for draft in ("none", Oracle([*context, *ids], length=4), Oracle([*context, *ids], length=16)):
        running = serve(Engine(script_target(length, ids), ByteTokenizer(), draft=draft))
        body = {"messages": USER} if chat else {"prompt": "a", "max_tokens": 50}
        reply, events = both(running, path, {**body, "temperature": 0, "stop": stop})
        choice = reply["choices"][0]
        assert (choice["message"]["content"] if chat else choice["text"]) == text
        assert joined(events) == text
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("draft", ["none", "copy"])
def test_22_usage(serve: Serve, path: str, draft: str) -> None:
    messages = [{"role": "system", "content": "s"}, *USER, {"role": "assistant", "content": "x"}, *USER]
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer(eos=(), bos=257), draft=draft))
    body = {"messages": messages} if "chat" in path else {"prompt": "abab"}
    body = {**body, "max_tokens": 20, "temperature": 0}
    reply = running.post(path, body)[2]
    expected = len(ByteTokenizer().chat(messages)) if "chat" in path else 5  # BOS once
    assert reply["usage"]["prompt_tokens"] == expected
    assert reply["usage"]["completion_tokens"] == 20
    assert reply["usage"]["total_tokens"] == expected + 20
    without = running.events(path, body)
    assert not any("usage" in event for event in without[:-1])
    with_usage = running.events(path, {**body, "stream_options": {"include_usage": True}})
    assert [e["usage"] for e in with_usage[:-2]] == [None] * (len(with_usage) - 2)
    last = with_usage[-2]
    assert last["choices"] == []
    assert {k: last["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        k: reply["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")
    }


@pytest.mark.parametrize("stream", [False, True])
def test_24_longer_than_the_context(serve: Serve, stream: bool) -> None:
    running = serve(Engine(hash_target(vocab_size=260, max_length=256), ByteTokenizer(eos=())))
    chat = {"messages": [{"role": "user", "content": "a" * 400}]}
    for path, body in (("/v1/completions", {"prompt": "a" * 400}), ("/v1/chat/completions", chat)):
        status, headers, reply = running.post(path, {**body, "stream": stream})
        assert status == 400
        assert headers["content-type"] == "application/json"
        error = reply["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert error["param"] == ("prompt" if "prompt" in body else "messages")
        assert "256" in error["message"]
        assert ("400" if "prompt" in body else str(len(ByteTokenizer().chat(chat["messages"])))) in error["message"]
    for length, answer in ((250, 6), (256, 0)):  # cut at the end of the context
        reply = running.post("/v1/completions", {"prompt": "a" * length, "max_tokens": 50})[2]
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] == answer
    events = running.events("/v1/completions", {"prompt": "a" * 256})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert running.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


@pytest.mark.parametrize("temperature", [0.9, 0.0])
def test_25_several_choices(serve: Serve, temperature: float) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer(eos=())))
    body = {"messages": USER, "n": 3, "temperature": temperature, "seed": 5, "max_tokens": 24}
    reply, events = both(running, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert len(set(texts)) == (1 if temperature == 0 else 3)
    plain = Engine(hash_target(vocab_size=260), ByteTokenizer(eos=()), draft="none")
    for choice, text in enumerate(texts):
        params = SamplingParams(temperature=temperature, seed=5, max_tokens=24, choice=choice)
        assert plain.generate(USER, params).text == text
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert [c["delta"]["role"] for c in own if "role" in c["delta"]] == ["assistant"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]
        assert own[-1]["finish_reason"] == "length"
        assert joined(events[:-2], index) == texts[index]
    assert reply["usage"]["completion_tokens"] == events[-2]["usage"]["completion_tokens"] == 72
    assert reply["usage"]["prompt_tokens"] == events[-2]["usage"]["prompt_tokens"] == CHAT  # once for all choices
    for n in (0, -1):
        assert running.post("/v1/chat/completions", {**body, "n": n, "stream": True})[0] == 400


def test_26_nothing_of_one_request_feeds_the_next(serve: Serve) -> None:
    def logits(path: list[int]) -> Any:
        """After the first line feed the model says the line again, and so on."""
        row = np.zeros(260, dtype=np.float32)
        row[path[len(path) - path.index(10) - 1]] = 9.0
        return row

    def engine() -> Engine:
        return Engine(ListTarget(logits, vocab_size=260), ByteTokenizer(eos=()))

    rng = random.Random(3)
    words = ["def", "return", "self", "value", "index", "for", "in", "range", "len", "print", "None", "yield"]
    a = {"prompt": " ".join(rng.choice(words) for _ in range(150))[:600] + "\n", "max_tokens": 60, "temperature": 0}
    b = {"prompt": "eggs, milk, flour, yeast, butter, salt, apples\n", "max_tokens": 60, "temperature": 0}

    def ask(running: Running, body: dict[str, Any]) -> tuple[Any, ...]:
        reply = running.post("/v1/completions", body)[2]
        drafted, accepted = (reply["exactspec"][f"num_{name}_tokens"] for name in ("draft", "accepted"))
        return reply["choices"][0]["text"], drafted, accepted

    fresh = ask(serve(engine()), b)
    assert fresh[2] > 20
    running = serve(engine(), scheduler={"max_running": 1})
    for _ in range(10):
        assert ask(running, a)[0] == a["prompt"][:60]
        assert ask(running, b) == fresh
