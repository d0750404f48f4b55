"""The protocol, seen by OpenAI's own client: what is sent is what the engine says."""

from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
from scripted import EOS, ByteTokenizer, ListTarget, Oracle, hash_target, script_target
from served import MODEL, Serve

from exactspec.engine import Engine
from exactspec.params import SamplingParams

USER = [{"role": "user", "content": "say it"}]


def engine(script: bytes, **options: Any) -> Engine:
    """A model that says `script` after the prompt `USER`, then ends."""
    length = len(ByteTokenizer().chat(USER))
    return Engine(script_target(length, [*script, EOS]), ByteTokenizer(), **options)


def test_chat_whole_and_streamed(serve: Serve) -> None:
    running = serve(engine("Grüße, 🧭!".encode()))
    client = running.client()
    whole = client.chat.completions.create(model=MODEL, messages=USER, temperature=0)
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.content == "Grüße, 🧭!"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.prompt_tokens == len(ByteTokenizer().chat(USER))
    assert whole.usage.completion_tokens == len("Grüße, 🧭!".encode()) + 1  # and the ending token
    assert whole.exactspec["identity"] == "list-target/1"
    events = list(client.chat.completions.create(model=MODEL, messages=USER, temperature=0, stream=True))
    assert {e.id for e in events} != {whole.id}
    assert len({e.id for e in events}) == 1
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(e.choices[0].delta.content or "" for e in events) == "Grüße, 🧭!"
    assert [e.choices[0].finish_reason for e in events if e.choices[0].finish_reason] == ["stop"]
    assert events[-1].exactspec["num_steps"] > 0


def test_completions_of_texts_and_ids(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    client = running.client()
    direct = Engine(hash_target(vocab_size=260), ByteTokenizer(), draft="none")
    expected = [direct.generate(p, SamplingParams(max_tokens=6)).text for p in ("abc", "xyz")]
    whole = client.completions.create(model=MODEL, prompt=["abc", "xyz"], max_tokens=6, temperature=0)
    assert [c.text for c in whole.choices] == expected
    assert [c.index for c in whole.choices] == [0, 1]
    ids = client.completions.create(model=MODEL, prompt=[list(b"abc")], max_tokens=6, temperature=0)
    assert ids.choices[0].text == expected[0]
    assert len(client.completions.create(model=MODEL, prompt="abc", temperature=0).exactspec) > 3
    streamed = ["", ""]
    for event in client.completions.create(
        model=MODEL, prompt=["abc", "xyz"], max_tokens=6, temperature=0, stream=True
    ):
        streamed[event.choices[0].index] += event.choices[0].text
    assert streamed == expected
    default = client.completions.create(model=MODEL, prompt="abc", temperature=0)
    assert default.usage.completion_tokens == 16


def test_parameters_reach_the_sampler(serve: Serve) -> None:
    """Each one alone gives what the library gives with it."""
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    direct = Engine(hash_target(vocab_size=260), ByteTokenizer(), draft="none")
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"temperature": 0.7, "seed": 3}, {"temperature": 0.7, "seed": 3}),
        ({"seed": -1}, {"temperature": 1.0, "seed": 2**64 - 1}),
        ({"temperature": 1, "seed": 3, "top_p": 0.2}, {"temperature": 1.0, "seed": 3, "top_p": 0.2}),
        ({"temperature": 1, "seed": 3, "top_k": 2}, {"temperature": 1.0, "seed": 3, "top_k": 2}),
        ({"temperature": 1, "seed": 3, "top_k": -1}, {"temperature": 1.0, "seed": 3}),
        ({"temperature": 1, "seed": 3, "min_p": 0.9}, {"temperature": 1.0, "seed": 3, "min_p": 0.9}),
        ({"temperature": 0, "frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"temperature": 0, "presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"temperature": 0, "repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"temperature": 0, "logit_bias": {"65": 9, "66": -100}}, {"logit_bias": {65: 9.0, 66: -100.0}}),
        ({"temperature": 0, "stop_token_ids": list(range(90, 150))}, {"stop_token_ids": tuple(range(90, 150))}),
        ({"temperature": 0, "min_tokens": 9, "stop": ["a", "b", "c", "d"]}, {"min_tokens": 9, "stop": tuple("abcd")}),
    ]
    seen = set()
    for over_http, in_library in cases:
        status, _, reply = running.post("/v1/completions", {"prompt": "abc", "max_tokens": 24, **over_http})
        assert status == 200, reply
        expected = direct.generate("abc", SamplingParams(max_tokens=24, **in_library))
        assert reply["choices"][0]["text"] == expected.text, over_http
        assert reply["choices"][0]["finish_reason"] == expected.finish_reason
        seen.add(expected.text)
    assert len(seen) >= 8  # some settings change nothing in this text; most do


def test_logprobs_in_both_forms(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    client = running.client()
    expected = Engine(hash_target(vocab_size=260), ByteTokenizer(), draft="none").generate(
        "ab", SamplingParams(max_tokens=8, logprobs=3)
    )
    old = client.completions.create(model=MODEL, prompt="ab", max_tokens=8, temperature=0, logprobs=3).choices[0]
    assert old.logprobs.token_logprobs == pytest.approx([t.logprob for t in expected.tokens])
    assert [len(top) for top in old.logprobs.top_logprobs] == [3] * 8
    assert old.logprobs.text_offset[0] == 0
    chat = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs.content
    assert len(content) == chat.usage.completion_tokens == 8
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in content)  # greedy: the best of all
    assert (
        bytes(b for entry in content for b in entry.bytes)
        .decode("utf-8", "replace")
        .startswith(chat.choices[0].message.content[:1])
    )
    streamed = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2, stream=True
    )
    entries = [e for event in streamed if event.choices[0].logprobs for e in event.choices[0].logprobs.content]
    assert [e.logprob for e in entries] == [e.logprob for e in content]
    none = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=2, temperature=0)
    assert none.choices[0].logprobs is None


