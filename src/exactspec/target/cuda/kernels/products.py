"""Matrix products of int8 rows and int8 channels: exact integer sums by groups of inputs, the groups added in order.

``out[r, c] = (sum over groups g of float(sum over the group of a * w) * a_scale[r, g]) * w_scale[c]``, where the
inner sum is int32 and exact and each group is added by one float32 fused multiply-add, g in order. Nothing in it
depends on the tile an output lies in, so tiles of any height give the same bits. The conversion to float32 is exact:
a group of 128 products stays below 2**24.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def grouped_product(
    a, a_scale, w, w_scale, bias, out, rows,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    """A tile of out float32 [rows, CHANNELS].

    `a` int8 [rows, WIDTH], `a_scale` float32 [rows, WIDTH / GROUP], `w` int8 [CHANNELS, WIDTH], `w_scale` float32
    [CHANNELS]. MODE 0: out = product; 1: out = product + `bias` [CHANNELS]; 2: out += product.
    """
    r = tl.program_id(1).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    c = tl.program_id(0).to(tl.int64) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    k = tl.arange(0, GROUP)
    live = r < rows
    from_a = a + r[:, None] * WIDTH + k[None, :]
    from_w = w + c[None, :] * WIDTH + k[:, None]
    from_scale = a_scale + r * (WIDTH // GROUP)
    total = tl.full([TILE_ROWS, TILE_CHANNELS], 0.0, tl.float32)
    for _ in range(WIDTH // GROUP):
        x = tl.load(from_a, mask=live[:, None], other=0)
        whole = tl.dot(x, tl.load(from_w), out_dtype=tl.int32)
        scale = tl.load(from_scale, mask=live, other=0.0)
        total = tl.fma(whole.to(tl.float32), tl.broadcast_to(scale[:, None], [TILE_ROWS, TILE_CHANNELS]), total)
        from_a += GROUP
        from_w += GROUP
        from_scale += 1
    step = tl.broadcast_to(tl.load(w_scale + c)[None, :], [TILE_ROWS, TILE_CHANNELS])
    to = out + r[:, None] * CHANNELS + c[None, :]
    if MODE == 0:
        y = total * step
    elif MODE == 1:
        y = tl.fma(total, step, tl.broadcast_to(tl.load(bias + c)[None, :], [TILE_ROWS, TILE_CHANNELS]))
    else:
        y = tl.fma(total, step, tl.load(to, mask=live[:, None], other=0.0))
    tl.store(to, y, mask=live[:, None])
