"""``exactspec simulate``: what drafters would make of stored answers, without a model where they need none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from exactspec.budget import Cost
from exactspec.cli.options import load_engine
from exactspec.cli.services import CliError, Services
from exactspec.draft_names import DRAFTS, LAYER_FORMS, layer_draft
from exactspec.params import Speculation
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE


def simulate(
    context: typer.Context,
    log: Annotated[
        Path, typer.Argument(metavar="LOG.jsonl", help="Stored answers: generate --log, bench gold, or your own.")
    ],
    draft: Annotated[
        str, typer.Option("--draft", metavar="LIST", help=f"Draft modes, of {', '.join((*DRAFTS, *LAYER_FORMS))}.")
    ] = "copyspec,copy,auto",
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="The model that the answers are of. It reads each of them once, which modes with a draft layer need.",
        ),
    ] = None,
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
            help="Rows cost what they do for this model here, measured now if never before; default: what they do for "
            "-m, else a built-in table.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Replay stored answers through drafters: a drafted token is accepted iff it is the stored one.

    Prints tokens a step (tau), the share of tokens copied, rows verified a step, and the decode speed that the cost
    model predicts against plain decoding: with -m or --cost-of the drafter's own time counts, too. Drafts that need no
    model are replayed without one.
    """
    services: Services = context.obj
    modes = [word.strip() for word in draft.split(",")]
    for mode in modes:
        if mode not in DRAFTS and layer_draft(mode) is None:
            raise CliError(f"--draft: {mode!r} is none of {', '.join((*DRAFTS, *LAYER_FORMS))}")
        if model is None and layer_draft(mode) is not None:
            raise CliError(
                f"--draft: {mode} goes by what the model computes: name the answers' model with -m, or count what is "
                "accepted on prompts of its own with 'exactspec bench acceptance'"
            )
    if len(set(modes)) != len(modes):
        raise CliError(f"--draft names one twice: {draft}")
    chosen = {mode: Speculation(draft=mode, max_nodes=max_nodes) for mode in modes}
    if not log.is_file():
        raise CliError(f"{log} is no file: write one with 'exactspec generate --log' or 'exactspec bench gold'")

    from exactspec.bench.report import markdown  # numba and the drafters must not slow down --help
    from exactspec.bench.simulate import by_workload, compare, read_log

    answers = read_log(log)
    if not answers:
        raise CliError(f"{log} holds no answers")
    engine = None if model is None else _open(services, model)
    cost = _cost(services, model, engine, cost_of)
    plain_s = getattr(cost, "one_s", 0.0)
    layers = [asked.layer for mode in modes if (asked := layer_draft(mode)) is not None]
    with_target: dict[str, Any] = {}
    if engine is not None:
        from exactspec.bench.teacher import teach

        teacher, models = teach(engine.target, layers, cost=cost, tell=services.note)
        with_target = {"teacher": teacher, "models": models}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    rows = []
    for workload, group in by_workload(answers).items():
        for mode, sums in compare(group, chosen, equal_rows=equal_rows, cost=cost, **with_target).items():
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


def _open(services: Services, model: str) -> Any:
    plain = Speculation(draft="none")
    return load_engine(services, model, plain, threads=None, context=None, cache_dtype=DEFAULT_CACHE_DTYPE)


def _cost(services: Services, model: str | None, engine: Any, cost_of: str | None) -> Cost | None:
    """What rows cost here, for the model named to that end or else for the answers' own; None: no matter for whom."""
    if engine is None and cost_of is None:
        return None
    if cost_of is not None and cost_of != model:
        engine = _open(services, cost_of)
    cost = getattr(engine, "cost", None)
    if cost is None:
        option = f"-m: rows of {model}" if cost_of is None else f"--cost-of: rows of {cost_of}"
        raise CliError(f"{option} are not measured on this device")
    return cast(Cost, getattr(cost, "measured", cost))
