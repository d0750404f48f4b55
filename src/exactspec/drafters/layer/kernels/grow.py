"""Growing a tree: a pass, the choice of what to pass on, the next pass; all in one job. See docs/longspec.md."""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.drafters.layer.kernels.frame import (
    MOST_LEVELS,
    NODES,
    S_NODES,
    S_PASSES,
    S_ROWS,
    S_SLOTS,
    TREE_SLOTS,
)
from exactspec.drafters.layer.kernels.layer import LOWEST, draft_pass, feed_phase, input_row, meet, take_in
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.sync import barrier, reset_counter, share_start
from exactspec.target.kernels.units import offer

PATH_BYTES = 8 * (MOST_LEVELS + 1)


@njit(nogil=True, error_model="numpy")
def merge_lists(f, rows, threads):
    """All threads' best ids of each row become the first thread's."""
    for other in range(1, threads):
        for r in range(rows):
            for i in range(f.branch):
                at = (other * rows + r) * f.branch + i
                place = v.load_i64s(f.best_at + 8 * at)
                if place < f.head_count:
                    first = r * f.branch
                    offer(f.best + 4 * first, f.best_at + 8 * first, f.branch, v.load_f32(f.best + 4 * at), place)


@njit(nogil=True, error_model="numpy")
def most_and_mass(f, r):
    """The largest score of a row, and the sum of all powers relative to it."""
    peaks, sums = f.peaks + 4 * r * f.head_units, f.sums + 4 * r * f.head_units
    top = v.splat(LOWEST)
    for k in range(0, f.head_units, 16):
        top = v.maximum(v.load(peaks + 4 * k), top)
    most = v.max_lanes(top)
    total = v.splat(np.float32(0))
    for k in range(0, f.head_units, 16):
        total = v.fma(v.load(sums + 4 * k), v.weight(v.sub(v.load(peaks + 4 * k), v.splat(most))), total)
    return most, np.float32(v.sum_lanes(total))


@njit(nogil=True, error_model="numpy")
def share(value, most, mass):
    """Probability of a score."""
    return np.float32(v.first_lane(v.weight(v.splat(np.float32(value - most)))) / mass)


@njit(nogil=True, error_model="numpy")
def add_children(f, rows, least):
    """Nodes for the rows' best ids with scores above `least`; returns how many nodes there are."""
    nodes = v.load_i64s(f.state + 8 * S_NODES)
    for r in range(rows):
        parent = v.load_i64s(f.row_node + 8 * r)
        above = v.load_f32(f.node_score + 4 * parent) if parent >= 0 else np.float32(1)
        most, mass = most_and_mass(f, r)
        for i in range(f.branch):
            at = r * f.branch + i
            place = v.load_i64s(f.best_at + 8 * at)
            if nodes >= NODES or place >= f.head_count:
                break
            score = np.float32(above * share(v.load_f32(f.best + 4 * at), most, mass))
            if score <= least:
                break
            v.store_i64s(f.node_token + 8 * nodes, v.load_i64s(f.head_ids + 8 * place))
            v.store_i64s(f.node_parent + 8 * nodes, parent)
            v.store_f32(f.node_score + 4 * nodes, score)
            nodes += 1
    return nodes


@njit(nogil=True, error_model="numpy")
def best_of(f, first, end, count, chosen, scores):
    """Nodes first .. end - 1 with the `count` best scores into `chosen`, best first, ties to the earlier; how many."""
    for i in range(count):
        v.store_f32(scores + 4 * i, np.float32(-1))
        v.store_i64s(chosen + 8 * i, NODES)
    for node in range(first, end):
        offer(scores, chosen, count, v.load_f32(f.node_score + 4 * node), node)
    return min(count, end - first)


@njit(nogil=True, error_model="numpy")
def row_of(f, rows, node):
    """Row of the pass that a node's parent was in."""
    parent = v.load_i64s(f.node_parent + 8 * node)
    for r in range(rows):
        if v.load_i64s(f.row_node + 8 * r) == parent:
            return r
    return -1


