"""A trace for the terminal: a line a step, and its tree below it."""

from __future__ import annotations

from collections.abc import Iterator

from exactspec.trace.steps import Node, Step, Trace, in_order

GREEN, DIM, RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def table(trace: Trace, *, nodes: int, color: bool) -> Iterator[str]:
    """Lines. `nodes`: most nodes shown of a tree, accepted ones first (0: none)."""
    yield "   step  context  rows  accepted    tau     propose      verify        walk  emitted"
    for step in trace.steps:
        yield _line(step)
        yield from _tree(step, nodes, color)
    yield from closing(trace)


def closing(trace: Trace) -> Iterator[str]:
    """The sums at the end."""
    m = trace.completion.metrics
    times = [(s.record.propose_s, s.record.verify_s, s.record.walk_s) for s in trace.steps]
    propose, verify, walk = (sum(column) for column in zip(*times, strict=True)) if times else (0.0, 0.0, 0.0)
    yield (
        f"{m.completion_tokens} tokens in {m.num_steps} steps, tau {m.tau:.2f}, {m.decode_tokens_per_s:.1f} tok/s; "
        f"drafted {m.num_draft_tokens}, accepted {m.num_accepted_tokens}; "
        f"propose {propose:.3f} s, verify {verify:.3f} s, walk {walk:.3f} s; {trace.completion.finish_reason}"
    )


def _line(step: Step) -> str:
    r = step.record
    times = "".join(f"{1000 * seconds:9.2f} ms" for seconds in (r.propose_s, r.verify_s, r.walk_s))
    text = "|".join(token.text for token in step.tokens)
    return f"{step.number:7} {r.context:8} {r.rows:5} {r.accepted:9} {step.tau:6.2f}{times}  {text}"


def _tree(step: Step, most: int, color: bool) -> Iterator[str]:
    order = in_order(step.nodes)
    kept = set(sorted(order, key=lambda n: (not step.nodes[n].accepted, -step.nodes[n].score, n))[:most])
    # An ancestor of a node that is shown is shown too.
    for number in list(kept):
        while (number := step.nodes[number].parent) >= 0:
            kept.add(number)
    for number in order:
        if number in kept:
            yield _node(step.nodes[number], color)
    if most and len(order) > len(kept):
        yield f"{'':9}... and {len(order) - len(kept)} more"


def _node(node: Node, color: bool) -> str:
    mark = "+" if node.accepted else "-"
    line = f"{'  ' * node.depth}{mark} {node.text}"
    origin = f" from {node.origin}" if node.origin >= 0 else ""
    line = f"{'':7}{line:<40} {node.score:5.3f} {node.source}{origin}"
    if not color:
        return line
    return (GREEN if node.accepted else DIM) + line + RESET
