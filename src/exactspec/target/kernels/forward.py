"""The whole forward, run by every thread of a team at once.

Between two barriers the threads share the units of one product, the attention tasks of one layer, or the rows of
one row kernel. No result depends on who computed it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attend import attention_task, merge_pair
from exactspec.target.kernels.float_tile import INT8
from exactspec.target.kernels.frame import LAYER, MATRIX_FIELDS
from exactspec.target.kernels.heads import heads_phase
from exactspec.target.kernels.isa import avx2, avx512vnni, avx512vnni_256, avx512vnni_emulated, avxvnni, portable
from exactspec.target.kernels.matrix import INT8_UNITS, NIBBLE_UNITS, WIDE
from exactspec.target.kernels.products import UNIT
from exactspec.target.kernels.rows import add_row, embed_row, norm_row, quantise_blocks, quantise_row
from exactspec.target.kernels.sync import (
    COMING_CELL,
    GENERATION_CELL,
    LINE,
    PARKED_CELL,
    atomic_load,
    barrier,
    enter_float_mode,
    exchange,
    fetch_add,
    give_way,
    leave_float_mode,
    next_unit,
    relax,
    reset_counter,
    run_job,
    share_start,
)
from exactspec.target.kernels.units import gated_unit, head_unit, offer, qkv_unit, residual_unit, store_int8_unit

QKV, OUT, GATE_UP, DOWN = (8 * LAYER[f"{name}_{MATRIX_FIELDS[0]}"] for name in ("qkv", "o", "gate_up", "down"))
ATTN_NORM, MLP_NORM, QKV_BIAS = LAYER["attn_norm"], LAYER["mlp_norm"], LAYER["qkv_bias"]
Q_NORM, K_NORM, ROPE_TABLE = LAYER["q_norm"], LAYER["k_norm"], LAYER["rope_table"]
POST_ATTN_NORM, POST_MLP_NORM = LAYER["post_attn_norm"], LAYER["post_mlp_norm"]
LAYER_BYTES = 8 * len(LAYER)


@njit(nogil=True, error_model="numpy")
def settle_row(f, post, r):
    """Add what a sublayer left in `normed`, normed by `post`; nothing where it has added its output itself (post 0)."""
    if post:
        left = f.normed + 4 * r * f.width_pad
        norm_row(left, post, f.width, f.width_pad, f.eps, left)
        add_row(left, f.width_pad, f.x + 4 * r * f.width_pad)


@njit(nogil=True, error_model="numpy")
def quantise_int8(isa, f, row, values, width, wide):
    """`values` float32 [width] become row `row` of the activations for int8 weights."""
    cell = 4 * row * f.groups
    q = f.activations + row * f.activation_stride
    group = f.wide_group if wide else f.narrow_group
    quantise_row(isa, values, width, group, wide, q, f.plane, f.scale + cell, f.offset + cell)


@njit(nogil=True, error_model="numpy")
def quantise(isa, f, row, values, width, matrix):
    """`values` float32 [width] become row `row` of the activations as the matrix at `matrix` wants them."""
    if v.load_i64s(matrix + NIBBLE_UNITS):
        q, cell = f.block_activations + row * f.block_stride, 4 * row * f.blocks
        quantise_blocks(values, width, q, f.block_scale + cell, f.block_sum + cell)
    if v.load_i64s(matrix + INT8_UNITS):
        quantise_int8(isa, f, row, values, width, v.load_i64s(matrix + WIDE))


@njit(nogil=True, error_model="numpy")
def norm_phase(isa, f, post, weight, matrix, threads, thread):
    for r in range(share_start(f.rows, threads, thread), share_start(f.rows, threads, thread + 1)):
        settle_row(f, post, r)
        normed = f.normed + 4 * r * f.width_pad
        norm_row(f.x + 4 * r * f.width_pad, weight, f.width, f.width_pad, f.eps, normed)
        quantise(isa, f, r, normed, f.width_pad, matrix)


@njit(nogil=True, error_model="numpy")
def quantise_phase(isa, f, values, width, matrix, threads, thread):
    for r in range(share_start(f.rows, threads, thread), share_start(f.rows, threads, thread + 1)):
        quantise(isa, f, r, values + 4 * r * width, width, matrix)


@njit(nogil=True, error_model="numpy")
def post_mlp_norm(f, layer):
    """The norm that the output of this layer's feed-forward part waits for; 0 if none, and before the first layer."""
    if layer < 0:
        return 0
    return v.load_i64s(f.layer_table + layer * LAYER_BYTES + 8 * POST_MLP_NORM)


