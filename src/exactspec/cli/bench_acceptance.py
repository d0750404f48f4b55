"""``exactspec bench acceptance``: tau of drafters at equal verified rows, on prompts that no layer was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from exactspec.bench.questions import Question, choose, read_questions
from exactspec.cli.bench_common import Out, Threads, at_least_one, label, new_recorder, open_engine, show
from exactspec.cli.services import CliError, Services
from exactspec.draft_names import BESIDE, LAYER, layer_draft, models_of
from exactspec.target.named import DEFAULT_MODEL

ARMS = (BESIDE, LAYER, f"{BESIDE}+{LAYER}")


def acceptance(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="The target.")] = DEFAULT_MODEL,
    arms: Annotated[
        str, typer.Option(metavar="LIST", help="Drafts, of 'exactspec generate --draft', with commas between.")
    ] = ",".join(ARMS),
    layer: Annotated[
        Path | None,
        typer.Option("--layer", metavar="FOLDER", help="The layer of all arms that name none.  [default: the shipped]"),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes verified at a step.")] = 60,
    kinds: Annotated[
        str, typer.Option(metavar="LIST", help="Kinds of held-out prompts.", show_default=True)
    ] = "story,explain,chat,code",
    count: Annotated[int, typer.Option(metavar="N", help="Prompts of each kind, or category of questions.")] = 5,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="First turns of these instead (see 'bench run').")
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Longest answer.")] = 160,
    temperature: Annotated[float, typer.Option(metavar="T", help="0: greedy.")] = 0.0,
    in_front: Annotated[
        int, typer.Option(metavar="N", help="Tokens of other text before every prompt.", show_default=False)
    ] = 0,
    recent: Annotated[
        int, typer.Option(metavar="N", help="The target's last keys that a layer sees; 0: all that there are.")
    ] = 1024,
    top_chunks: Annotated[
        int, typer.Option(metavar="N", help="Chunks of 128 keys before these that a layer sees, those it weighs most.")
    ] = 0,
    threads: Threads = 2,
    out: Out = Path("results/acceptance.jsonl"),
) -> None:
    """Accepted tokens of drafts with the same number of nodes at every step. Times do not count: it may run beside
    other work."""
    services: Services = context.obj
    at_least_one(nodes=nodes, count=count, max_tokens=max_tokens)
    if nodes > 240:
        raise CliError(f"--nodes must be at most 240, got {nodes}")
    if in_front < 0 or recent < 0:
        raise CliError("--in-front and --recent must be at least 0")
    if temperature < 0:
        raise CliError(f"--temperature must be at least 0, got {temperature}")
    words = [word.strip() for word in arms.split(",")]
    if len(set(map(_shown, words))) != len(words):
        raise CliError(f"--arms names one twice: {arms}")
    drafts = {_shown(word): _with_layer(word, layer) for word in words}
    try:
        from exactspec.drafters.layer.sight import Sight

        sight = Sight(recent or None, top_chunks)
        asked = _questions(kinds, count, questions)
        opened = models_of(*drafts.values())  # what is no draft at all is missed below
        recorder = new_recorder(context, out, threads)
        engine: Any = open_engine(services, model, threads, context=None, draft_models=opened)
        from exactspec.bench.acceptance import acceptance_table
        from exactspec.bench.counting import Counting, counted_lines

        how = Counting(nodes=nodes, max_tokens=max_tokens, in_front=in_front, temperature=temperature, sight=sight)
        lines = counted_lines(engine, label(model), asked, drafts, how, recorder)
    except ValueError as error:
        raise CliError(str(error)) from None
    show(services, acceptance_table(lines))


def _questions(kinds: str, count: int, file: Path | None) -> Sequence[Question]:
    if file is not None:
        if not file.is_file():
            raise CliError(f"--questions: there is no file {file}")
        return choose(read_questions(file), per_category=count)
    from exactspec.bench.acceptance import held_out_prompts

    return held_out_prompts([word.strip() for word in kinds.split(",")], count)


def _shown(draft: str) -> str:
    """A draft without where on this machine its layer lies: the lines say which layer it was by its hash."""
    asked = layer_draft(draft)
    return draft if asked is None or not asked.folder else draft.replace(asked.folder, Path(asked.folder).name)


def _with_layer(draft: str, layer: Path | None) -> str:
    asked = layer_draft(draft)
    return f"{draft}:{layer}" if asked is not None and not asked.folder and layer is not None else draft
