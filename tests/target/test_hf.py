"""The float target: every row of a tree against transformers' own forward over that row's path."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float target runs on torch")
transformers = pytest.importorskip("transformers", reason="the float target runs models of transformers")

from tiny_hf import MODELS, VOCAB, tiny  # noqa: E402

from exactspec.target.base import Segment, Want  # noqa: E402
from exactspec.target.hf import HFTarget, context_of, top  # noqa: E402
from exactspec.target.hf_attention import GROUPED  # noqa: E402
from exactspec.target.hf_layers import read_layers  # noqa: E402

CLOSE = {"rtol": 1e-3, "atol": 1e-3}
_OWN_ATTENTION = {"gemma2"}  # caps its attention logits, which only its own function does


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    """A target, and transformers' own forward of the same weights: ids -> (logits, output of the final norm)."""
    plain = tiny(request.param)

    def reference(ids):
        with torch.inference_mode():
            out = plain(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        return out.logits[0].numpy(), out.hidden_states[-1][0].numpy()

    target = HFTarget(tiny(request.param), threads=1)
    assert (target.attention == GROUPED) == (request.param not in _OWN_ATTENTION)
    return target, reference


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def random_tree(rng, n):
    tokens, parents, used = [int(rng.integers(VOCAB))], [-1], set()
    while len(tokens) < n:
        parent = len(tokens) - 1 if rng.random() < 0.7 else int(rng.integers(len(tokens)))
        token = int(rng.integers(VOCAB))
        if (parent, token) not in used:
            used.add((parent, token))
            parents.append(parent)
            tokens.append(token)
    return np.array(tokens), np.array(parents)


def path_to(parents, row):
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path


def filled(target, prompt, blocks=(1000,)):
    cache, at, turn = target.new_cache(), 0, 0
    while at < len(prompt):
        block = prompt[at : at + blocks[turn % len(blocks)]]
        target.forward([Segment.chain(cache, block, Want.NONE)])
        cache.keep(range(len(block)))
        at, turn = at + len(block), turn + 1
    assert cache.length == len(prompt)
    return cache


@pytest.mark.parametrize(("root", "rows"), [(0, 12), (1, 40), (5, 12), (7, 12), (8, 40), (30, 40), (30, 12)])
def test_a_tree_against_its_paths(pair, root, rows):
    """Few rows and many take different ways through attention; the windows are 6 and 8."""
    target, reference = pair
    prompt = text(root, seed=root)
    cache = filled(target, prompt)
    tokens, parents = random_tree(np.random.default_rng(root), rows)
    (found,) = target.forward([Segment(cache, tokens, parents, np.full(rows, Want.LOGITS))])
    assert cache.length == root
    for leaf in set(range(rows)) - set(parents.tolist()):
        path = path_to(parents, leaf)
        logits, hidden = reference([*prompt, *tokens[path].tolist()])
        for depth, row in enumerate(path):
            np.testing.assert_allclose(found.row_logits(row), logits[root + depth], **CLOSE)
            np.testing.assert_allclose(found.hidden[row], hidden[root + depth], **CLOSE)
            assert found.argmax[row] == found.row_logits(row).argmax()


@pytest.mark.parametrize("blocks", [(1,), (7, 1, 20), (64,)], ids=str)
def test_any_prompt_chunks(pair, blocks):
    target, reference = pair
    prompt = text(40)
    cache = filled(target, prompt, blocks)
    (rows,) = target.forward([Segment.chain(cache, [3, 4], Want.LOGITS)])
    np.testing.assert_allclose(rows.logits, reference([*prompt, 3, 4])[0][-2:], **CLOSE)


def test_keep_truncate_fork_against_a_fresh_run(pair):
    """Random operations on a few caches; the tokens each should hold are kept beside it, and every now and then what
    follows is compared with a forward from nothing. The caches grow past their first slab."""
    target, reference = pair
    rng = np.random.default_rng(1)
    held = [(target.new_cache(), [])]
    checked = forks = cut = 0
    for step in range(80):
        at = int(rng.integers(len(held)))
        cache, ids = held[at]
        what = rng.random()
        if what < 0.2 and len(held) < 4:
            held.append((cache.fork(), list(ids)))
            forks += 1
        elif what < 0.4 and ids:
            n = int(rng.integers(max(0, len(ids) - 12), len(ids) + 1))
            cache.truncate(n)
            del ids[n:]
            cut += 1
        elif len(ids) < 200:
            tokens, parents = random_tree(rng, int(rng.integers(1, 30)))
            target.forward([Segment(cache, tokens, parents, np.full(len(tokens), Want.NONE))])
            path = path_to(parents, int(rng.integers(len(tokens))))[: int(rng.integers(0, 9))]
            cache.keep(path)
            ids += tokens[path].tolist()
        assert [c.length for c, _ in held] == [len(i) for _, i in held]
        if step % 5 == 0:
            (rows,) = target.forward([Segment.chain(cache, [9, 8], Want.LOGITS)])
            np.testing.assert_allclose(rows.logits, reference([*ids, 9, 8])[0][-2:], **CLOSE)
            cache.keep([])
            checked += 1
    assert min(checked, forks, cut) >= 3


def test_growing_past_the_first_slab():
    """Committed tokens move along when a slab is replaced by a larger one, in a fork too."""
    target, plain = (
        HFTarget(tiny("llama", max_position_embeddings=1024), threads=1),
        tiny("llama", max_position_embeddings=1024),
    )
    prompt = text(600)
    cache = filled(target, prompt[:250])
    small = cache.nbytes
    other = cache.fork()
    for one in (cache, other):
        for block in (prompt[250:260], prompt[260:]):
            target.forward([Segment.chain(one, block, Want.NONE)])
            one.keep(range(len(block)))
        assert one.nbytes > small
        (rows,) = target.forward([Segment.chain(one, [5], Want.LOGITS)])
        with torch.inference_mode():
            expected = plain(torch.tensor([[*prompt, 5]])).logits[0, -1].numpy()
        np.testing.assert_allclose(rows.row_logits(0), expected, **CLOSE)


def test_segments_together_and_alone(pair):
    target, _ = pair
    rng = np.random.default_rng(2)
    trees = [random_tree(rng, n) for n in (1, 5, 20)]
    caches = [filled(target, text(n, seed=n)) for n in (0, 4, 17)]
    make = lambda i, cache: Segment(cache, *trees[i], np.full(len(trees[i][0]), Want.LOGITS))  # noqa: E731
    alone = [target.forward([make(i, cache.fork())])[0] for i, cache in enumerate(caches)]
    together = target.forward([make(i, cache) for i, cache in enumerate(caches)])
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, **CLOSE)