@njit(nogil=True, error_model="numpy")
def layer_forward(isa, f, layer, threads, thread):
    team, private = f.team, f.private + thread * f.private_bytes
    table = f.layer_table + layer * LAYER_BYTES
    attended = f.heads * f.head_pad

    norm_phase(isa, f, post_mlp_norm(f, layer - 1), v.load_i64s(table + 8 * ATTN_NORM), table + QKV, threads, thread)
    reset_counter(team, 1, thread)
    barrier(team, threads)

    bias = v.load_i64s(table + 8 * QKV_BIAS)
    cos, sin = f.cos, f.sin
    if v.load_i64s(table + 8 * ROPE_TABLE):
        cos, sin = f.local_cos, f.local_sin
    q_norm, k_norm = v.load_i64s(table + 8 * Q_NORM), v.load_i64s(table + 8 * K_NORM)
    units = (f.heads + 2 * f.kv_heads) * f.head_pad // UNIT
    unit = next_unit(team, 0, units, threads, thread)
    while unit >= 0:
        qkv_unit(isa, f, layer, unit, table + QKV, bias, cos, sin, q_norm, private)
        unit = next_unit(team, 0, units, threads, thread)
    barrier(team, threads)
    if q_norm:
        heads_phase(f, layer, q_norm, k_norm, cos, sin, threads, thread, private)
        barrier(team, threads)

    if f.cache_kind == INT8:
        fresh = f.rows * 2 * f.kv_heads
        for i in range(share_start(fresh, threads, thread), share_start(fresh, threads, thread + 1)):
            store_int8_unit(f, layer, i, private)
        barrier(team, threads)
    reset_counter(team, 0, thread)
    task = next_unit(team, 1, f.tasks, threads, thread)
    while task >= 0:
        attention_task(isa, f, layer, task, private)
        task = next_unit(team, 1, f.tasks, threads, thread)
    barrier(team, threads)
    if f.split:
        pairs = f.rows * f.heads
        for pair in range(share_start(pairs, threads, thread), share_start(pairs, threads, thread + 1)):
            merge_pair(f, layer, pair, private)
        barrier(team, threads)

    quantise_phase(isa, f, f.attended, attended, table + OUT, threads, thread)
    reset_counter(team, 1, thread)
    barrier(team, threads)

    post = v.load_i64s(table + 8 * POST_ATTN_NORM)
    units = (f.width + UNIT - 1) // UNIT
    unit = next_unit(team, 0, units, threads, thread)
    while unit >= 0:
        residual_unit(isa, f, unit, table + OUT, attended, post, private)
        unit = next_unit(team, 0, units, threads, thread)
    barrier(team, threads)

    reset_counter(team, 0, thread)
    norm_phase(isa, f, post, v.load_i64s(table + 8 * MLP_NORM), table + GATE_UP, threads, thread)
    barrier(team, threads)

    units = f.inner_pad // 16
    unit = next_unit(team, 1, units, threads, thread)
    while unit >= 0:
        gated_unit(isa, f, unit, table + GATE_UP, private)
        unit = next_unit(team, 1, units, threads, thread)
    barrier(team, threads)

    reset_counter(team, 1, thread)
    quantise_phase(isa, f, f.inner, f.inner_pad, table + DOWN, threads, thread)
    barrier(team, threads)

    post = v.load_i64s(table + 8 * POST_MLP_NORM)
    units = (f.width + UNIT - 1) // UNIT
    unit = next_unit(team, 0, units, threads, thread)
    while unit >= 0:
        residual_unit(isa, f, unit, table + DOWN, f.inner_pad, post, private)
        unit = next_unit(team, 0, units, threads, thread)
    barrier(team, threads)
    reset_counter(team, 0, thread)


@njit(nogil=True, error_model="numpy")
def final_norm_phase(f, threads, thread):
    """Every row's hidden state, asked or not: drafters learn from those of prompts, too."""
    post = post_mlp_norm(f, f.layers - 1)
    for r in range(share_start(f.rows, threads, thread), share_start(f.rows, threads, thread + 1)):
        settle_row(f, post, r)
        norm_row(f.x + 4 * r * f.width_pad, f.final_norm, f.width, f.width_pad, f.eps, f.normed + 4 * r * f.width_pad)
    barrier(f.team, threads)


