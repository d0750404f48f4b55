"""The layer in torch over whole documents, against one draft at a time in numpy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")

from tiny_layer import random_layer, tiny_card  # noqa: E402
from tiny_training import SOURCE, documents, tiny_draft_layer  # noqa: E402

from exactspec.drafters.layer.reference import Keys, ReferenceLayer, rotate  # noqa: E402
from exactspec.drafters.layer.tensor_file import from_bfloat16  # noqa: E402
from exactspec.training.model import Sample, draft_loss  # noqa: E402
from exactspec.training.samples import prepare, to_sample  # noqa: E402
from exactspec.training.shards import Document  # noqa: E402


def _one_draft(
    reference: ReferenceLayer, document: Document, root: int, depth: int, positions: np.ndarray, features: np.ndarray
) -> np.ndarray:
    """Logits [depth + 1, H] of the root and of the nodes below it, which hold the text's own tokens: drafting as
    docs/longspec.md tells it, one pass a row, from nothing but what is known when `root` is the root."""
    width = features.shape[1]
    before = np.concatenate([np.zeros((1, width), dtype=np.float32), features[:-1]])
    committed = np.arange(root + 1)
    x = reference.inputs(document.tokens[committed], before[committed])
    keys = reference.own_keys(x, positions[committed])
    k, v = (from_bfloat16(part).transpose(1, 0, 2) for part in (document.keys, document.values))
    moved = positions - np.arange(len(positions))
    cross = Keys(rotate(k, moved, reference._cross_frequency)[:, :root], v[:, :root], positions[:root])
    x = x[-1:]
    out = np.zeros((0, width), dtype=np.float32)
    logits = []
    for d in range(depth + 1):
        row = root + d
        if d:
            feature = features[root - 1 : root] if reference.card.draft_feature == "verified" else out
            x = reference.inputs(document.tokens[row : row + 1], feature)
            keys = keys.joined(reference.own_keys(x, positions[row : row + 1]))
        out, row_logits = reference.draft(x, positions[row : row + 1], [keys], cross)
        logits.append(row_logits[0])
    return np.stack(logits)


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
@pytest.mark.parametrize("offset", [0, 900])
def test_passes_are_drafts(draft_feature: str, offset: int) -> None:
    card = tiny_card(SOURCE, draft_feature=draft_feature)
    layer = random_layer(card)
    model = tiny_draft_layer(card, layer.head_ids)
    model.load(layer)
    reference = ReferenceLayer(layer, SOURCE.config, SOURCE.matrix("embed"), SOURCE.matrix("head")[layer.head_ids])
    made = documents(2, length=20, answer_from=5)
    hidden_before = 7
    prepared = [prepare(d, layer.head_ids) for d in made]
    samples = [
        to_sample(prepared[0], model, lag=5, offset=offset, hidden_before=hidden_before),
        to_sample(prepared[1], model, lag=5, offset=offset),
    ]
    rows = [(i, int(row)) for i, p in enumerate(prepared) for row in p.trained]
    with torch.no_grad():
        passes = model(samples, all_lags=True)
    compared = 0
    for one in passes:
        for place, logits in zip(one.rows.tolist(), one.logits.numpy(), strict=True):
            i, row = rows[place]
            root = row - one.lag + 1
            features = from_bfloat16(made[i].hidden)
            features[: hidden_before if i == 0 else 0] = 0
            at = np.arange(len(features))
            positions = at + np.where(at >= card.anchors, offset, 0)
            expected = _one_draft(reference, made[i], root, one.lag - 1, positions, features)[-1]
            np.testing.assert_allclose(logits, expected, atol=2e-3, err_msg=f"sample {i} row {row} lag {one.lag}")
            compared += 1
    # first trained row 4 (it answers for token 5): 15 and 16 rows, one less for each further lag
    assert compared == sum(15 - lag + 16 - lag for lag in range(5))


def test_one_lag_a_sample_gives_the_same() -> None:
    """With "verified" features a sample takes part in the pass of its lag alone."""
    card = tiny_card(SOURCE)
    layer = random_layer(card)
    model = tiny_draft_layer(card, layer.head_ids)
    model.load(layer)
    prepared = [prepare(d, layer.head_ids) for d in documents(3, length=20, answer_from=5)]
    with torch.no_grad():
        full = {p.lag: p for p in model([to_sample(p, model, lag=5) for p in prepared], all_lags=True)}
        some = model([to_sample(p, model, lag=lag) for p, lag in zip(prepared, (3, 1, 3), strict=True)])
    assert [p.lag for p in some] == [1, 3]
    sizes = [p.rows for p in prepared]
    spans = [set(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(3)]
    assert set(some[0].rows.tolist()) == spans[1]
    assert set(some[1].rows.tolist()) < spans[0] | spans[2]
    for one in some:
        where = torch.searchsorted(full[one.lag].rows, one.rows)
        torch.testing.assert_close(one.logits, full[one.lag].logits[where], atol=1e-4, rtol=1e-4)


def test_samples_do_not_see_one_another() -> None:
    card = tiny_card(SOURCE, draft_feature="own")
    model = tiny_draft_layer(card)
    prepared = [prepare(d, np.arange(card.sizes.head)) for d in documents(2, length=20)]
    with torch.no_grad():
        both = model([to_sample(p, model, lag=3) for p in prepared])
        alone = model([to_sample(prepared[1], model, lag=3)])
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a.logits[-len(b.logits) :], b.logits, atol=1e-4, rtol=1e-4)


def test_the_loss_by_hand() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    logs = torch.log_softmax(logits, -1)
    sample = Sample(
        *(torch.zeros(0) for _ in range(5)),
        trained=torch.tensor([1, 2]),
        run=torch.tensor([0, 1]),
        lag=1,
        ids=torch.tensor([[2, 0], [-1, 1]]),
        weights=torch.tensor([[0.6, 0.4], [0.0, 0.3]]),
        best=torch.tensor([2, -1]),  # the second row's best id is outside the head
    )
    from exactspec.training.model import Pass

    loss, rows = draft_loss([Pass(1, torch.tensor([0, 1]), logits)], [sample], soft=0.7)
    soft = -(0.6 * logs[0, 2] + 0.4 * logs[0, 0] + 0.3 * logs[1, 1])
    assert rows == 2
    torch.testing.assert_close(loss, (0.7 * soft - 0.3 * logs[0, 2]) / 2)
