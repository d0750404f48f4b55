"""A trace as one HTML page: no scripts, nothing loaded from elsewhere, light and dark as the reader's system has it.

Every text of a token is escaped twice: by `steps.shown`, so that it has no control characters, and for HTML. The page's
own policy forbids scripts, should a text ever get through.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from exactspec.trace.steps import Node, Step, Trace, in_order
from exactspec.trace.table import closing

_OPEN = 20
"""Up to so many steps are unfolded at first."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #ddd; --dim: #767676; --good: #0a6b2d;
  --bar: #2e8b57; --row: #f4f4f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --line: #3a3a3a; --dim: #9a9a9a;
  --good: #6fd08c; --bar: #3f9e68; --row: #202020; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.5rem; }
code, .tree, summary { font-family: ui-monospace, monospace; font-size: 13px; }
summary, .head { display: grid; grid-template-columns: 5ch 8ch 6ch 9ch 7ch repeat(3, 11ch) 12ch 1fr; gap: 0 .7ch;
  padding: .15rem .4rem; cursor: pointer; white-space: nowrap; text-align: right; }
.head { font: 12px ui-monospace, monospace; color: var(--dim); cursor: default; }
summary > :last-child, .head > :last-child { text-align: left; overflow: hidden; text-overflow: ellipsis; }
details { border-bottom: 1px solid var(--line); }
details[open] > summary { background: var(--row); }
.bar { height: .7em; background: var(--bar); align-self: center; min-width: 2px; }
.tree { margin: .3rem 0 .6rem 6ch; }
.tree div { display: grid; grid-template-columns: minmax(30ch, 60ch) 8ch 12ch 1fr; gap: 0 1ch; color: var(--dim); }
.tree .yes { color: var(--good); font-weight: 600; }
.tok { border-left: 1px solid var(--line); overflow-wrap: anywhere; }
.tok.drafted { color: var(--good); }
.answer { border: 1px solid var(--line); padding: .6rem; max-height: 22rem; overflow: auto; overflow-wrap: anywhere; }
dt { color: var(--dim); } dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""

_COLUMNS = ("step", "context", "rows", "accepted", "tau", "propose", "verify", "walk", "emitted", "text")


def page(trace: Trace) -> Iterator[str]:
    """The page, in pieces."""
    done = trace.completion
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>exactspec trace: {escape(trace.draft)}</title>\n<style>{_STYLE}</style></head><body>\n"
        f"<h1>Trace of a request: draft {escape(trace.draft)}</h1>\n<p>{escape(' '.join(closing(trace)))}</p>\n"
    )
    facts = {
        "identity": done.identity,
        "seed": str(done.seed),
        "prompt tokens": f"{done.metrics.prompt_tokens} ({done.metrics.cached_tokens} cached)",
        "accepted by source": ", ".join(f"{k}: {v}" for k, v in done.metrics.accepted_by_source.items()) or "none",
    }
    yield "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()) + "</dl>\n"
    yield '<h2>Answer</h2>\n<p>Green tokens were drafted.</p>\n<div class="answer"><code>'
    for step in trace.steps:
        yield _tokens(step)
    yield "</code></div>\n<h2>Steps</h2>\n"
    yield '<div class="head">' + "".join(f"<span>{name}</span>" for name in _COLUMNS) + "</div>\n"
    most = max((step.record.emitted for step in trace.steps), default=1)
    for step in trace.steps:
        yield from _step(step, most, unfolded=len(trace.steps) <= _OPEN)
    yield "</body></html>\n"


def _tokens(step: Step) -> str:
    return "".join(
        f'<span class="tok{"" if token.source == "target" else " drafted"}" title="{token.id} {escape(token.source)}">'
        f"{escape(token.text)}</span>"
        for token in step.tokens
    )


def _step(step: Step, most: int, *, unfolded: bool) -> Iterator[str]:
    r = step.record
    cells = [str(step.number), str(r.context), str(r.rows), str(r.accepted), f"{step.tau:.2f}"]
    cells += [f"{1000 * seconds:.2f} ms" for seconds in (r.propose_s, r.verify_s, r.walk_s)]
    yield f"<details{' open' if unfolded else ''}><summary>" + "".join(f"<span>{cell}</span>" for cell in cells)
    yield f'<span class="bar" style="width: {100 * r.emitted // most}%"></span><span>{_tokens(step)}</span></summary>'
    yield '<div class="tree">'
    for number in in_order(step.nodes):
        yield _node(step.nodes[number])
    yield "</div></details>\n" if step.nodes else "no draft</div></details>\n"


def _node(node: Node) -> str:
    origin = f"from {node.origin}" if node.origin >= 0 else ""
    return (
        f'<div{" class=yes" if node.accepted else ""}><span style="padding-left: {2 * (node.depth - 1)}ch">'
        f"{'+' if node.accepted else '-'} {escape(node.text)}</span><span>{node.score:.3f}</span>"
        f"<span>{escape(node.source)}</span><span>{origin}</span></div>"
    )