def test_what_is_wanted(pair):
    target, _ = pair
    tokens = text(24)
    (full,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
    want = np.array([Want.NONE, Want.ARGMAX, Want.LOGITS, Want.TOPK] * 6)
    (mixed,) = target.forward([Segment(target.new_cache(), np.array(tokens), np.arange(-1, 23), want)])
    assert np.array_equal(mixed.argmax[want > 0], full.argmax[want > 0])
    assert (mixed.argmax[want == 0] == -1).all()
    np.testing.assert_allclose(mixed.row_logits(6), full.row_logits(6), **CLOSE)
    order = np.argsort(-full.logits, axis=1, kind="stable")[:, : target.top_k]
    assert np.array_equal(mixed.topk_ids[want >= Want.TOPK], order[want >= Want.TOPK])
    with pytest.raises(ValueError, match="row 1 has no logits"):
        mixed.row_logits(1)
    (none,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.NONE)])
    np.testing.assert_allclose(none.hidden, full.hidden, **CLOSE)
    assert len(none.logits) == 0


def test_bfloat16():
    target = HFTarget(tiny("qwen3").to(torch.bfloat16), threads=1)
    assert "bfloat16" in target.identity
    plain = tiny("qwen3")
    prompt = text(20)
    cache = filled(target, prompt)
    tokens, parents = random_tree(np.random.default_rng(0), 14)
    (rows,) = target.forward([Segment(cache, tokens, parents, np.full(14, Want.LOGITS))])
    assert rows.logits.dtype == rows.hidden.dtype == np.float32
    off = []
    for row in range(14):
        path = tokens[path_to(parents, row)].tolist()
        with torch.inference_mode():
            expected = plain(torch.tensor([[*prompt, *path]])).logits[0, -1].numpy()
        off.append(np.abs(rows.row_logits(row) - expected).max() / np.abs(expected).max())
    assert np.median(off) < 0.05


def test_ties_go_to_the_lowest_id():
    logits = np.zeros((2, 20), dtype=np.float32)
    logits[0, [3, 7, 11]] = 2.0
    logits[1, 19] = 1.0
    ids, values = top(logits, 5)
    assert ids.tolist() == [[3, 7, 11, 0, 1], [19, 0, 1, 2, 3]]
    assert values.tolist() == [[2, 2, 2, 0, 0], [1, 0, 0, 0, 0]]
    assert top(logits[:, :3], 5)[0][0].tolist() == [0, 1, 2, -1, -1]


def test_near_ties_are_counted():
    """Two equal rows of the head: wherever one of the two ids is best, both are."""
    model = tiny("llama")
    target = HFTarget(model, threads=1)
    assert (target.near_ties.rows, target.near_ties.count) == (0, 0)  # the trial at the start does not count
    target.forward([Segment.chain(target.new_cache(), text(40), Want.ARGMAX)])
    before = target.near_ties
    assert (before.rows, before.count) == (40, 0)
    assert before.smallest_gap > 0
    best = int(target.forward([Segment.chain(target.new_cache(), text(40), Want.ARGMAX)])[0].argmax[-1])
    with torch.no_grad():
        model.lm_head.weight[(best + 1) % VOCAB] = model.lm_head.weight[best]
    (rows,) = target.forward([Segment.chain(target.new_cache(), text(40), Want.ARGMAX, last_only=True)])
    after = target.near_ties
    assert (after.rows, after.count, after.smallest_gap) == (81, 1, 0.0)
    assert rows.argmax[-1] == min(best, (best + 1) % VOCAB)


