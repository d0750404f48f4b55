"""Stopping and text: the oracle is the whole text, `str.partition`, and a search character by character."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactspec.detokenize import Detokenizer
from exactspec.params import SamplingParams
from exactspec.stopping import StopMatcher, Stopper

EOS = 256


def byte(token: int) -> bytes:
    return bytes([token]) if token < EOS else b""


def stopper(params: SamplingParams | None = None, *, eos=(EOS,), token_bytes=byte, max_new=10_000) -> Stopper:
    return Stopper(params or SamplingParams(), eos_ids=frozenset(eos), token_bytes=token_bytes, max_new=max_new)


def run(s: Stopper, tokens) -> tuple[list[int], list[str]]:
    """The ids up to the end, and the chunks of a stream that takes text after every token."""
    ids, chunks = [], []
    for t in tokens:
        ids.append(t)
        ended = s.push(t)
        chunks.append(s.take_text())
        if ended:
            break
    else:
        s.finish()
        chunks.append(s.take_text())
    return ids, chunks


def first_completed(text: str, stops, ignored=0) -> tuple[int, int] | None:
    """(start, end) of the match that is complete first, longest at the same end; ends <= `ignored` do not count."""
    for end in range(ignored + 1, len(text) + 1):
        lengths = [len(s) for s in stops if text[:end].endswith(s)]
        if lengths:
            return end - max(lengths), end
    return None


def can_grow(text: str, stops) -> int:
    """Length of the longest end of the text that begins a stop string without being all of it."""
    return max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


# Small alphabets: overlaps, borders and repeated prefixes are the rule.
ALPHABET = "abé🧭"
texts = st.text(ALPHABET, max_size=30)
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def split(data: bytes, cuts) -> list[bytes]:
    """A byte string in pieces, one a token; a cut twice at one place makes an empty token."""
    at = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(text=texts, stop=st.text(ALPHABET, min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_one_stop_on_a_byte_tokenizer_is_partition(text, stop):
    s = stopper(SamplingParams(stop=(stop,)))
    ids, chunks = run(s, text.encode())
    head, match, _ = text.partition(stop)
    assert s.text == "".join(chunks) == head
    assert bytes(ids) == (head + match).encode()
    assert s.finish_reason == ("stop" if match else None)


@given(text=texts, stops=stop_lists, cuts=st.lists(st.integers(0, 1000), max_size=40))
@settings(max_examples=500, deadline=None)
def test_text_does_not_depend_on_tokens_and_the_stream_holds_back_only_what_may_match(text, stops, cuts):
    tokens = split(text.encode(), cuts)
    s = stopper(SamplingParams(stop=tuple(stops)), eos=(), token_bytes=tokens.__getitem__)
    match = first_completed(text, stops)
    whole = text if match is None else text[: match[0]]
    taken, seen, detokenizer = "", "", Detokenizer()
    for i, data in enumerate(tokens):
        seen += detokenizer.push(data)
        ended = s.push(i)
        taken += s.take_text()
        assert taken == s.text
        assert ended == (match is not None and len(seen) >= match[1])
        if ended:
            break
        assert taken == seen[: len(seen) - can_grow(seen, stops)]
    s.finish()
    assert taken + s.take_text() == s.text == whole
    # Not streamed: the same text in one piece at the end.
    late = stopper(SamplingParams(stop=tuple(stops)), eos=(), token_bytes=tokens.__getitem__)
    for i in range(len(tokens)):
        if late.push(i):
            break
    late.finish()
    assert late.text == late.take_text() == whole


@given(
    text=st.text("ab", max_size=16),
    stops=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    n=st.integers(0, 16),
)
@settings(max_examples=300, deadline=None)
def test_matches_complete_before_the_minimum_are_ignored(text, stops, n):
    s = stopper(SamplingParams(stop=tuple(stops), min_tokens=n))
    ids, chunks = run(s, text.encode())
    match = first_completed(text, stops, ignored=n - 1)
    assert s.text == "".join(chunks) == (text if match is None else text[: match[0]])
    assert len(ids) == (len(text) if match is None else match[1])


# The borders of UTF-8: overlong forms, surrogates, the last code point, bytes that never occur.
EDGES = [bytes([b]) for b in b"\x41\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xc3\xe0\xe2\xed\xef\xf0\xf4\xf5\xff"]


def tail_by_trial(data: bytes) -> int:
    """Length of the longest end which some more bytes turn into exactly one character."""
    more = [first + b"\x80" * k for first in (b"\x80", b"\x90", b"\xa0") for k in (0, 1, 2)]
    found = 0
    for n in range(1, min(3, len(data)) + 1):
        for m in more:
            try:
                found = n if len((data[-n:] + m).decode()) == 1 else found
            except UnicodeDecodeError:
                continue
    return found


def check_decoding(pieces: list[bytes]) -> None:
    d = Detokenizer()
    joined = "".join(d.push(piece) for piece in pieces)
    whole = b"".join(pieces)
    assert joined == whole[: len(whole) - tail_by_trial(whole)].decode("utf-8", "replace")


def test_every_short_sequence_of_edge_bytes_decodes_as_a_whole():
    for n in (1, 2, 3):
        for pieces in itertools.product(EDGES, repeat=n):
            check_decoding(list(pieces))


@given(
    pieces=st.lists(st.one_of(st.sampled_from(EDGES), st.binary(max_size=6), st.text().map(str.encode)), max_size=16)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_decode_as_a_whole_without_the_incomplete_tail(pieces):
    check_decoding(pieces)


@given(stops=stop_lists, text=texts)
@settings(max_examples=300, deadline=None)
def test_the_automaton_finds_every_match(stops, text):
    m = StopMatcher(stops)
    state = 0
    for end, char in enumerate(text, start=1):
        state = m.step(state, char)
        assert m.match_length(state) == max((len(s) for s in stops if text[:end].endswith(s)), default=0)
        assert m.hold(state) == can_grow(text[:end], stops)


# --- field cases ----------------------------------------------------------------------------------------------------


def test_case_3_no_eos_or_several():
    s = stopper(eos=(), max_new=12)
    ids, _ = run(s, [9, 10, 7, 8] * 9)
    assert (len(ids), s.finish_reason) == (12, "length")
    s = stopper(eos=(2, 5))
    assert run(s, [5, 6, 7, 4])[0] == [5]
    assert s.finish_reason == "stop"


def test_case_4_ids_end_with_the_token_that_completes_the_match():
    s = stopper(SamplingParams(stop=("stop-here",)))
    ids, chunks = run(s, b" stop-here la di da")
    assert bytes(ids) == b" stop-here"
    assert len(ids) == 10
    assert (s.text, "".join(chunks), s.finish_reason) == (" ", " ", "stop")


@pytest.mark.parametrize("min_tokens", [0, 1, 3, 5, 6])
def test_case_11_a_stop_string_before_the_minimum_is_ignored(min_tokens):
    s = stopper(SamplingParams(stop=("bc",), min_tokens=min_tokens))
    ids, _ = run(s, b"abcdabcd")
    assert (len(ids), s.text) == ((3, "a") if min_tokens <= 3 else (7, "abcda"))
    assert s.finish_reason == "stop"


def test_case_20_characters_are_never_split():
    text = "🧭🧪 naïve — ジャケット 한국어 👩‍🔧"
    script = text.encode()
    assert (len(script), len(text)) == (57, 24)
    s = stopper()
    _, chunks = run(s, [*script, EOS])
    assert s.text == "".join(chunks) == text
    assert "\ufffd" not in s.text
    for cut in range(len(script) + 1):
        streamed, at_once = stopper(max_new=cut), stopper(max_new=cut)
        chunks = run(streamed, script[:cut])[1]
        for t in script[:cut]:
            at_once.push(t)
        assert at_once.text == streamed.text == "".join(chunks) == script[:cut].decode("utf-8", "ignore")
        assert streamed.finish_reason == "length"


@pytest.mark.parametrize(
    ("script", "stops", "text", "reason"),
    [
        (b"PQRSTUVWXYZ12", ("STUVWXY",), "PQR", "stop"),
        ([*b"PQRSTUVxyz", EOS], ("STUVWXY",), "PQRSTUVxyz", "stop"),
        (b"xxEFGyy", ("FG", "EFGH"), "xxE", "stop"),
        ("le café noir".encode(), ("fé n",), "le ca", "stop"),
        ("le café noir".encode(), ("é",), "le caf", "stop"),
        ([*b"PQRSTUV", EOS], ("STUVWXY",), "PQRSTUV", "stop"),  # EOS releases what was held back
    ],
)
def test_case_21_no_part_of_a_stop_string_leaks(script, stops, text, reason):
    s = stopper(SamplingParams(stop=stops))
    ids, chunks = run(s, script)
    assert s.text == "".join(chunks) == text
    assert s.finish_reason == reason
    assert EOS not in ids[:-1]


def test_case_21_released_late_but_no_later_than_needed():
    s = stopper(SamplingParams(stop=("STUVWXY",)))
    chunks = run(s, b"PQRSTUVxyz")[1]
    assert chunks[:10] == ["P", "Q", "R", "", "", "", "", "STUVx", "y", "z"]


# --- ends -----------------------------------------------------------------------------------------------------------


def test_the_first_of_two_endings_counts():
    s = stopper(max_new=3)
    assert [s.push(t) for t in (65, 66)] == [False, False]
    assert s.push(EOS)
    assert (s.text, s.finish_reason) == ("AB", "stop")  # EOS as the last token that fits
    s = stopper(SamplingParams(stop=("BC",)), max_new=3)
    assert [s.push(t) for t in b"ABC"] == [False, False, True]
    assert (s.text, s.finish_reason) == ("A", "stop")
    s = stopper(SamplingParams(stop=("BCD",)), max_new=3)
    assert [s.push(t) for t in b"ABC"] == [False, False, True]
    assert (s.text, s.finish_reason) == ("ABC", "length")


def test_one_token_that_holds_the_whole_match_and_more():
    pieces = [b"x EFGH y", b"z"]
    s = stopper(SamplingParams(stop=("FG", "EFGH")), token_bytes=pieces.__getitem__)
    assert s.push(0)
    assert s.text == "x E"  # FG is complete first, as it would be byte by byte


def test_eos_and_stop_ids_give_no_text():
    vocabulary = {1: b"one", 2: b"</s>", 3: b"END"}
    s = stopper(SamplingParams(stop_token_ids=(3,)), eos=(2,), token_bytes=vocabulary.__getitem__)
    assert [s.push(1), s.push(3)] == [False, True]
    assert (s.text, s.finish_reason) == ("one", "stop")
    s = stopper(SamplingParams(ignore_eos=True), eos=(2,), token_bytes=vocabulary.__getitem__)
    assert [s.push(1), s.push(2), s.push(1)] == [False] * 3
    assert s.text == "one</s>one"


def test_no_token_allowed_and_misuse():
    s = stopper(max_new=0)
    assert (s.finish_reason, s.text, s.take_text()) == ("length", "", "")
    with pytest.raises(RuntimeError, match="has ended"):
        s.push(65)
    s.finish()
    assert s.finish_reason == "length"
    with pytest.raises(ValueError, match="max_new"):
        stopper(max_new=-1)


def test_ended_from_outside():
    s = stopper(SamplingParams(stop=("Bz",)))
    for t in [65, 66, 0xC3]:
        s.push(t)
    assert (s.take_text(), s.text) == ("A", "A")
    s.finish()
    s.finish()
    assert (s.take_text(), s.text, s.finish_reason) == ("B", "AB", None)
    with pytest.raises(RuntimeError):
        s.push(67)


def test_cost_of_a_token_does_not_grow_with_the_answer():
    """Worst case for a naive search: the answer is the beginning of the stop string, over and over."""
    s = stopper(SamplingParams(stop=("a" * 50 + "b", "aab")), max_new=10**9)

    def ten_thousand() -> float:
        start = time.perf_counter()
        for _ in range(10_000):
            s.push(97)
            s.take_text()
        return time.perf_counter() - start

    first = min(ten_thousand() for _ in range(3))
    for _ in range(10):
        ten_thousand()
    assert min(ten_thousand() for _ in range(3)) < 4 * first
