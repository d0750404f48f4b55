"""Which chunks of the target's keys a tree's rows see besides those that all do: chosen by the root's queries.

Every query head spreads a weight of 1 over the chunks, as its attention would if a chunk's keys were all like its
summary; a chunk's mass is what it gets from all of them. See `sight` for what a summary is.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.drafters.layer.kernels.frame import MOST_TOP
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.units import offer

LOWEST = np.float32(-1e30)


@njit(nogil=True, error_model="numpy")
def add_masses(f, query, kv, masses, scores, end):
    """What one query head gives to the chunks. `end`: their number, padded to 16."""
    pad = f.cross_pad
    most = LOWEST
    for i in range(f.among_count):
        mean = f.summaries + 4 * pad * (i * f.cross_kv + kv)
        total = v.splat(np.float32(0))
        for d in range(0, pad, 16):
            total = v.fma(v.load(query + 4 * d), v.load(mean + 4 * d), total)
        score = np.float32(v.sum_lanes(total))
        v.store_f32(scores + 4 * i, score)
        most = score if score > most else most
    for i in range(f.among_count, end):
        v.store_f32(scores + 4 * i, LOWEST)  # weighs nothing
    shift, whole = v.splat(most), v.splat(np.float32(0))
    for i in range(0, end, 16):
        weight = v.weight(v.sub(v.load(scores + 4 * i), shift))
        v.store(scores + 4 * i, weight)
        whole = v.add(whole, weight)
    part = v.splat(np.float32(np.float32(1) / v.sum_lanes(whole)))
    for i in range(0, end, 16):
        v.store(masses + 4 * i, v.fma(v.load(scores + 4 * i), part, v.load(masses + 4 * i)))


@njit(nogil=True, error_model="numpy")
def choose_chunks(f):
    """The `top` chunks with the largest masses become the last rows of `cross`, in the order of their positions; ties
    go to the earlier chunk. In the pass over the root alone, whose queries are there, by one thread."""
    end = (f.among_count + 15) // 16 * 16
    masses, scores = f.masses, f.masses + 4 * end
    zero = v.splat(np.float32(0))
    for i in range(0, end, 16):
        v.store(masses + 4 * i, zero)
    group = f.cross_heads // f.cross_kv
    for head in range(f.cross_heads):  # of one row: in the order of kv heads
        add_masses(f, f.queries + 4 * f.cross_pad * head, head // group, masses, scores, end)
    ids, best = f.best_chunks, f.best_chunks + 8 * MOST_TOP
    for i in range(f.top):
        v.store_i64s(ids + 8 * i, f.among_count)
        v.store_f32(best + 4 * i, np.float32(-1))
    for i in range(f.among_count):
        offer(best, ids, f.top, v.load_f32(masses + 4 * i), i)
    row = f.cross + 24 * (f.cross_count - f.top)
    for i in range(f.among_count):
        for chosen in range(f.top):
            if v.load_i64s(ids + 8 * chosen) == i:
                for cell in range(3):
                    v.store_i64s(row + 8 * cell, v.load_i64s(f.among + 24 * i + 8 * cell))
                row += 24
