"""Row kernels: norm, gate, quantisation. The norm, the only sum over a row, sees one row a program, in a block whose
size the model alone fixes, so its order cannot depend on other rows; the others know groups of inputs only.

Quantisation by groups of inputs: ``q = round(x * 127 / max|x|)`` (ties to even), ``scale = max|x| / 127``; NaN counts
as 0 and a group's largest value is clamped, so that garbage in one row stays finite.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_quantised(y, q, scale, cell, inside, GROUP: tl.constexpr):
    """Groups `y` float32 [n, GROUP] to `scale` and `q` int8 at the numbers `cell` [n], where `inside`."""
    y = tl.where(y == y, y, 0.0)
    most = tl.minimum(tl.maximum(tl.max(tl.abs(y), axis=1), 1e-8), 3e38)
    scaled = y * tl.div_rn(127.0, most)[:, None]
    scaled = tl.minimum(tl.maximum(scaled, -127.0), 127.0)
    # Adding 1.5 * 2**23 leaves no bits for a fraction: the sum is rounded to whole numbers, ties to even.
    whole = (scaled + 12582912.0) - 12582912.0
    tl.store(scale + cell, tl.div_rn(most, 127.0), mask=inside)
    tl.store(q + cell[:, None] * GROUP + tl.arange(0, GROUP)[None, :], whole.to(tl.int8), mask=inside[:, None])


@triton.jit(do_not_specialize=["eps"])
def norm_quantise(
    x, weight, normed, q, scale, eps,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """RMS norm (arXiv 1910.07467) of one row of `x` float32 [rows, WIDTH], quantised; `COUNT` real values of WIDTH,
    zeros behind. KEEP: also store the float row in `normed`."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < WIDTH
    v = tl.load(x + row * WIDTH + k, mask=inside, other=0.0)
    mean = tl.div_rn(tl.sum(v * v, axis=0), COUNT * 1.0)
    gain = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    y = (v * gain) * tl.load(weight + k, mask=inside, other=0.0)
    if KEEP:
        tl.store(normed + row * WIDTH + k, y, mask=inside)
    g = tl.arange(0, BLOCK // GROUP)
    cell = row * (WIDTH // GROUP) + g
    store_quantised(tl.reshape(y, [BLOCK // GROUP, GROUP]), q, scale, cell, g < WIDTH // GROUP, GROUP)


@triton.jit(do_not_specialize=["groups"])
def quantise(
    x, q, scale, groups,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """TILE groups of all rows' `groups`, in order: rows of `x` float32 [rows, COUNT], padded with zeros to WIDTH, to
    `q` [rows, WIDTH]."""
    cell = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = cell // (WIDTH // GROUP)
    k = ((cell % (WIDTH // GROUP)) * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    inside = cell < groups
    y = tl.load(x + (row * COUNT)[:, None] + k, mask=inside[:, None] & (k < COUNT), other=0.0)
    store_quantised(y, q, scale, cell, inside, GROUP)


@triton.jit(do_not_specialize=["groups"])
def gate_quantise(gate_up, q, scale, groups, WIDTH: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr):
    """TILE groups of silu(gate) * up (SwiGLU, arXiv 2002.05202), quantised. `gate_up` float32 [rows, 2 * WIDTH]:
    gates, then ups."""
    cell = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = cell // (WIDTH // GROUP)
    inside = cell < groups
    at = gate_up + (row * WIDTH + cell * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    gate = tl.load(at, mask=inside[:, None], other=0.0)
    up = tl.load(at + WIDTH, mask=inside[:, None], other=0.0)
    silu = tl.div_rn(gate, 1.0 + tl.exp2(gate * -1.4426950408889634))
    store_quantised(silu * up, q, scale, cell, inside, GROUP)