@njit(nogil=True, error_model="numpy")
def head_forward(isa, f, threads, thread):
    team, private = f.team, f.private + thread * f.private_bytes
    for r in range(share_start(f.asked, threads, thread), share_start(f.asked, threads, thread + 1)):
        row = v.load_i64s(f.asked_rows + 8 * r)
        quantise_int8(isa, f, r, f.normed + 4 * row * f.width_pad, f.width_pad, f.head_wide)
    values = f.best_value + 4 * thread * f.asked * f.top_k
    ids = f.best_id + 8 * thread * f.asked * f.top_k
    for i in range(f.asked * f.top_k):
        v.store_f32(values + 4 * i, np.float32(-np.inf))
        v.store_i64s(ids + 8 * i, f.vocab)
    reset_counter(team, 1, thread)
    barrier(team, threads)
    units = (f.vocab + UNIT - 1) // UNIT
    unit = next_unit(team, 0, units, threads, thread)
    while unit >= 0:
        head_unit(isa, f, unit, private, values, ids)
        unit = next_unit(team, 0, units, threads, thread)
    barrier(team, threads)
    reset_counter(team, 0, thread)
    if thread == 0:  # fold the threads' lists into the first one
        for other in range(1, threads):
            for r in range(f.asked):
                count = v.load_i64s(f.asked_count + 8 * r)
                for i in range(count):
                    at = (other * f.asked + r) * f.top_k + i
                    token = v.load_i64s(f.best_id + 8 * at)
                    if token < f.vocab:
                        offer(
                            values + 4 * r * f.top_k,
                            ids + 8 * r * f.top_k,
                            count,
                            v.load_f32(f.best_value + 4 * at),
                            token,
                        )


@njit(nogil=True, error_model="numpy")
def run_forward(isa, frames, threads, thread):
    f = frames[0]
    old = enter_float_mode()
    if f.job:
        run_job(f.job, f.job_frame, threads, thread)
        barrier(f.team, threads)
        leave_float_mode(old)
        return
    for r in range(share_start(f.rows, threads, thread), share_start(f.rows, threads, thread + 1)):
        embed_row(f.embed, f.embed_scale, v.load_i64s(f.tokens + 8 * r), f.width_pad, f.x + 4 * r * f.width_pad)
    for layer in range(f.layers):
        layer_forward(isa, f, layer, threads, thread)
    final_norm_phase(f, threads, thread)
    if f.asked > 0:
        head_forward(isa, f, threads, thread)
    # The last barrier belongs to the caller of thread 0: nobody may still read when it returns.
    barrier(f.team, threads)
    leave_float_mode(old)


@njit(nogil=True, error_model="numpy")
def serve(isa, frames, threads, thread, seen, spins):
    """A helper thread's life inside compiled code: run every new job; give up after `spins` idle turns.

    `seen`: jobs known to be done. Returns the number now done, with this thread marked as parked.
    """
    team = frames[0].team
    parked = team + (PARKED_CELL + thread) * LINE
    exchange(parked, 0)
    while True:
        idle = 0
        while atomic_load(team + GENERATION_CELL * LINE) == seen:
            relax()
            idle += 1
            if idle > spins:
                exchange(parked, 1)
                # Either the leader sees the mark and wakes this thread, or this thread sees that a job is coming.
                if atomic_load(team + COMING_CELL * LINE) == 0 and atomic_load(team + GENERATION_CELL * LINE) == seen:
                    return seen
                exchange(parked, 0)
                give_way()
                idle = 0
        seen += 1
        run_forward(isa, frames, threads, thread)


@njit(nogil=True, error_model="numpy")
def announce(frames, threads):
    """A job is coming: helpers stay awake. Returns a bit mask of those that sleep and must be woken."""
    team = frames[0].team
    exchange(team + COMING_CELL * LINE, 1)
    mask = 0
    for thread in range(1, threads):
        if atomic_load(team + (PARKED_CELL + thread) * LINE) == 1:
            mask |= 1 << thread
    return mask


@njit(nogil=True, error_model="numpy")
def lead(isa, frames, threads):
    """Start the announced job and run thread 0's part of it. One call, so that no signal of Python's comes between."""
    team = frames[0].team
    fetch_add(team + GENERATION_CELL * LINE, 1)
    exchange(team + COMING_CELL * LINE, 0)
    run_forward(isa, frames, threads, 0)


@njit(nogil=True, error_model="numpy")
def enter(isa, frames, threads, thread, seen, spins):
    """Thread -1 announces a job, -2 calls it off, thread 0 leads it, the others serve."""
    if thread == -2:
        return exchange(frames[0].team + COMING_CELL * LINE, 0)
    if thread == -1:
        return announce(frames, threads)
    if thread == 0:
        lead(isa, frames, threads)
        return seen
    return serve(isa, frames, threads, thread, seen, spins)


def serve_avx512vnni(frames, threads, thread, seen, spins):
    return enter(avx512vnni(), frames, threads, thread, seen, spins)


def serve_avx512vnni_256(frames, threads, thread, seen, spins):
    return enter(avx512vnni_256(), frames, threads, thread, seen, spins)


def serve_avxvnni(frames, threads, thread, seen, spins):
    return enter(avxvnni(), frames, threads, thread, seen, spins)


def serve_avx2(frames, threads, thread, seen, spins):
    return enter(avx2(), frames, threads, thread, seen, spins)


def serve_avx512vnni_emulated(frames, threads, thread, seen, spins):
    return enter(avx512vnni_emulated(), frames, threads, thread, seen, spins)


def serve_portable(frames, threads, thread, seen, spins):
    return enter(portable(), frames, threads, thread, seen, spins)
