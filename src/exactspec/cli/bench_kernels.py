"""What ``exactspec bench kernels`` and the runtime's bars are measured with: the machine, the peer, fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from exactspec.bench import kernels, kernels_report, prefill
from exactspec.bench.first_token import measure_first_token
from exactspec.bench.machine import Machine
from exactspec.bench.peaks import Peaks
from exactspec.bench.peers.llama_cpp import LlamaCppPeer
from exactspec.bench.perplexity import float32_losses
from exactspec.bench.plot import plot as draw
from exactspec.bench.recorder import Recorder
from exactspec.bench.runtime_bars import RuntimeTools
from exactspec.cli.services import CliError
from exactspec.engine import PREFILL_CHUNK
from exactspec.target.cpu import describe_cpu
from exactspec.target.hub import ModelStore


def measure_forwards(
    engine: Any,
    model: str,
    label: str,
    *,
    rows: Sequence[int],
    contexts: Sequence[int],
    what_fits: bool,
    repeats: int,
    peer: str,
    recorder: Recorder,
    plot: Path | None,
) -> str:
    """Measure every cell and return the table. `what_fits`: leave out contexts that the model has no room for.

    Raises CliError if none is left.
    """
    target = cast(kernels.Timed, engine.target)
    if what_fits:
        contexts = [context for context in contexts if context + max(rows) <= target.max_length]
        if not contexts:
            raise CliError(f"{label} holds {target.max_length} tokens: name shorter --contexts")
    plan = kernels.Plan(model=label, rows=tuple(sorted(set(rows))), contexts=tuple(contexts), repeats=repeats)
    with _peer(model, peer, target.threads) as opened:
        lines = kernels.measure(
            target,
            plan,
            kernels.Tools(
                out=recorder.out,
                provenance=recorder.provenance,
                progress=recorder.progress,
                peaks=machine_peaks(target),
                peer=opened,
            ),
        )
    if plot is not None:
        draw(kernels_report.cells(lines), plot, peer=None if opened is None else peer)
    return kernels_report.table(lines)


def measure_prefill(
    engine: Any, model: str, label: str, *, tokens: int, repeats: int, peer: str, recorder: Recorder
) -> str:
    """Read a prompt of `tokens` tokens in turn with the peer and return the table."""
    target = cast(kernels.Timed, engine.target)
    with _peer(model, peer, target.threads) as opened:
        lines = prefill.measure(
            target,
            label,
            tokens=tokens,
            chunk=PREFILL_CHUNK,
            repeats=repeats,
            tools=prefill.Tools(
                out=recorder.out, provenance=recorder.provenance, progress=recorder.progress, peer=opened
            ),
        )
    return prefill.table(lines)


def runtime_tools(recorder: Recorder, *, threads: int, text: Path, repeats: int) -> RuntimeTools:
    """What the runtime's bars are measured with on this machine."""

    def path(model: str) -> Path:
        return ModelStore().resolve(model).path

    return RuntimeTools(
        recorder=recorder,
        peer=lambda model: LlamaCppPeer(path(model), threads=threads),
        peaks=machine_peaks,
        first_token=lambda model: measure_first_token(model, threads),
        text=text,
        float32=lambda model, parts: float32_losses(path(model), parts, threads=threads),
        chunk=PREFILL_CHUNK,
        repeats=repeats,
    )


def machine_peaks(target: kernels.Timed) -> Callable[[], Peaks]:
    """Readings of this machine's limits; the loops are compiled at the first one, which nothing else needs."""
    machines: list[Machine] = []

    def peaks() -> Peaks:
        if not machines:
            cpu = getattr(target, "cpu", None) or describe_cpu()
            four_bit = getattr(target, "four_bit_shares", {})
            machines.append(Machine(target.threads, cpu.instruction_set, four_bit=four_bit))
        return machines[0].peaks()

    return peaks


@contextmanager
def _peer(model: str, name: str, threads: int) -> Iterator[tuple[str, Callable[[], LlamaCppPeer]] | None]:
    """The named peer, started when it is first asked for and ended with the context; None for "none"."""
    if name == "none":
        yield None
        return
    opened: list[LlamaCppPeer] = []

    def open_peer() -> LlamaCppPeer:
        if not opened:
            opened.append(LlamaCppPeer(ModelStore().resolve(model).path, threads=threads))
        return opened[0]

    try:
        yield name, open_peer
    finally:
        for peer in opened:
            peer.close()
