"""The ``exactspec`` command: which commands there are, and how any error becomes one line and an exit code.

Exit codes: 0 done; 1 an internal error, or what a command was asked to check does not hold; 2 a mistake of the
caller (usage, bad input, missing or unreadable file); 130 stopped by Ctrl-C; 141 the reader of stdout went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from exactspec.cli.lazy import Entry, LazyGroup, new_app
from exactspec.cli.services import CliError, Services

EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# What the caller can put right. Everything else is a fault of ours.
EXPECTED = (CliError, ValueError, OSError, MemoryError)


class Commands(LazyGroup):
    """exactspec's commands."""

    entries = {  # noqa: RUF012 - a constant table, read by LazyGroup
        "generate": Entry("exactspec.cli.generate", "generate", "Answer one prompt."),
        "chat": Entry("exactspec.cli.chat", "chat", "Talk with a model over several turns."),
        "serve": Entry("exactspec.cli.serve", "serve", "Answer over HTTP, in OpenAI's protocol."),
        "pull": Entry("exactspec.cli.pull", "pull", "Download a named model and check it."),
        "models": Entry("exactspec.cli.models", "models", "Show named models and disk use; delete."),
        "doctor": Entry("exactspec.cli.doctor", "doctor", "Show what runs on this machine, and how fast."),
        "trace": Entry("exactspec.cli.trace", "trace", "Show what every step of one answer drafted and accepted."),
        "simulate": Entry("exactspec.cli.simulate", "simulate", "Replay stored answers through drafters, no model."),
        "train": Entry("exactspec.cli.train", "app", "Train a draft layer for a model."),
        "bench": Entry("exactspec.cli.bench", "bench", "Measure speed and equality."),
    }


app = new_app(
    name="exactspec",
    cls=Commands,
    no_args_is_help=False,
    help="Language models answer faster by drafting tokens ahead, and not one token changes.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from exactspec import __version__  # reads the package's metadata

        typer.echo(f"exactspec {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


def one_line(text: str) -> str:
    return " ".join(text.split())


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return str(error) or "not enough memory: use a smaller model or a shorter --context"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def run(argv: Sequence[str], services: Services) -> int:
    """Run one command line and return its exit code; raises whatever the command raises."""
    command = typer.main.get_command(app)
    try:
        # Not `command.main`: it has its own idea of Ctrl-C, broken pipes and errors.
        with command.make_context("exactspec", list(argv) or ["--help"], obj=services) as context:
            command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    return 0


def main(argv: Sequence[str] | None = None, *, services: Services | None = None) -> int:
    """Entry point: `run`, with every error turned into one line on stderr. EXACTSPEC_DEBUG=1 adds the traceback."""
    if services is None:
        services = Services.of_process()
    try:
        code = run(sys.argv[1:] if argv is None else argv, services)
        services.stdout.flush()
        return code
    except BrokenPipeError:
        _silence(services)
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail(services, "interrupted", EXIT_INTERRUPTED, None)
    except EXPECTED as error:
        return _fail(services, f"error: {_describe(error)}", EXIT_USAGE, error)
    except Exception as error:
        # Usage errors come from typer, and newer ones carry their own copy of click: known by what they can do.
        format_message = getattr(error, "format_message", None)
        if format_message is not None:
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "exactspec"
            return _fail(services, f"error: {one_line(format_message())} (see: {path} --help)", EXIT_USAGE, error)
        hint = "this is a fault in exactspec; EXACTSPEC_DEBUG=1 shows where"
        return _fail(services, f"internal error: {type(error).__name__}: {error} ({hint})", EXIT_INTERNAL, error)


def _fail(services: Services, message: str, code: int, error: BaseException | None) -> int:
    if error is not None and services.environ.get("EXACTSPEC_DEBUG") == "1":
        traceback.print_exception(error, file=services.stderr)
    try:
        services.stdout.flush()
        services.note(f"exactspec: {message}")
    except BrokenPipeError:
        _silence(services)
    return code


def _silence(services: Services) -> None:
    """Nobody reads stdout any more: let the flush at exit go to nowhere instead of failing."""
    if services.stdout is sys.stdout:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    raise SystemExit(main())
