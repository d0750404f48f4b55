"""Tau of trees on stored text, against chains by the passes of training and against a drafter that is always right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")

from tiny_layer import random_layer, tiny_card  # noqa: E402
from tiny_training import SOURCE, documents, tiny_draft_layer  # noqa: E402

from exactspec.drafters.layer.reference import ReferenceLayer  # noqa: E402
from exactspec.training.evaluate import evaluate  # noqa: E402
from exactspec.training.replay import replay  # noqa: E402
from exactspec.training.samples import prepare, to_sample  # noqa: E402


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
def test_chains_replayed_are_the_chains_of_training(draft_feature: str) -> None:
    layer = random_layer(tiny_card(SOURCE, draft_feature=draft_feature, head=260))
    model = tiny_draft_layer(layer.card, layer.head_ids)
    model.load(layer)
    # one training step's worth of luck is not enough for hits: let the text be what the layer itself would say
    (made,) = documents(1, length=40, answer_from=8)
    reference = ReferenceLayer(layer, SOURCE.config, SOURCE.matrix("embed"), SOURCE.matrix("head"))
    tokens = made.tokens.copy()
    for row in range(7, 39):  # row's draft of the next token, where the text agrees in two of three places
        one = prepare(replace(made, tokens=tokens), layer.head_ids, labels="text")
        with torch.no_grad():
            (first, *_) = model([to_sample(one, model, lag=1)], all_lags=True)
        if row % 3 and row + 1 < len(tokens):
            tokens[row + 1] = int(layer.head_ids[int(first.logits[row - one.trained[0]].argmax())])
    made = replace(made, tokens=tokens)
    found = replay(reference, [made], nodes=5, widths=(1,) * 5, most_tokens=1000)
    chains = evaluate(model, [prepare(made, layer.head_ids, labels="text")])
    assert found.tau == chains.tau
    assert chains.tau > 1.3
    wider = replay(reference, [made], nodes=60, most_tokens=1000)
    assert wider.tau >= found.tau
    assert found.by_kind == {"text": found.tau}


def test_answers_begin_after_their_prompts() -> None:
    layer = random_layer(tiny_card(SOURCE))
    reference = ReferenceLayer(layer, SOURCE.config, SOURCE.matrix("embed"), SOURCE.matrix("head")[layer.head_ids])
    (made,) = documents(1, length=30, answer_from=8)
    trained = made.trained.copy()
    trained[15:20] = 0  # a second prompt
    found = replay(reference, [replace(made, trained=trained)], nodes=1, widths=(1,), most_tokens=6)
    assert found.steps == 12  # six rows of each answer, nothing accepted
    assert found.tau == 1.0
    with pytest.raises(ValueError, match="no document has an answer"):
        replay(reference, [replace(made, trained=np.zeros_like(trained))])
