"""Model files: every format gives the matrices that went in, and what cannot be run is refused by name."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from tiny_files import HEADS, HIDDEN, INNER, KV_HEADS, matrices, permute, stored_tensors, write_gguf

from exactspec.target.dequant import Dequantiser
from exactspec.target.gguf_file import GgufSource
from exactspec.target.load import open_model

QUANTISED = [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K]
PLAIN = [Q.F32, Q.F16, Q.BF16]
# Where the float16 scales lie in a block.
SCALES = {
    Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q2_K: [80, 82], Q.Q3_K: [108],
    Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.F16: [0], Q.IQ4_NL: [0],
}  # fmt: skip


def random_rows(kind: Q, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Stored bytes [rows, row bytes], every bit pattern there may be, but finite."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // weights, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(blocks, kind).reshape(len(blocks), -1)).all(axis=1)
    blocks[~finite] = 0
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", [*QUANTISED, *PLAIN, Q.IQ4_NL], ids=lambda kind: kind.name)
def test_every_type_equals_ggufs_own_numbers(kind: Q, tmp_path: Path) -> None:
    raw = random_rows(kind, 512, 256)
    expected = gguf.quants.dequantize(raw, kind).astype(np.float32)
    assert len(np.unique(expected)) > 100, "the test data says something"
    values, finite = Dequantiser()(raw, kind)
    assert finite
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", [*SCALES], ids=lambda kind: kind.name)
@pytest.mark.parametrize("bad", [0x7C00, 0xFC00, 0x7E00], ids=["inf", "-inf", "nan"])
def test_a_scale_that_is_not_finite_is_seen(kind: Q, bad: int) -> None:
    for at in SCALES[kind]:
        raw = random_rows(kind, 4, 256)
        raw[2, at : at + 2] = np.frombuffer(struct.pack("<H", bad), dtype=np.uint8)
        assert not Dequantiser()(raw, kind)[1]


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_gguf_gives_back_every_tensor(arch: str, tied: bool, tmp_path: Path) -> None:
    weights = matrices(1, tied=tied, bias=arch == "qwen2")
    source = GgufSource(write_gguf(tmp_path / "m.gguf", arch, weights))
    assert source.config.family == arch
    assert source.config.tied_head == tied
    assert source.config.attention_bias == (arch == "qwen2")
    for name, expected in weights.items():
        if expected.ndim == 1:
            np.testing.assert_array_equal(source.vector(name), expected)
            continue
        np.testing.assert_array_equal(source.matrix(name), expected)
        np.testing.assert_array_equal(source.matrix(name, 5, 23), expected[5:23])
        assert source.matrix(name, 7, 7).shape == (0, expected.shape[1])
    if tied:
        with pytest.raises(KeyError):
            source.matrix("head")


def test_the_stored_order_of_llama_files_is_another_one() -> None:
    """The un-permutation has something to undo, for q and for k with its own head count."""
    weights = matrices(1)
    stored = stored_tensors("llama", weights)
    q, k = weights["layers.0.q"], weights["layers.0.k"]
    np.testing.assert_array_equal(stored["blk.0.attn_q.weight"], permute(q, HEADS))
    np.testing.assert_array_equal(stored["blk.0.attn_k.weight"], permute(k, KV_HEADS))
    assert not np.array_equal(stored["blk.0.attn_q.weight"], q)
    assert not np.array_equal(permute(k, HEADS), permute(k, KV_HEADS))


def test_biases_of_a_llama_file_are_permuted_too(tmp_path: Path) -> None:
    weights = matrices(2, bias=True)
    source = GgufSource(write_gguf(tmp_path / "m.gguf", "llama", weights))
    assert source.config.attention_bias
    for name in ("layers.1.q_bias", "layers.1.k_bias", "layers.1.v_bias"):
        np.testing.assert_array_equal(source.vector(name), weights[name])


def test_quantised_rows_in_a_file_and_row_ranges(tmp_path: Path) -> None:
    raw = random_rows(Q.Q4_1, HIDDEN, HIDDEN, seed=3)
    path = write_gguf(tmp_path / "m.gguf", stored={"blk.0.attn_q.weight": (raw, Q.Q4_1)})
    whole = gguf.quants.dequantize(raw, Q.Q4_1)
    source = GgufSource(path)
    rotate_half = np.empty_like(whole)
    for head in range(HEADS):  # row 2j + p of a head goes to p * d/2 + j
        for j in range(8):
            for p in range(2):
                rotate_half[head * 16 + p * 8 + j] = whole[head * 16 + 2 * j + p]
    np.testing.assert_array_equal(source.matrix("layers.0.q"), rotate_half)
    np.testing.assert_array_equal(source.matrix("layers.0.q", 9, 41), rotate_half[9:41])


def test_rope_freqs_and_linear_scaling_become_divisors(tmp_path: Path) -> None:
    freqs = np.linspace(1, 8, 8, dtype=np.float32)
    stored = {"rope_freqs.weight": (freqs, Q.F32)}
    np.testing.assert_array_equal(
        GgufSource(write_gguf(tmp_path / "a.gguf", stored=stored)).config.rope_divisors, freqs.astype(np.float64)
    )
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    config = GgufSource(write_gguf(tmp_path / "b.gguf", metadata=linear)).config
    np.testing.assert_array_equal(config.rope_divisors, np.full(8, 4.0))
    assert GgufSource(write_gguf(tmp_path / "c.gguf")).config.rope_divisors is None


def test_the_head_size_the_file_states_is_taken(tmp_path: Path) -> None:
    weights = matrices(0)
    assert GgufSource(write_gguf(tmp_path / "m.gguf", weights=weights)).config.head_dim == 16
    without = write_gguf(tmp_path / "n.gguf", drop=("attention.key_length", "attention.value_length"))
    assert GgufSource(without).config.head_dim == HIDDEN // HEADS


def test_the_hash_is_the_files_unless_it_is_known(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert GgufSource(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert GgufSource(path, sha256="known").sha256 == "known"


def test_reading_after_close_is_an_error(tmp_path: Path) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf"))
    source.close()
    with pytest.raises(ValueError, match="was closed"):
        source.matrix("embed")


def test_rows_outside_a_matrix_and_the_wrong_reader(tmp_path: Path) -> None:
    source = GgufSource(write_gguf(tmp_path / "m.gguf"))
    for start, stop in ((-1, 3), (4, 3), (0, INNER + 1)):
        with pytest.raises(ValueError, match="has rows 0:"):
            source.matrix("layers.0.gate", start, stop)
    with pytest.raises(ValueError, match="is a vector"):
        source.matrix("norm")
    with pytest.raises(ValueError, match="is a matrix"):
        source.vector("embed")
    with pytest.raises(KeyError):
        source.matrix("layers.9.q")


REFUSED_METADATA = [
    ({"expert_count": 4}, "mixture-of-experts"),
    ({"rope.scaling.type": "yarn"}, "the header lacks llama.rope.scaling.factor"),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": -4.0}, "rope scaling 'yarn' has numbers out of range"),
    (
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.1},
        "yarn_log_multiplier",
    ),
    ({"rope.scaling.type": "longrope"}, "rope scaling 'longrope'"),
    ({"rope.dimension_count": 8}, "a part of the head"),
    ({"attention.value_length": 32}, "keys and values of different sizes"),
    ({"attention.causal": False}, "not causal"),
    ({"attention.head_count_kv": 3}, "cannot share 3"),
    ({"attention.head_count": [4, 2]}, "differs between layers"),
    ({"logit_scale": 2.0}, "logit_scale"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({".general.type": "adapter"}, "'adapter'"),
    ({".split.count": 3}, "one of 3 parts"),
    ({"block_count": 3}, "tensor blk.2.attn_norm.weight is missing"),
    ({"block_count": 2**30}, "layers and holds only"),
    ({"feed_forward_length": 128}, "tensor blk.0.ffn_gate.weight has shape"),
    ({"context_length": "long"}, "should be an integer"),
]


@pytest.mark.parametrize(("metadata", "reason"), REFUSED_METADATA, ids=[reason for _, reason in REFUSED_METADATA])
def test_gguf_variants_are_refused_by_name(metadata: dict[str, object], reason: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ValueError, match=reason) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("mamba2", "recurrent layers"),
        ("rwkv7", "recurrent layers"),
        ("jamba", "recurrent layers"),
        ("qwen2moe", "mixture-of-experts layers"),
        ("gemma2", "'gemma2' is not supported: its attention scores are soft-capped"),
        ("bert", "architecture 'bert' is not supported"),
    ],
)
def test_other_architectures_are_refused_by_kind_of_layer(arch: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        open_model(write_gguf(tmp_path / "m.gguf", arch))


def test_tensors_that_are_missing_or_do_not_belong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tensor blk\.1\.ffn_up\.weight is missing"):
        open_model(write_gguf(tmp_path / "a.gguf", drop=("blk.1.ffn_up.weight",)))
    extra = {"blk.0.attn_q_norm.weight": (np.ones(16, np.float32), Q.F32)}
    with pytest.raises(ValueError, match=r"blk\.0\.attn_q_norm\.weight does not belong"):
        open_model(write_gguf(tmp_path / "b.gguf", stored=extra))
    bias = {"blk.0.attn_output.bias": (np.ones(HIDDEN, np.float32), Q.F32)}
    with pytest.raises(ValueError, match=r"attn_output\.bias does not belong"):
        open_model(write_gguf(tmp_path / "c.gguf", stored=bias))


def test_a_window_is_read(tmp_path: Path) -> None:
    window = {"attention.sliding_window": 32}
    assert open_model(write_gguf(tmp_path / "m.gguf", metadata=window)).source.config.layer_windows == (32, 32)
    switched_off = write_gguf(tmp_path / "q.gguf", "qwen2", metadata=window)
    assert open_model(switched_off).source.config.layer_windows is None


def test_values_that_are_not_finite_name_their_tensor(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        weights = matrices(0)
        weights["layers.1.up"][7, 9] = bad
        weights["layers.0.mlp_norm"][3] = bad
        source = GgufSource(write_gguf(tmp_path / "m.gguf", weights=weights))
        with pytest.raises(ValueError, match=r"tensor blk\.1\.ffn_up\.weight holds values that are not finite"):
            source.matrix("layers.1.up")
        with pytest.raises(ValueError, match=r"tensor blk\.0\.ffn_norm\.weight"):
            source.vector("layers.0.mlp_norm")
        source.matrix("layers.1.up", 8)


def test_what_is_no_gguf_or_only_a_part_of_one(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    cases = {b"": "too short", b"PK\x03\x04" + whole[4:]: "does not start with 'GGUF'"}
    cases |= {whole[:4] + struct.pack("<I", 1) + whole[8:]: "version 1", whole[:-1]: "truncated"}
    cases |= {whole[:4] + struct.pack(">I", 3) + whole[8:]: "big endian"}
    for data, reason in cases.items():
        broken.write_bytes(data)
        with pytest.raises(ValueError, match=reason):
            open_model(broken)
    with pytest.raises(ValueError, match="No such file"):
        open_model(tmp_path / "none.gguf")


def test_a_damaged_header_is_one_line_whatever_the_damage(tmp_path: Path) -> None:
    """Cut anywhere, or with any byte changed: a ValueError or a model, nothing else."""
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    header = len(whole) - sum(array.nbytes for array in stored_tensors("llama", matrices(0)).values())
    rng = random.Random(0)
    broken = tmp_path / "broken.gguf"
    messages: list[str] = []
    for trial in range(300):
        data = bytearray(whole)
        if trial < 60:
            data = data[: rng.randrange(header)]
        else:
            for _ in range(rng.choice((1, 1, 4))):
                data[rng.randrange(header)] = rng.randrange(256)
        broken.write_bytes(data)
        try:
            open_model(broken)
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 60
    assert not [message for message in messages if "\n" in message]


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_real_files_equal_ggufs_own_numbers(name: str, model_file: Callable[[str], Path]) -> None:
    """First and last rows of each kind of tensor there is in the file."""
    path = model_file(name)
    source = GgufSource(path)
    header = source.header
    names = {"v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    seen = set()
    for part in names:
        for layer in range(source.config.num_layers):
            tensor = header.tensors[f"blk.{layer}.{names[part]}.weight"]
            if (part, tensor.kind) in seen:
                continue
            seen.add((part, tensor.kind))
            rows = tensor.shape[0]
            raw = np.memmap(path, dtype=np.uint8, mode="r", offset=tensor.start, shape=(rows, tensor.row_bytes))
            for start, stop in ((0, 5), (rows - 5, rows)):
                expected = gguf.quants.dequantize(np.asarray(raw[start:stop]), tensor.kind)
                np.testing.assert_array_equal(source.matrix(f"layers.{layer}.{part}", start, stop), expected)
    assert seen