def test_places_and_names_of_tokens(serve: Serve) -> None:
    """A character that several tokens make is one of the text; tokens of no text have names that differ."""
    text = "é🧭a!"
    running = serve(Engine(script_target(2, [*text.encode(), EOS]), ByteTokenizer()))
    body = {"prompt": "ab", "temperature": 0, "logprobs": 3}
    logprobs = running.post("/v1/completions", body)[2]["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 3, 4]
    assert logprobs["tokens"][-2:] == ["!", f"token_id:{EOS}"]
    events = running.events("/v1/completions", body)[:-1]
    parts = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
    assert [place for part in parts for place in part["text_offset"]] == logprobs["text_offset"]

    def controls(path: list[int]) -> Any:
        return np.array([0.0] * EOS + [4.0, 3.0, 2.0, 1.0], dtype=np.float32)

    running = serve(Engine(ListTarget(controls, vocab_size=260), ByteTokenizer()))
    (best,) = running.post("/v1/completions", body | {"logprobs": 4})[2]["choices"][0]["logprobs"]["top_logprobs"]
    assert list(best) == [f"token_id:{EOS + i}" for i in (3, 2, 1, 0)]


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_grammar": 'start: "{\\"n\\": " /[0-9]/ ", \\"ok\\": true}"'},
        {"guided_regex": '\\{"n": [0-9]{2}, "ok": (true|false)\\}'},
        {"guided_choice": ['{"n": 1, "ok": true}', '{"n": 2, "ok": false}']},
    ],
)
def test_structured_output(serve: Serve, fields: dict[str, Any]) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    status, _, reply = running.post(
        "/v1/chat/completions", {"messages": USER, "max_tokens": 300, "temperature": 0, **fields}
    )
    assert status == 200, reply
    assert reply["choices"][0]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(reply["choices"][0]["message"]["content"]), SCHEMA)


def test_json_object(serve: Serve) -> None:
    running = serve(engine(b'{"a": [1, 2]} and more'))
    reply = running.client().chat.completions.create(
        model=MODEL, messages=USER, temperature=0, response_format={"type": "json_object"}
    )
    assert json.loads(reply.choices[0].message.content) == {"a": [1, 2]}


def test_prediction_is_copied_and_counted(serve: Serve) -> None:
    text = "def area(width, height):\n    return width * height\n" * 3
    length = len(ByteTokenizer().chat(USER))
    running = serve(Engine(script_target(length, [*text.encode(), EOS]), ByteTokenizer()))
    client = running.client()
    for content in (text, [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]):
        reply = client.chat.completions.create(
            model=MODEL, messages=USER, temperature=0, prediction={"type": "content", "content": content}
        )
        assert reply.choices[0].message.content == text
        details = reply.usage.completion_tokens_details
        assert details.accepted_prediction_tokens > len(text) // 2
        assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == len(text)
        assert reply.exactspec["accepted_by_source"]["prediction"] == details.accepted_prediction_tokens
        assert reply.exactspec["tau"] > 2


