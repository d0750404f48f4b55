"""``exactspec simulate``: what drafters would make of stored answers, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from exactspec.budget import Cost
from exactspec.cli.options import load_engine
from exactspec.cli.services import CliError, Services
from exactspec.draft_names import DRAFTS, layer_draft
from exactspec.params import Speculation
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE

_DRAFTS = tuple(draft for draft in DRAFTS if layer_draft(draft) is None)  # a layer reads what a model computes


def simulate(
    context: typer.Context,
    log: Annotated[
        Path, typer.Argument(metavar="LOG.jsonl", help="Stored answers: generate --log, bench gold, or your own.")
    ],
    draft: Annotated[
        str, typer.Option("--draft", metavar="LIST", help=f"Draft modes, of {', '.join(_DRAFTS)}.")
    ] = "copyspec,copy,auto",
    max_nodes: Annotated[int, typer.Option("--max-nodes", metavar="N", help="Most drafted tokens of a step.")] = 48,
    equal_rows: Annotated[
        bool,
        typer.Option("--equal-rows", help="Let no mode verify more rows than the first does: the best nodes only."),
    ] = False,
    cost_of: Annotated[
        str | None,
        typer.Option(
            "--cost-of",
            metavar="MODEL",
            help="Rows cost what they do for this model here, measured now if never before; default: a built-in table.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Replay stored answers through drafters: a drafted token is accepted iff it is the stored one.

    Prints tokens a step (tau), the share of tokens copied, rows verified a step, and the decode speed that the cost
    model predicts against plain decoding: with --cost-of the drafter's own time counts, too. No other model is loaded.
    """
    services: Services = context.obj
    modes = [word.strip() for word in draft.split(",")]
    for mode in modes:
        if mode not in _DRAFTS:
            raise CliError(f"--draft: {mode!r} is none of {', '.join(_DRAFTS)}")
    if len(set(modes)) != len(modes):
        raise CliError(f"--draft names one twice: {draft}")
    chosen = {mode: Speculation(draft=mode, max_nodes=max_nodes) for mode in modes}
    if not log.is_file():
        raise CliError(f"{log} is no file: write one with 'exactspec generate --log' or 'exactspec bench gold'")

    from exactspec.bench.report import markdown  # numba and the drafters must not slow down --help
    from exactspec.bench.simulate import by_workload, compare, read_log

    cost = None if cost_of is None else _cost_of(services, cost_of)
    plain_s = getattr(cost, "one_s", 0.0)
    answers = read_log(log)
    if not answers:
        raise CliError(f"{log} holds no answers")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    rows = []
    for workload, group in by_workload(answers).items():
        for mode, sums in compare(group, chosen, equal_rows=equal_rows, cost=cost).items():
            found.setdefault(workload, {})[mode] = sums.as_dict()
            if plain_s:
                found[workload][mode]["predicted_speedup"] = sums.speedup_on(plain_s)
            rows.append(
                (
                    workload,
                    mode,
                    str(sums.tokens),
                    f"{sums.tau:.2f}",
                    f"{100 * sums.copy_share:.0f}%",
                    f"{sums.rows / sums.steps:.1f}",
                    f"{sums.speedup_on(plain_s) if plain_s else sums.speedup:.2f}x",
                    f"{1e6 * (sums.propose_s + sums.commit_s) / sums.steps:.0f}",
                )
            )
    if json_output:
        text = json.dumps(found)
    else:
        head = ("workload", "draft", "tokens", "tau", "copied", "rows/step", "predicted speed", "drafter us/step")
        text = markdown(head, rows)
    print(text, file=services.stdout, flush=True)


def _cost_of(services: Services, model: str) -> Cost:
    """What rows of a model cost here. Raises ValueError where that cannot be measured."""
    plain = Speculation(draft="none")
    engine = load_engine(services, model, plain, threads=None, context=None, cache_dtype=DEFAULT_CACHE_DTYPE)
    cost = getattr(engine, "cost", None)
    if cost is None:
        raise CliError(f"--cost-of: rows of {model} are not measured on this device")
    return cast(Cost, getattr(cost, "measured", cost))
