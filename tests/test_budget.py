"""Budgets: what pays is verified, and a request with nothing to copy loses next to nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactspec.bench.simulate import Answer, replay
from exactspec.budget import AdaptiveBudget, BackOff, Budget, CostModel, FixedBudget, Mood, choose_batch, make_budget
from exactspec.drafters import make_drafter
from exactspec.params import Speculation
from exactspec.tree import DraftTree


def chain(*scores: float) -> DraftTree:
    return DraftTree.chain(list(range(len(scores))), source="copy", scores=list(scores))


class TestCostModel:
    def test_points_lines_between_and_beyond(self) -> None:
        cost = CostModel()
        assert [cost(rows) for rows in (1, 4, 8, 16, 32, 64)] == [1.0, 1.15, 1.35, 1.85, 3.1, 5.1]
        assert cost(6) == pytest.approx(1.25)
        assert cost(80) == pytest.approx(6.1)
        assert CostModel(rows=(1, 2), cost=(1.0, 1.5))(5) == pytest.approx(3.0)

    @pytest.mark.parametrize(
        ("rows", "cost"),
        [
            ((1,), (1.0,)),
            ((2, 4), (1.0, 2.0)),
            ((1, 4), (2.0, 3.0)),
            ((1, 1), (1.0, 2.0)),
            ((1, 2, 3), (1.0, 2.0, 1.5)),
        ],
    )
    def test_impossible_tables_are_refused(self, rows: tuple[int, ...], cost: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match="cost"):
            CostModel(rows=rows, cost=cost)


class TestBatch:
    @given(
        st.lists(st.lists(st.floats(0.01, 1.0), max_size=4), min_size=1, max_size=3),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 12)),
    )
    @settings(max_examples=60, deadline=None)
    def test_no_other_choice_of_nodes_is_faster(
        self, scores: list[list[float]], other_rows: int, max_rows: int | None
    ) -> None:
        trees = [chain(*sorted(np.float32(s).tolist(), reverse=True)) for s in scores]
        cost = CostModel(rows=(1, 4, 8, 16), cost=(1.0, 1.45, 2.6, 4.8))
        rows = len(trees) + other_rows

        def rate(sizes: tuple[int, ...]) -> float:
            gained = sum(float(t.score[:n].sum()) for t, n in zip(trees, sizes, strict=True))
            return (len(trees) + gained) / cost(rows + sum(sizes))

        room = 100 if max_rows is None else max(0, max_rows - rows)
        best = max(rate(s) for s in product(*(range(len(t) + 1) for t in trees)) if sum(s) <= room)
        chosen = tuple(len(t) for t in choose_batch(trees, cost=cost, max_rows=max_rows, other_rows=other_rows))
        assert sum(chosen) <= room
        assert rate(chosen) == pytest.approx(best, rel=1e-5)

    def test_alone_it_is_the_choice_of_one_request(self) -> None:
        tree = chain(0.9, 0.6, 0.4, 0.05, 0.01)
        alone = AdaptiveBudget(48, careful=False).choose(tree)
        (chosen,) = choose_batch([tree], cost=CostModel())
        assert chosen.tokens.tolist() == alone.tokens.tolist() == [0, 1, 2]

    def test_where_rows_are_scarce_the_likelier_request_has_them(self) -> None:
        chosen = choose_batch([chain(0.5, 0.4), chain(0.9, 0.8)], cost=CostModel(), max_rows=4)
        assert [len(t) for t in chosen] == [0, 2]
        assert choose_batch([], cost=CostModel()) == []


class TestFixed:
    def test_takes_all_up_to_its_size(self) -> None:
        budget = FixedBudget(2)
        assert budget.nodes() == 2
        for _ in range(50):
            assert len(budget.choose(chain(0.1, 0.01, 0.001))) == 2
            budget.record(drafted=2, accepted=0)
        assert len(budget.choose(chain(0.1))) == 1
        assert FixedBudget(0).nodes() == 0
        with pytest.raises(ValueError, match="max_nodes"):
            FixedBudget(-1)


class TestAdaptive:
    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.floats(0.0625, 1, width=32), min_size=1, max_size=20), st.integers(1, 20))
    def test_no_other_number_of_nodes_gives_more_tokens_per_time(self, steps: list[float], most: int) -> None:
        scores = np.cumprod(np.array(steps, dtype=np.float32))
        cost = CostModel()
        kept = len(AdaptiveBudget(most).choose(chain(*scores)))
        assert kept <= most
        rate = [(1 + scores[:k].sum(dtype=np.float64)) / cost(k + 1) for k in range(min(most, len(scores)) + 1)]
        assert rate[kept] == pytest.approx(max(rate))

    def test_nothing_is_a_valid_answer(self) -> None:
        dear = AdaptiveBudget(48, cost=lambda rows: float(rows))
        assert len(dear.choose(chain(0.9, 0.8, 0.7))) == 0
        assert len(AdaptiveBudget(48).choose(chain(0.01, 0.01))) == 0
        assert len(AdaptiveBudget(48).choose(DraftTree.empty())) == 0

    def test_likely_drafts_are_long_and_unlikely_ones_short(self) -> None:
        assert len(AdaptiveBudget(48).choose(chain(*[0.99**i for i in range(1, 49)]))) > 30
        assert 1 <= len(AdaptiveBudget(48).choose(chain(*[0.4**i for i in range(1, 49)]))) <= 4

    def test_branches_are_chosen_by_score_with_their_ancestors(self) -> None:
        parents, score = np.array([-1, 0, -1, 1]), np.array([0.6, 0.5, 0.02, 0.45], dtype=np.float32)
        none = np.zeros(4, dtype=np.int64)
        tree = DraftTree(np.array([1, 2, 3, 4]), parents, none, score, none, ("a",))
        assert AdaptiveBudget(48).choose(tree).tokens.tolist() == [1, 2, 4]
        assert AdaptiveBudget(2).choose(tree).tokens.tolist() == [1, 2]

    def test_sizes_are_checked(self) -> None:
        with pytest.raises(ValueError, match="FixedBudget"):
            AdaptiveBudget(0)


def run(budget: Budget, tree: DraftTree, accept: Callable[[int], int], steps: int) -> list[tuple[int, int]]:
    """(drafted, accepted) per step, where every proposal is `tree` and `accept(step)` nodes of it are right."""
    out: list[tuple[int, int]] = []
    for step in range(steps):
        chosen = budget.choose(tree) if budget.nodes() else DraftTree.empty()
        accepted = min(accept(step), len(chosen))
        budget.record(drafted=len(chosen), accepted=accepted)
        out.append((len(chosen), accepted))
    return out


UNSURE, SURE = chain(0.7, 0.65, 0.6, 0.55, 0.5, 0.45), chain(*[0.99**i for i in range(1, 40)])


class TestBackOff:
    def test_misses_make_drafts_small_then_rare(self) -> None:
        drafted = [d for d, _ in run(AdaptiveBudget(48), UNSURE, lambda step: 0, 200)]
        assert drafted[0] == len(UNSURE)
        small, patience = (ceil(weight / 0.7) for weight in (BackOff.SMALL, BackOff.PATIENCE))
        assert all(d <= BackOff.PROBE for d in drafted[small:])
        probes = [step for step, d in enumerate(drafted) if d]
        pauses = [b - a - 1 for a, b in pairwise(probes)]
        for pause, least in zip(pauses[patience - 1 :], [1, 2, 4, 8, 16], strict=False):
            assert least <= pause < least + AdaptiveBudget.EVERY  # the last ones end where a proposal is asked for
        assert BackOff.LONGEST <= max(pauses) < BackOff.LONGEST + AdaptiveBudget.SELDOM

    def test_unlikely_drafts_that_fail_say_nothing_yet(self) -> None:
        back_off = BackOff()
        for _ in range(int(BackOff.SMALL / 0.1) - 1):
            assert back_off.allow(0.1, 48) == 48
            back_off.record(drafted=1, accepted=0)
        for _ in range(int((BackOff.PATIENCE - BackOff.SMALL) / 0.1) - 1):
            assert back_off.allow(0.1, 48) >= BackOff.PROBE
            back_off.record(drafted=1, accepted=0)
        drafted = [d for d, _ in run(AdaptiveBudget(48), chain(0.1), lambda step: 0, 200)]
        assert drafted[: AdaptiveBudget.IDLE // 2] == [1] * (AdaptiveBudget.IDLE // 2)
        assert 0 in drafted

    def test_an_accepted_probe_ends_it_at_once(self) -> None:
        steps = run(AdaptiveBudget(48), UNSURE, lambda step: 0 if step < 60 else 3, 140)
        back = next(step for step, (_, accepted) in enumerate(steps) if accepted)
        assert back < 60 + BackOff.LONGEST + 1
        assert all(d == len(UNSURE) for d, _ in steps[back + 1 :])

    def test_a_long_match_ends_a_pause_at_once(self) -> None:
        budget = AdaptiveBudget(48)
        run(budget, UNSURE, lambda step: 0, 100)
        assert len(budget.choose(UNSURE)) == 0
        assert len(budget.choose(SURE)) > 20
        budget.record(drafted=20, accepted=20)
        assert len(budget.choose(UNSURE)) == len(UNSURE)

    def test_sure_drafts_that_fail_are_not_believed_for_ever(self) -> None:
        drafted = [d for d, _ in run(AdaptiveBudget(48), SURE, lambda step: 0, 300)]
        assert sum(d > BackOff.PROBE for d in drafted) <= ceil(BackOff.SMALL / 0.99)
        assert sum(d > 0 for d in drafted) < 20

    def test_without_it_nothing_pauses(self) -> None:
        budget = AdaptiveBudget(48, careful=False)
        assert all(d == len(UNSURE) for d, _ in run(budget, UNSURE, lambda step: 0, 50))

    def test_after_long_without_success_proposals_are_asked_for_less_often(self) -> None:
        budget = AdaptiveBudget(48)
        asked = []
        first = AdaptiveBudget.IDLE // 2
        for _ in range(first + 30):
            asked.append(budget.nodes() > 0)
            budget.record(drafted=0, accepted=0)
        assert all(asked[:first])
        assert sum(asked[first:]) == 30 // AdaptiveBudget.EVERY
        while not budget.nodes():
            budget.record(drafted=0, accepted=0)
        assert len(budget.choose(SURE)) > 20
        budget.record(drafted=20, accepted=5)
        assert [budget.nodes() for _ in range(9)] == [48] * 9

    def test_at_last_they_are_asked_for_seldom_and_a_copy_still_ends_that(self) -> None:
        budget = AdaptiveBudget(48)
        run(budget, chain(0.02), lambda step: 0, 10_000)
        asked = [budget.nodes() > 0 or budget.record(drafted=0, accepted=0) for _ in range(20)]
        assert asked.index(True) < AdaptiveBudget.SELDOM
        assert len(budget.choose(SURE)) > 20
        budget.record(drafted=20, accepted=20)
        assert [budget.nodes() for _ in range(9)] == [48] * 9

    def test_a_token_now_and_then_does_not_pay_for_asking_in_every_step(self) -> None:
        def asked(every: int) -> float:
            budget = AdaptiveBudget(48)
            times = 0
            for step in range(1000):
                times += budget.nodes() > 0
                budget.record(drafted=1, accepted=step % every == 0)
            return times / 1000

        assert asked(AdaptiveBudget.PAYS // 2) == 1
        assert asked(AdaptiveBudget.PAYS * 2) < 0.4

    @pytest.mark.parametrize("tree", [UNSURE, SURE, chain(0.2)])
    def test_drafts_that_always_fail_cost_little(self, tree: DraftTree) -> None:
        cost = CostModel()
        spent = [sum(cost(1 + d) for d, _ in run(AdaptiveBudget(48), tree, lambda step: 0, n)) / n for n in (128, 1000)]
        assert spent[0] < 1 / 0.9  # two long sure drafts at the start
        assert spent[1] < 1 / 0.98


class TestMood:
    def test_the_factor_is_what_came_of_what_was_promised(self) -> None:
        mood = Mood()
        assert mood.factor() == 1.0
        for step in range(300):
            mood.record(promised=1.0, accepted=step % 2)
        assert mood.factor() == pytest.approx((0.5 / 0.03 + Mood.PRIOR) / (1 / 0.03 + Mood.PRIOR), rel=0.03)
        for _ in range(300):
            mood.record(promised=1.0, accepted=2)
        assert mood.factor() == 1.0

    def test_overrated_drafts_become_shorter(self) -> None:
        """Half of the nodes come that the scores promise: fewer are worth their rows."""
        tree = chain(*[0.8**i for i in range(1, 40)])
        budget = AdaptiveBudget(48)
        sizes = [d for d, _ in run(budget, tree, lambda step: 1, 120)]
        assert sizes[-1] < sizes[0]
        trusted = AdaptiveBudget(48)
        assert len({d for d, _ in run(trusted, tree, lambda step: 4, 120)}) == 1

    def test_it_is_the_same_for_nodes_that_others_chose(self) -> None:
        tree = chain(*[0.8**i for i in range(1, 9)])
        alone, shared = AdaptiveBudget(48), AdaptiveBudget(48)
        for _ in range(60):
            chosen = alone.choose(tree)
            alone.record(drafted=len(chosen), accepted=1)
            offered = shared.allow(tree)
            verified = offered.prune(max_nodes=len(chosen))
            shared.record(drafted=len(verified), accepted=1, promised=float(verified.score.sum()))
        assert shared.allow(tree).score[0] < 0.7 * tree.score[0]
        assert shared.allow(tree).score[0] == pytest.approx(alone.allow(tree).score[0], rel=1e-4)


def test_every_name_has_its_budget() -> None:
    assert make_budget(Speculation(draft="none")).nodes() == 0
    spec = make_budget(Speculation(draft="copyspec", block=7))
    assert (spec.nodes(), len(spec.choose(chain(*[0.1] * 9)))) == (7, 7)
    assert make_budget(Speculation(draft="copyspec", block=7, max_nodes=4)).nodes() == 4
    copy, auto = (make_budget(Speculation(draft=draft, max_nodes=30)) for draft in ("copy", "auto"))
    assert (copy.nodes(), auto.nodes()) == (30, 30)
    assert len(copy.choose(SURE)) == len(auto.choose(SURE)) > 20
    for budget in (copy, auto):
        for _ in range(12):
            budget.record(drafted=3, accepted=0)
    assert len(copy.choose(UNSURE)) == len(UNSURE)
    assert len(auto.choose(UNSURE)) == 0
    dear = make_budget(Speculation(draft="auto"), cost=lambda rows: float(rows))
    assert len(dear.choose(SURE)) == 0
    assert len(make_budget(Speculation(draft="auto")).choose(SURE)) > 20  # nothing is left from other requests


def predicted(draft: str, text: list[int], output: list[int], cost: CostModel) -> float:
    """Speed against plain decoding by the cost table, for a target that says `output`."""
    speculation = Speculation(draft=draft)
    answer = Answer("", "", tuple(text), tuple(output))
    return replay(answer, make_drafter(speculation), make_budget(speculation, cost=cost), cost=cost).speedup


def no_copy(rng: random.Random) -> tuple[list[int], list[int]]:
    """Words of one to three tokens drawn without a repeated pair of words; the tokens of a word do repeat."""
    words = [[rng.randrange(4000) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(1500)]
    seen: set[tuple[int, int]] = set()
    last, text = 0, [0]
    while len(text) < 2600:
        word = rng.randrange(1500)
        if (last, word) not in seen:
            seen.add((last, word))
            text += words[word]
            last = word
    return text[:2000], text[2000:]


def false_friend(rng: random.Random) -> tuple[list[int], list[int]]:
    """Lines that begin alike (3 to 6 tokens) and go on with tokens of their own."""
    heads = [[rng.randrange(3000) for _ in range(rng.randrange(3, 7))] for _ in range(12)]

    def lines(n: int) -> list[int]:
        return [t for _ in range(n) for t in (*rng.choice(heads), *(rng.randrange(4000, 40_000) for _ in range(6)), 1)]

    return lines(160), lines(50)


def only_false_friends(rng: random.Random) -> tuple[list[int], list[int]]:
    """The worst case: every third token stands behind a pair seen before, and what followed never comes again."""
    pairs = [(2 * i, 2 * i + 1) for i in range(600)]
    text = [t for i, pair in enumerate(pairs) for t in (*pair, 10_000 + i)]
    rng.shuffle(pairs)
    return text, [t for i, pair in enumerate(pairs) for t in (*pair, 20_000 + i)]


@pytest.mark.parametrize("control", [no_copy, false_friend, only_false_friends])
@pytest.mark.parametrize(
    "cost", [CostModel(), CostModel(rows=(1, 4, 8, 48), cost=(1.0, 1.25, 1.8, 7.0))], ids=["table", "dear"]
)
def test_with_nothing_to_copy_auto_is_as_fast_as_plain(
    control: Callable[[random.Random], tuple[list[int], list[int]]], cost: CostModel
) -> None:
    """Also where the machine's rows are dearer than the table says."""
    text, output = control(random.Random(0))
    assert predicted("auto", text, output, cost) > 0.98


def test_auto_comes_back_when_copying_starts() -> None:
    rng = random.Random(1)
    text, nothing = no_copy(rng)
    passage = [rng.randrange(5000, 9000) for _ in range(300)]
    both = predicted("auto", passage + text, nothing + passage, CostModel())
    alone = predicted("auto", passage + text, passage, CostModel())
    ideal = (len(nothing) + 300) / (len(nothing) + 300 / alone)
    assert both > 0.9 * ideal