def test_speculative_options(serve: Serve) -> None:
    text = "ab" * 40
    length = len(ByteTokenizer().chat(USER))
    running = serve(Engine(script_target(length, [*text.encode(), EOS]), ByteTokenizer()))
    body = {"messages": USER, "temperature": 0}
    drafted: dict[Any, int] = {}
    for options in (None, {"draft": "none"}, {"draft": "copyspec"}, {"max_nodes": 1}, {"max_nodes": 0}):
        status, _, reply = running.post("/v1/chat/completions", {**body, "speculative": options})
        assert status == 200, reply
        assert reply["choices"][0]["message"]["content"] == text
        drafted[str(options)] = reply["exactspec"]["num_draft_tokens"]
    assert drafted["None"] > 10
    assert drafted["{'draft': 'none'}"] == drafted["{'max_nodes': 0}"] == 0
    events = running.events("/v1/chat/completions", {**body, "speculative": {"trace": True}})
    traced = [t for e in events[:-1] for c in e["choices"] for t in c.get("exactspec", {}).get("tokens", ())]
    assert bytes(t["id"] for t in traced if t["id"] != EOS).decode() == text
    assert {"target", "copy"} <= {t["source"] for t in traced} <= {"target", "copy", "recycle"}
    for bad in ({"draft": "file:/etc/passwd"}, {"draft": "magic"}, {"max_nodes": 9999}, {"drafts": "none"}):
        status, _, reply = running.post("/v1/chat/completions", {**body, "speculative": bad})
        assert status == 400, bad
        assert reply["error"]["param"].startswith("speculative")
    told = running.post("/v1/chat/completions", {**body, "speculative": {"draft": "magic"}})[2]["error"]["message"]
    named = told.partition("one of ")[2].partition(", got ")[0].split(", ")
    assert {"none", "auto", "self", "copyspec+self", "model:NAME"} <= set(named)
    for name in named:  # each is a name: what has to be opened for it is asked for, or it drafts
        status, _, reply = running.post("/v1/chat/completions", {**body, "speculative": {"draft": name}})
        assert status == 200 or "not open" in reply["error"]["message"], name
    status, _, reply = running.post("/v1/chat/completions", {**body, "speculative": {"draft": "model:not-there"}})
    assert status == 400
    assert "not-there" in reply["error"]["message"]


def test_ids_of_the_tokens(serve: Serve) -> None:
    text = "Grüße, 🧭!".encode()
    running = serve(engine(text, draft="none"))
    body = {"messages": USER, "temperature": 0, "return_token_ids": True}
    _, _, whole = running.post("/v1/chat/completions", body)
    assert whole["choices"][0]["token_ids"] == [*text, EOS]
    events = running.events("/v1/chat/completions", body)[:-1]
    pieces = [c["token_ids"] for e in events for c in e["choices"] if "token_ids" in c]
    assert pieces == [[token] for token in (*text, EOS)]  # also where the text of a character is not whole yet
    shown = [c["delta"].get("content", "") for e in events for c in e["choices"]]
    assert "".join(shown).encode() == text
    without = {**body, "return_token_ids": False}
    assert "token_ids" not in running.post("/v1/chat/completions", without)[2]["choices"][0]
    both = {"prompt": [list(b"ab"), list(b"xyz")], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    _, _, plain = running.post("/v1/completions", {**both, "return_token_ids": True})
    assert [len(c["token_ids"]) for c in plain["choices"]] == [5, 5]
    streamed: dict[int, list[int]] = {0: [], 1: []}
    for event in running.events("/v1/completions", {**both, "return_token_ids": True})[:-1]:
        for choice in event["choices"]:
            streamed[choice["index"]] += choice.get("token_ids", [])
    assert list(streamed.values()) == [c["token_ids"] for c in plain["choices"]]


def test_models_tokenize_health_metrics(serve: Serve) -> None:
    running = serve(engine(b"hello"))
    client = running.client()
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="other", messages=USER)
    assert refused.value.code == "model_not_found"
    _, _, ids = running.post("/tokenize", {"prompt": "né"})
    assert ids == {"count": 3, "max_model_len": 4096, "tokens": list("né".encode())}
    _, _, chat = running.post("/tokenize", {"messages": USER, "return_token_strs": True})
    assert chat["tokens"] == ByteTokenizer().chat(USER)
    assert len(chat["token_strs"]) == chat["count"]
    assert running.post("/detokenize", {"tokens": list("né".encode())})[2] == {"prompt": "né"}
    assert running.post("/detokenize", {"tokens": [-1]})[0] == 400
    assert running.get("/health") == (200, '{"status":"ok"}')
    client.chat.completions.create(model=MODEL, messages=USER, temperature=0)
    text = running.get("/metrics")[1]
    assert "exactspec:generation_tokens_total 6.0" in text
    assert 'exactspec:request_success_total{finished_reason="stop"} 1.0' in text
    assert "exactspec:num_requests_running 0.0" in text
    assert 'exactspec:http_requests_total{path="/v1/chat/completions",status="404"} 1.0' in text
    assert "exactspec:time_to_first_token_seconds_count 1.0" in text


