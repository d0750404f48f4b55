"""``exactspec serve``: answer over HTTP in OpenAI's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from exactspec.cli.services import CliError, Services
from exactspec.draft_names import FORMS
from exactspec.params import Speculation
from exactspec.target.cache_types import CACHE_TYPES, DEFAULT_CACHE_DTYPE
from exactspec.target.named import DEFAULT_MODEL

LEVELS = ("debug", "info", "warning", "error")


def _option(flag: str, metavar: str, help: str, *, short: tuple[str, ...] = ()) -> Any:
    """An option that an environment variable can set as well: EXACTSPEC_ and the flag in capitals."""
    names = [*short, f"--{flag}"]
    return typer.Option(*names, metavar=metavar, envvar=_variable(flag), help=help)


def _switch(flag: str, help: str) -> Any:
    return typer.Option(f"--{flag}/--no-{flag}", envvar=_variable(flag), help=help)


def _variable(flag: str) -> str:
    return "EXACTSPEC_" + flag.upper().replace("-", "_")


def serve(
    context: typer.Context,
    model: Annotated[
        str, _option("model", "NAME", "Named model, GGUF file, folder or hub id; see: exactspec models.", short=("-m",))
    ] = DEFAULT_MODEL,
    name: Annotated[str | None, _option("name", "S", "The model's name in requests (default: that of -m).")] = None,
    host: Annotated[str, _option("host", "H", "Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, _option("port", "N", "0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None, _option("api-key", "KEY", "Ask for this key; repeatable. The variable hides it from ps.")
    ] = None,
    api_key_file: Annotated[Path | None, _option("api-key-file", "F", "Ask for one of these keys, one a line.")] = None,
    cors_origin: Annotated[
        list[str] | None, _option("cors-origin", "URL", "Let web pages of this origin call; repeatable.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        _option("allowed-host", "NAME", "Let it be called by this name, as a proxy may do; repeatable."),
    ] = None,
    draft: Annotated[str, _option("draft", "|".join(FORMS), "How to draft. Never changes an answer.")] = "auto",
    draft_model: Annotated[
        list[str] | None,
        _option("draft-model", "NAME", "Open this model, too, for requests that draft with it; repeatable."),
    ] = None,
    max_nodes: Annotated[int, _option("max-nodes", "N", "Most drafted tokens verified in one step.")] = 48,
    max_running: Annotated[int, _option("max-running", "N", "Answers that share the steps.")] = 8,
    max_queue: Annotated[int, _option("max-queue", "N", "Answers that may wait; more are refused with 429.")] = 64,
    max_rows: Annotated[int, _option("max-rows", "N", "Rows of answers in one step, drafts included.")] = 64,
    max_stall_ms: Annotated[
        float, _option("max-stall-ms", "MS", "Longest step while answers run and prompts are read.")
    ] = 200.0,
    cache_bytes: Annotated[
        int | None, _option("cache-bytes", "N", "Most bytes of keys and values (default: half of the free memory).")
    ] = None,
    prefix_cache: Annotated[bool, _switch("prefix-cache", "Keep prompts' keys and values for later requests.")] = True,
    keep_replies: Annotated[
        bool,
        _switch("keep-replies", "In chats that come back as text, use the ids that were generated: more is reused."),
    ] = False,
    max_body_bytes: Annotated[int, _option("max-body-bytes", "N", "Longest request.")] = 16_000_000,
    time_limit: Annotated[float, _option("time-limit", "S", "Seconds for one request, waiting included.")] = 1800.0,
    max_choices: Annotated[int, _option("max-choices", "N", "Answers of one request: prompts times n.")] = 16,
    grace: Annotated[float, _option("grace", "S", "Seconds that running answers get at shutdown.")] = 30.0,
    log_level: Annotated[str, _option("log-level", "|".join(LEVELS), "Least level of what is logged.")] = "info",
    log_prompts: Annotated[bool, _switch("log-prompts", "Write requests and answers to the log, too.")] = False,
    threads: Annotated[int | None, _option("threads", "N", "CPU threads (default: all cores).")] = None,
    context_length: Annotated[
        int | None, _option("context", "N", "Longest context in tokens (default: what the model states).")
    ] = None,
    cache_dtype: Annotated[
        str, _option("cache-dtype", "|".join(CACHE_TYPES), "How keys and values are stored.")
    ] = DEFAULT_CACHE_DTYPE,
    dtype: Annotated[str | None, _option("dtype", "T", "For hf: models: float32 (default) or bfloat16.")] = None,
    device: Annotated[str | None, _option("device", "D", "cpu (default), or cuda or cuda:N for a GPU.")] = None,
) -> None:
    """Serve one model over HTTP, in OpenAI's protocol.

    Every option can be given as an environment variable: EXACTSPEC_PORT for --port, and so on. /health answers at
    once, and says when the model is ready.
    """
    services: Services = context.obj
    try:
        from exactspec.scheduling import Scheduler
        from exactspec.server import logs
        from exactspec.server.run import serve as run
        from exactspec.server.settings import ServerSettings
    except ImportError as error:
        raise CliError(f"the server needs more packages ({error.name}): pip install 'exactspec[server]'") from None
    settings = ServerSettings(
        name=name or model,
        host=host,
        port=port,
        api_keys=(*(api_key or ()), *_keys(api_key_file)),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        max_body_bytes=max_body_bytes,
        time_limit_s=time_limit,
        max_choices=max_choices,
        grace_s=grace,
        log_prompts=log_prompts,
    )
    if log_level not in LEVELS:
        raise CliError(f"--log-level must be one of {', '.join(LEVELS)}, got {log_level}")
    if not 1 <= max_running <= max_rows:
        raise CliError(f"--max-running must be at least 1 and at most --max-rows ({max_rows}), got {max_running}")
    if max_queue < 0:
        raise CliError(f"--max-queue must be at least 0, got {max_queue}")
    speculation = Speculation(draft=draft, max_nodes=max_nodes)

    def load() -> Scheduler:
        engine = services.open_engine(
            model,
            draft=draft,
            threads=threads,
            context=context_length,
            cache_dtype=cache_dtype,
            progress=services.note,
            speculation=speculation,
            draft_models=tuple(draft_model or ()),
            **{key: value for key, value in (("dtype", dtype), ("device", device)) if value is not None},
        )
        return Scheduler(
            cast(Any, engine),
            max_running=max_running,
            max_queue=max_queue,
            max_rows=max_rows,
            max_stall_ms=max_stall_ms,
            cache_bytes=cache_bytes,
            prefix_cache=prefix_cache,
            keep_replies=keep_replies,
        )

    handler = logs.start(services.stderr, level=log_level.upper())
    try:
        run(
            settings,
            load,
            bound=lambda url: services.note(f"listening on {url}; loading {model}"),
            ready=lambda: services.note(f"ready: {model} as {settings.name!r}"),
        )
    finally:
        logs.stop(handler)
    services.note("stopped")


def _keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        keys = path.read_text("utf-8").split()
    except (OSError, ValueError) as error:
        raise CliError(f"--api-key-file: cannot read {path}: {error}") from None
    if not keys:
        raise CliError(f"--api-key-file: {path} holds no key")
    return keys
