"""The estimate against what is really held, the refusal, and where the figures of the machine come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_weights import RandomWeights

from exactspec.memory import _control_group, _meminfo, available_memory, estimate, require_memory
from exactspec.target.cache import PageShape
from exactspec.target.cpu import describe_cpu
from exactspec.target.kernels.compile import load_kernels
from exactspec.target.pack import pack_model

GIB = 2**30


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head_dim", [16, 20, 64])
def test_estimate_equals_what_is_packed(head_dim: int, tied: bool) -> None:
    source = RandomWeights(head_dim=head_dim, vocab_size=300, tied_head=tied, intermediate_size=100)
    packed = pack_model(source, load_kernels(describe_cpu()).packing, 2)
    need = estimate(source.config, context=1000)
    assert need.weights == pytest.approx(packed.nbytes, rel=0.02)
    page = PageShape(source.config.num_layers, source.config.num_kv_heads, packed.sizes.head_pad).page_bytes
    assert need.cache == 8 * page
    assert need.total == need.weights + need.cache + need.scratch


def test_by_hand() -> None:
    """qwen2.5-coder-1.5b at 32k: 28 layers x 2 x 2 heads x 128 x 2 bytes = 28 kB a token in bfloat16."""
    config = replace(
        RandomWeights("qwen2").config,
        vocab_size=151936,
        hidden_size=1536,
        num_layers=28,
        num_heads=12,
        num_kv_heads=2,
        head_dim=128,
        intermediate_size=8960,
        max_position=32768,
        tied_head=True,
    )
    assert estimate(config, context=32768).cache == 28 * 2 * 2 * 128 * 2 * 32768
    assert estimate(config, context=32768, cache_dtype="float32").cache == 28 * 2 * 2 * 128 * 4 * 32768
    assert estimate(config, context=32768, cache_dtype="int8").cache == 28 * 2 * 2 * (128 + 4) * 32768
    assert 1.5e9 < estimate(config, context=1).weights < 1.6e9  # 1.54 billion parameters
    with pytest.raises(
        ValueError, match=r"1\.4\d GiB weights \+ 0\.88 GiB cache for 32768 tokens .* available 2\.00 GiB"
    ):
        require_memory(config, available=2 * GIB)
    with pytest.raises(ValueError, match=r"set the context to at most (\d+) tokens") as error:
        require_memory(config, available=2 * GIB)
    fits = int(str(error.value).split("at most ")[1].split()[0])
    assert require_memory(config, context=fits // 128 * 128, available=2 * GIB).total <= 2 * GIB
    with pytest.raises(ValueError, match="take a smaller model"):
        require_memory(config, available=GIB)
    assert require_memory(config, available=8 * GIB).total < 8 * GIB


def test_unknown_cache_dtype() -> None:
    with pytest.raises(ValueError, match="cache_dtype must be one of bfloat16, float32, int8, got 'int3'"):
        estimate(RandomWeights().config, context=1, cache_dtype="int3")


def test_available_memory_is_a_plausible_figure() -> None:
    have = available_memory()
    assert have is None or 2**20 < have < 2**50


def test_meminfo() -> None:
    assert _meminfo("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:    64 kB\n") == 65536
    assert _meminfo("MemTotal:  100 kB\n") is None
    assert _meminfo(None) is None


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    root = tmp_path / "fs"
    group(root / "a", memory__max="1000", memory__current="900", memory__stat="anon 5\ninactive_file 300\n")
    group(root / "a" / "b", memory__max="max", memory__current="50", memory__stat="inactive_file 0\n")
    assert _control_group(root, membership) == 400
    group(root / "a" / "b", memory__max="70")
    assert _control_group(root, membership) == 20
    assert _control_group(tmp_path / "none", membership) is None
    assert _control_group(root, tmp_path / "absent") is None


def test_in_a_container_the_path_is_not_there(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/docker/12345\n")
    group(tmp_path / "fs", memory__max="500", memory__current="100")
    assert _control_group(tmp_path / "fs", membership) == 400


def test_version_one_groups(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("5:cpu:/x\n4:memory:/job\n")
    folder = tmp_path / "fs" / "memory" / "job"
    group(folder, memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    assert _control_group(tmp_path / "fs", membership) is None
    group(folder, memory__limit_in_bytes="800", memory__stat="total_inactive_file 10\n")
    assert _control_group(tmp_path / "fs", membership) == 805
