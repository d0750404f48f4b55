"""The training loop: draw, loss, step; checkpoints, evaluations, progress. One process, or several under Accelerate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from accelerate import Accelerator

from exactspec.training.batches import Batches, Place
from exactspec.training.checkpoint import load_state, save_state
from exactspec.training.config import TrainConfig
from exactspec.training.evaluate import Acceptance, evaluate
from exactspec.training.model import DraftLayer, draft_loss
from exactspec.training.samples import Prepared

_TELL_S = 20.0


@dataclass(slots=True)
class Progress:
    """What a run has come to; kept in checkpoints. `seconds`: of training steps alone, over all sittings. `best`: the
    highest tau of an evaluation, at step `best_step`. `curve`: one entry an evaluation."""

    place: Place = field(default_factory=Place)
    seconds: float = 0.0
    best: float = 0.0
    best_step: int = -1
    worse: int = 0  # evaluations since the best
    curve: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Progress:
        return cls(place=Place(**facts["place"]), **{k: v for k, v in facts.items() if k != "place"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the loop calls. `tell`: a line for people. `log`: (step, names and values) of every step and evaluation.
    `improved`: a new best layer, with its acceptance."""

    tell: Callable[[str], None] = print
    log: Callable[[int, dict[str, float]], None] = lambda step, values: None
    improved: Callable[[Progress, Acceptance], None] = lambda progress, acceptance: None


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, constant, linear decay to 0 over the last part of the run."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / (config.warmup + 1)
    left = config.steps - step
    decaying = max(1.0, config.decay * config.steps)
    return config.learning_rate * min(1.0, left / decaying)


def new_optimizer(layer: DraftLayer, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay on matrices, not on norms."""
    matrices = [p for p in layer.parameters() if p.ndim > 1]
    norms = [p for p in layer.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98))


def train(
    layer: DraftLayer,
    own: Sequence[Prepared],
    corpus: Sequence[Prepared],
    held_out: Sequence[Prepared],
    config: TrainConfig,
    folder: Path,
    *,
    longest: int,
    hooks: Hooks | None = None,
    stop_after: int | None = None,
    accelerator: Accelerator | None = None,
) -> Progress:
    """Train until `config.tokens` rows, or until `config.patience` evaluations brought nothing. Goes on from the last
    checkpoint in `folder`. `longest`: positions of the target. `stop_after`: at most so many steps in this sitting.

    The layer ends with the parameters of the last step; the best ones were given to ``hooks.improved``.
    ValueError if there is nothing to train or evaluate on.
    """
    hooks = hooks or Hooks()
    accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
    batches = Batches(own, corpus, config, longest=longest)
    layer.to(accelerator.device)
    optimizer = new_optimizer(layer, config)
    facts = load_state(folder, layer, optimizer)
    progress = Progress() if facts is None else Progress.of(facts["progress"])
    place = progress.place
    if facts is not None:
        hooks.tell(f"going on after step {place.step} of {config.steps}")
    wrapped, optimizer = accelerator.prepare(layer, optimizer)
    rank, ranks = accelerator.process_index, accelerator.num_processes
    first, start, last_told = place.step, monotonic(), monotonic()
    while place.step < config.steps and (stop_after is None or place.step - first < stop_after):
        began, step = monotonic(), place.step
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        drawn = batches.draw(place)
        samples = [one.sample(layer) for one in drawn[rank::ranks] or drawn[:1]]
        loss, rows = draft_loss(wrapped(samples), samples, soft=config.soft)
        optimizer.zero_grad(set_to_none=True)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(layer.parameters(), config.clip)
        optimizer.step()
        value = float(loss.detach())
        took = monotonic() - began
        progress.seconds += took
        hooks.log(
            step,
            {
                "loss": value,
                "learning_rate": learning_rate(config, step),
                "gradient_norm": float(norm),
                "rows_per_s": sum(len(s.trained) for s in samples) * ranks / took,
                "drafted_rows_per_s": rows * ranks / took,
            },
        )
        if not (value == value and abs(value) != float("inf")):
            raise ValueError(f"the loss is {value} at step {step}: lower train.learning_rate")
        over = place.step == config.steps
        if place.step % config.evaluate_every == 0 or over:
            _evaluate(layer, held_out, progress, hooks)
        main = accelerator.is_main_process
        if main and (place.step % config.checkpoint_every == 0 or over):
            save_state(folder, place.step, layer, optimizer, {"progress": asdict(progress)})
        if monotonic() - last_told >= _TELL_S and main:
            last_told = monotonic()
            left = (last_told - start) / (place.step - first) * (config.steps - place.step)
            hooks.tell(f"step {place.step}/{config.steps}, loss {value:.3f}, {left / 60:.0f} minutes left")
        if config.patience and progress.worse >= config.patience:
            hooks.tell(f"no better since step {progress.best_step}: ending at step {place.step}")
            break
    with contextlib.suppress(AttributeError):
        accelerator.wait_for_everyone()
    return progress


def _evaluate(layer: DraftLayer, held_out: Sequence[Prepared], progress: Progress, hooks: Hooks) -> None:
    acceptance = evaluate(layer, held_out)
    step = progress.place.step
    progress.curve.append({"step": step, "tau": acceptance.tau, "by_depth": list(acceptance.by_depth)})
    depths = {f"acceptance/depth_{d}": share for d, share in enumerate(acceptance.by_depth, 1)}
    hooks.log(step, {"acceptance/tau": acceptance.tau, **depths})
    hooks.tell(f"step {step}: tau {acceptance.tau:.3f}, by depth {', '.join(f'{x:.3f}' for x in acceptance.by_depth)}")
    if acceptance.tau > progress.best:
        progress.best, progress.best_step, progress.worse = acceptance.tau, step, 0
        hooks.improved(progress, acceptance)
    else:
        progress.worse += 1