def test_not_exact_and_says_so(caplog):
    with caplog.at_level("INFO", logger="exactspec.target.hf"):
        target = HFTarget(tiny("llama"), threads=1, weights="ab" * 32)
    assert target.exact is False
    assert "near-ties" in target.promise
    assert [record.getMessage() for record in caplog.records] == [f"llama: {target.promise}"]
    for part in ("llama", "cpu-float32", f"torch-{torch.__version__}", "abababababababab"):
        assert part in target.identity.split("/")


def test_segments_are_checked():
    target = HFTarget(tiny("llama"), threads=1, context=32)
    assert target.max_length == 32
    cache = target.new_cache()
    for tokens, parents, message in (
        ([VOCAB], [-1], "outside the vocabulary"),
        ([1, 2], [-1, 1], "malformed|earlier row"),
        ([1, 2, 2], [-1, 0, 0], "siblings"),
        ([1] * 33, range(-1, 32), "past the longest context"),
    ):
        with pytest.raises(ValueError, match=message):
            target.forward([Segment(cache, np.array(tokens), np.array(parents), np.ones(len(tokens), dtype=int))])
    target.forward([Segment.chain(cache, [1, 2, 3])])
    for path in ([1], [0, 2], [0, 1, 2, 3]):
        with pytest.raises(ValueError, match="no path from the root"):
            cache.keep(path)
    cache.keep([0, 1])
    for n in (-1, 3):
        with pytest.raises(ValueError, match="cannot truncate"):
            cache.truncate(n)
    with pytest.raises(ValueError, match="new_cache"):
        HFTarget(tiny("llama"), threads=1).forward([Segment.chain(object(), [1])])
    target.close()
    with pytest.raises(RuntimeError, match="closed"):
        target.forward([Segment.chain(cache, [1])])


def test_an_interrupt_leaves_a_cache_that_goes_on():
    target = HFTarget(tiny("llama"), threads=1)
    prompt = text(20)
    cache = filled(target, prompt)
    (rows,) = target.forward([Segment.chain(cache.fork(), [1, 2], Want.LOGITS)])
    layer = target._model.model.layers[1]

    def stop(*args):
        raise KeyboardInterrupt

    hook = layer.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        target.forward([Segment.chain(cache, text(300, seed=1)[:200], Want.NONE)])
    hook.remove()
    with pytest.raises(ValueError, match="0 staged rows"):
        cache.keep([0])
    (again,) = target.forward([Segment.chain(cache, [1, 2], Want.LOGITS)])
    np.testing.assert_allclose(again.logits, rows.logits, **CLOSE)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("MambaConfig", "mamba has linear_attention layers"),
        ("RwkvConfig", "rwkv has recurrent layers"),
        ("Qwen3NextConfig", "qwen3_next has linear_attention layers"),
        ("FalconH1Config", "falcon_h1 has hybrid layers"),
        ("RecurrentGemmaConfig", "recurrent_gemma has linear_attention layers"),
    ],
)
def test_layers_that_cannot_go_back_are_refused(config, name):
    with pytest.raises(ValueError, match=f"{name}.*snapshots") as error:
        read_layers(getattr(transformers, config)())
    assert "\n" not in str(error.value)


def test_short_convolutions_are_refused():
    config = transformers.Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"])
    with pytest.raises(ValueError, match=r"lfm2 has conv layers \(LinearAttentionLayer, the first is layer 0\)"):
        read_layers(config)


def test_other_layers_are_refused():
    with pytest.raises(ValueError, match="chunked_attention layers"):
        read_layers(transformers.Llama4TextConfig())
    with pytest.raises(ValueError, match="encoder-decoder"):
        read_layers(transformers.T5Config())


@pytest.mark.parametrize("name", ["Bloom", "Bert"])
def test_models_that_do_not_follow_the_tree_are_refused(name):
    """BLOOM's positions come from a mask of its own; BERT as a decoder sees what comes after."""
    sizes = {"vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "Bert":
        model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes, intermediate_size=64))
    else:
        model = transformers.BloomForCausalLM(transformers.BloomConfig(**sizes, n_head=4))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=1.5 / parameter.shape[-1] ** 0.5)
    with pytest.raises(ValueError, match="does not follow a tree of drafts"):
        HFTarget(model, threads=1, context=64)


def test_the_context():
    sizes = {"vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert context_of(transformers.LlamaConfig(max_position_embeddings=100), None) == 100
    assert context_of(transformers.LlamaConfig(max_position_embeddings=100), 400) == 100
    with pytest.raises(ValueError, match="states no longest context"):
        context_of(transformers.BloomConfig(**sizes), None)
    long = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4}
    config = transformers.Phi3Config(
        **sizes | {"hidden_size": 64},
        num_key_value_heads=4,
        max_position_embeddings=4000,
        original_max_position_embeddings=1000,
        rope_parameters=long,
        pad_token_id=0,
    )
    assert context_of(config, None) == 1000
