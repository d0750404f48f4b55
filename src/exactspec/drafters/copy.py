"""Copying from the history and from a predicted text: longest match first, as much as is likely to be right."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.odds import Odds
from exactspec.drafters.suffix_index import MAX_MATCH, SuffixIndex, agreeing
from exactspec.tree import DraftTree

HISTORY = "copy"
PREDICTION = "prediction"

_BEFORE, _BEHIND = 4, 32
"""After an edit, tokens before and behind the expected one among which the place is looked for again."""

_FLOOR = 0.05
"""A node less likely than this is not proposed, behind the first `_PROBE` of a draft."""

_PROBE = 3
"""Nodes proposed whatever their odds: a few rows cost hardly more than one."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to copy from: ``text[position]`` of `source` comes next, `length` tokens before it agree with the
    history's end. `aligned`: found near a lost place rather than by the length of its match."""

    source: str
    position: int
    length: int
    aligned: bool = False


@dataclass(slots=True)
class _Copying:
    """What the drafter knows of one request.

    `place`: where the last copy stands. `lost`: tokens since it last agreed; 0 while it does. `drafted`: the last
    proposal as made, before any budget cut it, and the place it came from.
    """

    history: SuffixIndex
    prediction: SuffixIndex
    odds: dict[tuple[str, bool], Odds] = field(default_factory=dict)
    place: _Place | None = None
    lost: int = 0
    drafted: list[int] = field(default_factory=list)
    drafted_from: _Place | None = None

    def restart(self) -> None:
        """Nothing was copied yet; a predicted text is expected from its beginning."""
        self.odds = {}
        self.place = _Place(PREDICTION, 0, 0) if len(self.prediction) else None
        self.lost = 0
        self.drafted, self.drafted_from = [], None

    def text(self, source: str) -> array[int]:
        return (self.prediction if source == PREDICTION else self.history).tokens

    def odds_at(self, place: _Place) -> Odds:
        kind = place.source, place.aligned
        odds = self.odds.get(kind)
        if odds is None:
            odds = self.odds[kind] = Odds()
        return odds


class CopyDrafter:
    """Copies what followed the longest match of the history's end, the most recent among equally long ones.

    `min_match`: shortest match to copy from, in tokens. A draft grows with the match behind it and with the
    recent success of matches of that length; a copy that goes well goes on from the same place. After a
    disagreement the place is looked for again nearby. The predicted text is copied from in the same way.
    Constant work per token: no step looks at more than the end of the history. Raises ValueError if min_match < 1.
    """

    __slots__ = ("_min_match",)

    def __init__(self, *, min_match: int = 2) -> None:
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self._min_match = min_match

    @property
    def name(self) -> str:
        return HISTORY

    def begin(self, context: Context) -> State:
        state = _Copying(SuffixIndex(context.tokens), SuffixIndex(context.prediction))
        state.restart()
        return state

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        copying: _Copying = state
        place = self._choose(copying)
        copying.drafted, copying.drafted_from = [], place
        if place is None:
            return DraftTree.empty()
        most = min(budget.max_nodes, budget.max_depth)
        scores = copying.odds_at(place).chain(place.length, most=most, floor=_FLOOR, probe=_PROBE)
        text, start, n = copying.text(place.source), place.position, len(scores)
        draft = text[start : start + n]
        origins = np.arange(start, start + n)
        if len(draft) < n:
            if place.source == PREDICTION:
                n = len(draft)
                scores, origins = scores[:n], origins[:n]
            else:  # the copy runs into its own draft: a loop of `period` tokens goes on
                period = len(draft)
                draft = (draft * (n // period + 1))[:n]
                origins = start + np.arange(n) % period
        copying.drafted = draft.tolist()
        probability = np.frombuffer(array("f", scores), dtype=np.float32)
        return DraftTree.chain(draft, source=place.source, scores=probability, origins=origins)

    def commit(self, state: State, verified: Verified) -> None:
        copying: _Copying = state
        tokens: list[int] = verified.tokens.tolist()
        place = copying.drafted_from
        if place is not None:
            # The whole proposal is judged by what came, verified or not: odds recover without any draft.
            both = min(len(tokens), len(copying.drafted))
            right = 0
            while right < both and tokens[right] == copying.drafted[right]:
                right += 1
            copying.odds_at(place).observe(place.length, accepted=right, failed=right < both)
            if right or copying.place is None:  # a place that was wrong at once is no reason to give up an old one
                copying.place, copying.lost = place, 0
        copying.drafted, copying.drafted_from = [], None
        copying.history.append(tokens)
        _follow(copying, tokens)

    def truncate(self, state: State, n: int) -> None:
        """As if begun over the first n tokens: what was learned from the others goes too."""
        copying: _Copying = state
        copying.history.truncate(n)
        copying.restart()

    def fork(self, state: State) -> State:
        copying: _Copying = state
        odds = {key: value.fork() for key, value in copying.odds.items()}
        # The prediction never changes, so both may read the same one; a proposal is replaced, never changed.
        return replace(copying, history=copying.history.fork(), odds=odds)

    def close(self, state: State) -> None:
        copying: _Copying = state
        copying.history, copying.prediction = SuffixIndex(), SuffixIndex()
        copying.restart()

    def _choose(self, copying: _Copying) -> _Place | None:
        """The likeliest place to copy from; of equals, the one already being copied, then the predicted text."""
        places: list[_Place] = []
        if copying.place is not None:
            if copying.lost:
                near = _realign(copying)
                if near is not None:
                    places.append(near)
            elif copying.place.position < len(copying.text(copying.place.source)):
                if copying.place.length >= MAX_MATCH:
                    return copying.place  # no search can find a longer match
                places.append(copying.place)
        if len(copying.prediction):
            places += [_Place(PREDICTION, *found) for found in copying.prediction.match(copying.history)[:1]]
        places += [_Place(HISTORY, *found) for found in copying.history.match()[:1]]
        best: _Place | None = None
        odds = 0.0
        for place in places:
            if place.length < self._min_match and not place.aligned and place is not copying.place:
                continue
            its = copying.odds_at(place).next(place.length)
            if its > odds:
                best, odds = place, its
        return best


def _follow(copying: _Copying, tokens: list[int]) -> None:
    """Move the place along the tokens that came, or note how long ago they left it."""
    place = copying.place
    if place is None:
        return
    text, position, length, lost = copying.text(place.source), place.position, place.length, copying.lost
    for token in tokens:
        if not lost and position < len(text) and text[position] == token:
            position, length = position + 1, length + 1
        else:
            lost += 1
    copying.place = _Place(place.source, position, 0 if lost else length, place.aligned and not lost)
    copying.lost = lost


def _realign(copying: _Copying) -> _Place | None:
    """The place near a lost one whose tokens before it agree best with the history's end; the nearest of equals.

    An edit replaces, drops or inserts some tokens; then the copy goes on close to where it stopped.
    """
    lost = copying.place
    assert lost is not None
    history, text = copying.history.tokens, copying.text(lost.source)
    end, last = len(history), history[-1]
    expected = lost.position + copying.lost
    position, stop = max(lost.position - _BEFORE, 0), min(lost.position + _BEHIND, len(text) - 1)
    best: _Place | None = None
    while last in text[position:stop]:
        position = text.index(last, position, stop) + 1
        length = agreeing(text, position - 1, history, end - 1, 1, min(position, end, MAX_MATCH))
        if best is None or (length, -abs(position - expected)) > (best.length, -abs(best.position - expected)):
            best = _Place(lost.source, position, length, aligned=True)
    return best
