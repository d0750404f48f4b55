"""When an answer ends, and which text of it is final.

An answer ends at an EOS or stop id, at a stop string, or at its length. Stop strings are found with the automaton of
Aho and Corasick, "Efficient string matching" (CACM 1975): constant work per character, however long the answer; its
state is the longest end of the text that begins a stop string, which is exactly what a stream has to hold back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from exactspec.detokenize import Detokenizer
from exactspec.params import SamplingParams


class Stopper:
    """Follows one answer token by token.

    `eos_ids`: every id that ends an answer. `token_bytes`: bytes of an id, b"" for control tokens. `max_new`: most
    tokens to emit, >= 0, the smaller of `params.max_tokens` and what the context allows; 0 ends the answer at once
    with "length". An ending id contributes no text. Text is cut before the stop string whose match is complete
    first (of those complete at the same character, the longest), so it does not depend on where tokens begin.
    Endings before `params.min_tokens` tokens are ignored.
    """

    __slots__ = (
        "_count",
        "_detokenizer",
        "_end_ids",
        "_final",
        "_held",
        "_matcher",
        "_max_new",
        "_min_tokens",
        "_over",
        "_pending",
        "_reason",
        "_state",
        "_token_bytes",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
        max_new: int,
    ) -> None:
        if max_new < 0:
            raise ValueError(f"max_new must be >= 0, got {max_new}")
        self._end_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
        self._min_tokens = params.min_tokens
        self._max_new = max_new
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer()
        self._matcher = StopMatcher(params.stop)
        self._state = 0
        self._count = 0
        self._final: list[str] = []  # pieces that were taken
        self._pending: list[str] = []  # pieces that are final, not yet taken
        self._held = ""  # characters that may still become a stop string
        self._reason: str | None = "length" if max_new == 0 else None
        self._over = max_new == 0

    @property
    def finish_reason(self) -> str | None:
        """ "stop" (EOS, stop id, stop string) or "length"; None while the answer goes on or was ended from outside."""
        return self._reason

    @property
    def text(self) -> str:
        """All text that is final so far; after the end, all of it. O(length)."""
        return "".join(self._final) + "".join(self._pending)

    def take_text(self) -> str:
        """Text that became final since the last call; "" while all of it is held back."""
        piece = "".join(self._pending)
        self._pending.clear()
        if piece:
            self._final.append(piece)
        return piece

    def push(self, token: int) -> bool:
        """Take in the next token; True if it ends the answer. Raises RuntimeError once the answer has ended."""
        if self._over:
            raise RuntimeError("the answer has ended: no token can follow")
        self._count += 1
        may_stop = self._count >= self._min_tokens
        if may_stop and token in self._end_ids:
            return self._end("stop")
        if self._scan(self._detokenizer.push(self._token_bytes(token)), may_stop):
            self._held = ""
            return self._end("stop")
        if self._count >= self._max_new:
            return self._end("length")
        return False

    def finish(self) -> None:
        """End the answer from outside: held-back text becomes final. Does nothing after an end."""
        if not self._over:
            self._end(None)

    def _scan(self, text: str, may_stop: bool) -> bool:
        """Release what is final of held-back text + `text`; True at a stop string (the text before it is released)."""
        if not self._matcher:
            self._release(text)
            return False
        held = self._held + text
        for at, char in enumerate(text, start=len(self._held) + 1):
            self._state = self._matcher.step(self._state, char)
            length = self._matcher.match_length(self._state)
            if length and may_stop:
                self._release(held[: at - length])
                return True
        keep = len(held) - self._matcher.hold(self._state)
        self._release(held[:keep])
        self._held = held[keep:]
        return False

    def _release(self, text: str) -> None:
        if text:
            self._pending.append(text)

    def _end(self, reason: str | None) -> bool:
        self._release(self._held)
        self._held = ""
        self._reason = reason
        self._over = True
        return True


class StopMatcher:
    """Aho-Corasick automaton over characters. State 0 is the start; false if there is nothing to match.

    >>> m = StopMatcher(["he", "she"]); state = 0
    >>> for c in "ushe":
    ...     state = m.step(state, c)
    >>> m.match_length(state)
    3
    """

    __slots__ = ("_fail", "_hold", "_match", "_next")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._match = [0]  # length of the longest stop string that ends in this state
        depth = [0]
        for stop in stops:
            state = 0
            for char in stop:
                child = self._next[state].get(char)
                if child is None:
                    child = len(self._next)
                    self._next[state][char] = child
                    self._next.append({})
                    self._match.append(0)
                    depth.append(depth[state] + 1)
                state = child
            self._match[state] = len(stop)
        self._fail = [0] * len(self._next)
        # A state without children is a whole stop string: if it was ignored, only its ends can still grow.
        self._hold = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            fail = self._fail[state]
            self._match[state] = self._match[state] or self._match[fail]
            self._hold[state] = depth[state] if self._next[state] else self._hold[fail]
            for char, child in self._next[state].items():
                self._fail[child] = self.step(fail, char)
                queue.append(child)

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def step(self, state: int, char: str) -> int:
        """State after one more character."""
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def match_length(self, state: int) -> int:
        """Characters of the longest stop string that ends here, 0 if none does."""
        return self._match[state]

    def hold(self, state: int) -> int:
        """How many of the last characters can still become part of a match."""
        return self._hold[state]
