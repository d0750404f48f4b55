"""Field cases 1-4, 20 and 21 on the script model: where an answer ends, and what of it is seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scripted import EOS, ByteTokenizer, IdTokenizer, script_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Completion

MODES = ("none", "copyspec", "copy", "auto")


def both_ways(engine: Engine, prompt: str | list[int], params: SamplingParams, spec: Speculation) -> Completion:
    """The completion, after checking that the stream shows the same."""
    whole = engine.generate(prompt, params, speculation=spec)
    chunks = list(engine.stream(prompt, params, speculation=spec))
    done = chunks[-1].completion
    assert done is not None
    assert (done.text, done.tokens, done.finish_reason) == (whole.text, whole.tokens, whole.finish_reason)
    assert "".join(c.text for c in chunks) == whole.text
    assert tuple(t for c in chunks for t in c.tokens) == whole.tokens
    assert "\ufffd" not in "".join(c.text for c in chunks)
    assert whole.metrics.completion_tokens == len(whole.token_ids) == len(whole.tokens)
    return whole


def scripted(prompt: Sequence[int], script: Sequence[int], *, eos: Sequence[int]) -> Engine:
    return Engine(script_target(len(prompt), script), IdTokenizer(eos=eos))


@pytest.mark.parametrize("mode", MODES)
def test_01_eos_in_the_middle_of_an_accepted_copy(mode: str) -> None:
    prompt = [11, 12, 13, 2, 21, 22, 23, 24, 31, 11, 12]
    engine = scripted(prompt, [13, 2, 21, 22, 23, 24, 25], eos=[2])
    spec = Speculation(draft=mode, max_nodes=5, min_match=2, gamma=2, block=5)
    done = both_ways(engine, prompt, SamplingParams(max_tokens=32), spec)
    assert done.token_ids == (13, 2)
    assert done.finish_reason == "stop"
    assert done.metrics.num_accepted_tokens <= 2
    if mode != "none":
        assert done.metrics.num_steps == 1
        assert [t.source for t in done.tokens] == ["copyspec" if mode == "copyspec" else "copy"] * 2


def test_01_four_turns_with_end_of_turn_markers_in_the_context() -> None:
    tokenizer = ByteTokenizer(eos=[259])
    messages = [{"role": r, "content": "same words here"} for r in ("user", "assistant", "user", "assistant", "user")]
    prompt = tokenizer.chat(messages)
    script = [*b"same words here", 259, *b"\n", 258, *b"user\nsame"]
    for mode in MODES:
        engine = Engine(script_target(len(prompt), script), tokenizer, draft=mode)
        done = both_ways(engine, prompt, SamplingParams(max_tokens=60), Speculation(draft=mode, gamma=3))
        assert done.text == "same words here"
        assert done.token_ids == (*b"same words here", 259)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("max_new", [0, 1, 2, 3, 4, 5])
def test_02_never_more_than_max_tokens(mode: str, k: int, max_new: int) -> None:
    prompt = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8]
    engine = scripted(prompt, [9, 10, 7, 8] * 20, eos=[])
    spec = Speculation(draft=mode, max_nodes=k, gamma=2, block=k)
    done = both_ways(engine, prompt, SamplingParams(max_tokens=max_new), spec)
    assert done.token_ids == (9, 10, 7, 8, 9)[:max_new]
    assert done.finish_reason == "length"


@pytest.mark.parametrize("mode", MODES)
def test_03_no_eos_or_several(mode: str) -> None:
    prompt = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8]
    spec = Speculation(draft=mode, min_match=1, gamma=1, max_nodes=4)
    done = both_ways(scripted(prompt, [9, 10, 7, 8] * 20, eos=[]), prompt, SamplingParams(max_tokens=12), spec)
    assert done.token_ids == (9, 10, 7, 8) * 3
    # (b): one of two ids that end an answer.
    prompt = [4, 5, 6, 7, 4]
    done = both_ways(scripted(prompt, [5, 6, 7, 4], eos=[2, 5]), prompt, SamplingParams(max_tokens=12), spec)
    assert done.token_ids == (5,)
    assert done.finish_reason == "stop"
    # The request's own ids are honoured beside them.
    engine = scripted(prompt, [6, 7, 4], eos=[2, 5])
    done = both_ways(engine, prompt, SamplingParams(max_tokens=12, stop_token_ids=(7,)), spec)
    assert done.token_ids == (6, 7)


@pytest.mark.parametrize("mode", MODES)
def test_04_text_ids_and_logprobs_end_together(mode: str) -> None:
    tokenizer = ByteTokenizer()
    prompt = "la di da stop-here la di da stop-here la di da"
    engine = Engine(script_target(len(prompt), list(b" stop-here la di da")), tokenizer)
    params = SamplingParams(max_tokens=60, stop=("stop-here",), logprobs=2)
    spec = Speculation(draft=mode, max_nodes=16, min_match=4, gamma=4, block=16)
    done = both_ways(engine, prompt, params, spec)
    assert done.text == " "
    assert done.token_ids == tuple(b" stop-here")
    assert done.finish_reason == "stop"
    assert len(done.tokens) == done.metrics.completion_tokens == 10
    assert all(t.logprob is not None and len(t.top) == 2 for t in done.tokens)
    plain = engine.generate(prompt, params, speculation=Speculation(draft="none"))
    assert [(t.id, t.text, t.logprob, t.top) for t in done.tokens] == [
        (t.id, t.text, t.logprob, t.top) for t in plain.tokens
    ]
    if mode != "none":
        assert done.metrics.num_steps < 10


TEXT = "🧭🧪 naïve — ジャケット 한국어 👩‍🔧"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [3, 16])
def test_20_characters_are_never_split(mode: str, k: int) -> None:
    script = list(TEXT.encode())
    assert len(script) == 57
    assert len(TEXT) == 24
    prompt = f"{TEXT} {TEXT} "
    engine = Engine(script_target(len(prompt.encode()), [*script, EOS]), ByteTokenizer())
    spec = Speculation(draft=mode, max_nodes=k, block=k)
    assert both_ways(engine, prompt, SamplingParams(), spec).text == bytes(script).decode()
    for cut in (2, 5):
        done = both_ways(engine, prompt, SamplingParams(max_tokens=cut), spec)
        assert len(done.token_ids) == cut
        assert done.text == bytes(script[:cut]).decode(errors="ignore")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize(
    ("script", "stop", "text"),
    [
        ("PQRSTUVWXYZ12", ["STUVWXY"], "PQR"),
        ("PQRSTUVxyz", ["STUVWXY"], "PQRSTUVxyz"),
        ("xxEFGyy", ["FG", "EFGH"], "xxE"),
        ("un café noir", ["fé n"], "un ca"),
        ("un café noir", ["é"], "un caf"),
    ],
)
def test_21_no_part_of_a_stop_string_is_seen(script: str, stop: list[str], text: str, k: int, mode: str) -> None:
    prompt = f"{script} {script} "
    engine = Engine(script_target(len(prompt.encode()), [*script.encode(), EOS]), ByteTokenizer())
    spec = Speculation(draft=mode, max_nodes=k, block=k)
    done = both_ways(engine, prompt, SamplingParams(max_tokens=60, stop=tuple(stop)), spec)
    assert done.text == text
    shown = ""
    for chunk in engine.stream(prompt, SamplingParams(max_tokens=60, stop=tuple(stop)), speculation=spec):
        shown += chunk.text
        assert text.startswith(shown)


def test_21_only_what_can_still_match_is_held_back() -> None:
    engine = Engine(script_target(1, [*b"PQRSTUVxyz", EOS]), ByteTokenizer(), draft="none")
    texts = [c.text for c in engine.stream("a", SamplingParams(stop=("STUVWXY",)))]
    assert texts == ["P", "Q", "R", "", "", "", "", "STUVx", "y", "z", ""]