@njit(nogil=True, error_model="numpy")
def choose(f, rows, level, threads, spare):
    """After a pass: its children, and the rows of the next pass, of which there may be none."""
    merge_lists(f, rows, threads)
    first = v.load_i64s(f.state + 8 * S_NODES)
    nodes = add_children(f, rows, f.least)
    width = min(v.load_i64s(f.widths + 8 * level), TREE_SLOTS - v.load_i64s(f.state + 8 * S_SLOTS))
    if level + 1 == f.levels and not f.beam:
        width = 0
    chosen, scores = spare, spare + 8 * NODES
    if f.beam:
        # What is not chosen is no node: the chosen ones move to the front, best first.
        count = best_of(f, first, nodes, min(v.load_i64s(f.widths + 8 * level), nodes - first), chosen, scores)
        kept = scores + 4 * NODES
        for i in range(count):
            node = v.load_i64s(chosen + 8 * i)
            v.store_i64s(kept + 16 * i, v.load_i64s(f.node_token + 8 * node))
            v.store_i64s(kept + 16 * i + 8, v.load_i64s(f.node_parent + 8 * node))
        for i in range(count):
            v.store_i64s(f.node_token + 8 * (first + i), v.load_i64s(kept + 16 * i))
            v.store_i64s(f.node_parent + 8 * (first + i), v.load_i64s(kept + 16 * i + 8))
            v.store_f32(f.node_score + 4 * (first + i), v.load_f32(scores + 4 * i))
            v.store_i64s(chosen + 8 * i, first + i)
        nodes = first + count
        width = min(width, count) if level + 1 < f.levels else 0
    elif width:
        # Nothing below a node that would itself be left out is wanted.
        bar = np.float32(0)
        if nodes > f.most:
            best_of(f, 0, nodes, f.most, chosen, scores)
            bar = v.load_f32(scores + 4 * (f.most - 1))
        width = best_of(f, first, nodes, width, chosen, scores)
        mass = np.float32(0)
        for i in range(width):
            score = v.load_f32(scores + 4 * i)
            if score < bar:
                width = i
                break
            mass += score
        if mass < f.floor:
            width = 0
    v.store_i64s(f.state + 8 * S_NODES, nodes)
    v.store_i64s(f.state + 8 * S_PASSES, level + 1)
    next_rows(f, rows, width, chosen)


@njit(nogil=True, error_model="numpy")
def next_rows(f, rows, width, chosen):
    """The chosen nodes become the rows of the next pass."""
    slot = v.load_i64s(f.state + 8 * S_SLOTS)
    for r in range(rows):
        for i in range(MOST_LEVELS + 1):
            at = r * PATH_BYTES + 8 * i
            v.store_i64s(f.path_before + at, v.load_i64s(f.path + at))
    depth = v.load_i64s(f.row_depth)  # the same of all rows of a pass
    position = v.load_i64s(f.row_position)
    for i in range(width):  # row_node is still that of the pass before
        v.store_i64s(f.row_above + 8 * i, row_of(f, rows, v.load_i64s(chosen + 8 * i)))
    for i in range(width):
        node, above = v.load_i64s(chosen + 8 * i), v.load_i64s(f.row_above + 8 * i)
        for k in range(depth):
            v.store_i64s(f.path + i * PATH_BYTES + 8 * k, v.load_i64s(f.path_before + above * PATH_BYTES + 8 * k))
        v.store_i64s(f.path + i * PATH_BYTES + 8 * depth, slot + i)
        v.store_i64s(f.row_depth + 8 * i, depth + 1)
        v.store_i64s(f.row_node + 8 * i, node)
        v.store_i64s(f.row_token + 8 * i, v.load_i64s(f.node_token + 8 * node))
        v.store_i64s(f.row_position + 8 * i, position + 1)
        v.store_i64s(f.row_slot + 8 * i, f.ring + slot + i)
    v.store_i64s(f.state + 8 * S_SLOTS, slot + width)
    v.store_i64s(f.state + 8 * S_ROWS, width)


@njit(nogil=True, error_model="numpy")
def run(isa, f, threads, thread):
    """Take in committed tokens, then grow a tree below the last of them if there are levels."""
    if f.take:
        take_in(isa, f, threads, thread)
    if f.levels:
        if thread == 0:
            v.store_i64s(f.row_position, f.take_first + f.take - 1)
            v.store_i64s(f.row_node, -1)
            v.store_i64s(f.row_depth, 0)
            for cell in range(4):
                v.store_i64s(f.state + 8 * cell, 0)
            v.store_i64s(f.state + 8 * S_ROWS, 1)
        barrier(f.team, threads)
        for level in range(f.levels):
            rows = v.load_i64s(f.state + 8 * S_ROWS)
            if rows == 0:
                break
            if level:
                if f.own_feature:
                    feed_phase(isa, f, rows, f.out, 1, threads, thread)
                for r in range(share_start(rows, threads, thread), share_start(rows, threads, thread + 1)):
                    fed = f.fed + 4 * r * f.width_pad if f.own_feature else f.root_fed
                    input_row(f, r, v.load_i64s(f.row_token + 8 * r), fed)
            draft_pass(isa, f, rows, 1 if level else 0, threads, thread)
            if thread == 0:
                choose(f, rows, level, threads, f.private)
            meet(f, threads, thread)
    reset_counter(f.team, 0, thread)  # as a forward expects it