def test_metrics_of_drafts(serve: Serve) -> None:
    text = b"abcabcabcabc" * 4
    length = len(ByteTokenizer().chat(USER))
    oracle = Oracle([*ByteTokenizer().chat(USER), *text], length=4)
    running = serve(Engine(script_target(length, [*text, EOS]), ByteTokenizer(), draft=oracle))
    running.client().chat.completions.create(model=MODEL, messages=USER, temperature=0)
    lines = dict(line.rsplit(" ", 1) for line in running.get("/metrics")[1].splitlines() if line[0] != "#")
    drafted = float(lines['exactspec:spec_decode_num_draft_tokens_total{source="oracle"}'])
    accepted = float(lines['exactspec:spec_decode_num_accepted_tokens_total{source="oracle"}'])
    assert drafted >= accepted > 20
    by_position = [
        float(v) for k, v in lines.items() if k.startswith("exactspec:spec_decode_num_accepted_tokens_per_pos_total{")
    ]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert float(lines["exactspec:num_steps_total"]) + accepted == 49


@pytest.mark.parametrize("token", [10**30, -(10**30), 2**63])
def test_ids_longer_than_a_machine_word_are_a_mistake_of_the_request(serve: Serve, token: int) -> None:
    status, _, reply = serve(engine(b"yes")).post("/v1/completions", {"prompt": [1, token]})
    assert (status, reply["error"]["param"]) == (400, "prompt")
    assert "outside the vocabulary" in reply["error"]["message"]


def test_a_reply_that_quotes_half_a_surrogate_pair(serve: Serve) -> None:
    status, _, reply = serve(engine(b"yes")).post("/v1/chat/completions", {"messages": USER, "model": "a\udc00"})
    assert (status, reply["error"]["code"]) == (404, "model_not_found")
    assert r"'a\udc00'" in reply["error"]["message"]


def test_a_prediction_is_encoded_once_and_outside_the_event_loop(serve: Serve) -> None:
    threads: list[threading.Thread] = []

    class Watched(ByteTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            if text == "yes, yes":
                threads.append(threading.current_thread())
            return super().encode(text)

    length = len(ByteTokenizer().chat(USER))
    running = serve(Engine(script_target(length, [*b"yes, yes", EOS]), Watched()))
    body = {"messages": USER, "n": 3, "prediction": {"type": "content", "content": "yes, yes"}}
    status, _, reply = running.post("/v1/chat/completions", body)
    assert status == 200
    details = reply["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 3 * len("yes, yes")
    assert len(threads) == 1
    assert threads[0].name.startswith("asyncio_")  # of the pool for what takes long


def test_a_prediction_that_is_no_text(serve: Serve) -> None:
    body = {"messages": USER, "prediction": {"type": "content", "content": "a\udc00"}}
    status, _, reply = serve(engine(b"yes")).post("/v1/chat/completions", body)
    assert (status, reply["error"]["param"]) == (400, "prediction")


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages.0.content.0.type", "'text'"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "string"),
        ("chat/completions", {"messages": USER, "tool_choice": {"type": "function"}},
         "tool_choice.function", "Missing"),
        ("chat/completions", {"messages": USER, "Strange one": 1}, "Strange one", "Unrecognized"),
        ("completions", {"prompt": ["a", 1]}, "prompt.1", "string"),
        ("completions", {"prompt": "a", "stop": [1]}, "stop.0", "string"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_field(
    serve: Serve, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    status, _, reply = serve(engine(b"yes")).post(f"/v1/{path}", fields)
    assert (status, reply["error"]["param"]) == (400, param)
    assert says in reply["error"]["message"]
