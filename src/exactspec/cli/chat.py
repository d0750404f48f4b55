"""``exactspec chat``: a conversation over several turns, whose common prefix is kept and not read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import typer

from exactspec.cli import options as opt
from exactspec.cli.prompt import decode
from exactspec.cli.render import Painter, ReadingNote, copied_share, is_terminal, plural, summary, use_color
from exactspec.cli.services import CliError, EngineLike, Message, Reading, Services, SessionLike
from exactspec.cli.stream import consume
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.named import DEFAULT_MODEL

HELP = '/exit leaves, /reset forgets the conversation, /stats shows figures, """ begins and ends text of several lines'
COMMANDS = ("/exit", "/reset", "/stats", "/help")
FENCE = '"""'


def chat(
    context: typer.Context,
    model: opt.Model = DEFAULT_MODEL,
    system: opt.System = None,
    draft: opt.Draft = "auto",
    max_nodes: opt.MaxNodes = 48,
    max_tokens: opt.MaxTokens = None,
    min_tokens: opt.MinTokens = 0,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = 0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    threads: opt.Threads = None,
    context_length: opt.ContextLength = None,
    cache_dtype: opt.CacheDtype = DEFAULT_CACHE_DTYPE,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    no_color: opt.NoColor = False,
) -> None:
    """Talk with a model over several turns.

    /exit or Ctrl-D leaves, /reset forgets the conversation, /stats shows figures. Ctrl-C stops an answer and keeps
    its text. Three double quotes begin and end text of several lines. With piped stdin every line is a turn.
    """
    services: Services = context.obj
    params = opt.sampling_params(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop,
    )
    speculation = Speculation(draft=draft, max_nodes=max_nodes)
    if system is not None:
        opt.check_text(system, "--system")
    engine = opt.load_engine(
        services,
        model,
        speculation,
        threads=threads,
        context=context_length,
        cache_dtype=cache_dtype,
        dtype=dtype,
        device=device,
    )
    if not engine.tokenizer.has_chat_template:
        raise CliError("this model has no chat template: use exactspec generate --raw")
    conversation = Conversation(engine, params, speculation, system)
    color = use_color(services.stdout, services.environ, no_color=no_color)
    talk(services, conversation, color=color)


@dataclass(slots=True)
class Conversation:
    """The turns so far, and the session that keeps their keys and values."""

    engine: EngineLike
    params: SamplingParams
    speculation: Speculation
    system: str | None
    messages: list[Message] = field(default_factory=list)
    answers: list[Completion] = field(default_factory=list)
    session: SessionLike = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.answers = []
        self.session = self.engine.session()

    def turn(self, text: str, show: Callable[[Chunk], None], *, progress: Reading) -> Completion:
        """Answer one user turn. A turn that failed, or that was stopped before any text, leaves no trace."""
        self.messages.append({"role": "user", "content": text})
        answered = False
        try:
            stream = self.session.stream(
                list(self.messages), self.params, speculation=self.speculation, progress=progress
            )
            completion = consume(stream, show)
            if completion.text or completion.finish_reason != "cancelled":
                self.messages.append({"role": "assistant", "content": completion.text})
                self.answers.append(completion)
                answered = True
            return completion
        finally:
            if not answered:
                self.messages.pop()

    def stats(self) -> str:
        if not self.answers:
            return "no answers yet"
        tokens = sum(a.metrics.completion_tokens for a in self.answers)
        steps = sum(a.metrics.num_steps for a in self.answers)
        seconds = sum(a.metrics.decode_s for a in self.answers)
        prompt = sum(a.metrics.prompt_tokens for a in self.answers)
        cached = sum(a.metrics.cached_tokens for a in self.answers)
        copied = sum(copied_share(a) * len(a.tokens) for a in self.answers)
        last = self.answers[-1].metrics
        parts = [
            plural(len(self.answers), "answer"),
            plural(tokens, "token"),
            f"{tokens / seconds if seconds else 0:.1f} tok/s",
            f"tau {tokens / steps if steps else 0:.2f}",
            f"{copied / tokens if tokens else 0:.0%} copied",
            f"{cached} of {prompt} prompt tokens reused",
            f"context {last.prompt_tokens + last.completion_tokens} of {self.engine.target.max_length}",
        ]
        return ", ".join(parts)


class Turns:
    """Reads the user's turns: from a terminal with line editing, else line by line from stdin."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.interactive = services.stdin.isatty()

    def next(self) -> str | None:
        """One turn, or None at the end of the input. Raises KeyboardInterrupt on Ctrl-C."""
        line = self._line("> ")
        if line is None or not line.lstrip().startswith(FENCE):
            return line
        lines = [line.lstrip()[len(FENCE) :]]
        while not lines[-1].rstrip().endswith(FENCE):
            more = self._line(". ")
            if more is None:
                break
            lines.append(more)
        else:
            lines[-1] = lines[-1].rstrip()[: -len(FENCE)]
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if self.interactive:
            try:
                return opt.check_text(self._services.ask(prompt), "that line")
            except EOFError:
                return None
        data = self._services.stdin.readline()
        return decode(data, "stdin").rstrip("\r\n") if data else None


def talk(services: Services, conversation: Conversation, *, color: bool) -> None:
    """Read turns and answer them until the input ends or /exit."""
    turns = Turns(services)
    if turns.interactive:
        _enable_line_editing()
        services.note(HELP)
    while True:
        try:
            text = turns.next()
        except KeyboardInterrupt:
            if not turns.interactive:
                raise
            services.note("(Ctrl-D or /exit leaves)")
            continue
        except CliError as error:
            _report(services, turns, error)
            continue
        if text is None:
            if turns.interactive:
                print(file=services.stderr)
            return
        command = text.strip()
        if not command:
            continue
        if command == "/exit":
            return
        if command.startswith("/") and (command in COMMANDS or command[1:].isalpha()):
            _command(services, conversation, command)
        else:
            _answer(services, turns, conversation, text, color=color)


def _answer(services: Services, turns: Turns, conversation: Conversation, text: str, *, color: bool) -> None:
    painter = Painter(conversation.engine.tokenizer.token_bytes, color=color, escape=is_terminal(services.stdout))

    reading = ReadingNote(services.stderr, services.environ)

    def show(chunk: Chunk) -> None:
        reading.clear()
        services.stdout.write(painter.paint(chunk))
        services.stdout.flush()

    try:
        try:
            completion = conversation.turn(text, show, progress=reading)
        finally:
            reading.clear()
    except ValueError as error:
        _report(services, turns, error)
        return
    except KeyboardInterrupt:  # before the engine had begun
        if not turns.interactive:
            raise
        services.note("(stopped; that message was dropped)")
        return
    if not completion.text.endswith("\n"):
        services.stdout.write("\n")
    services.stdout.flush()
    if completion.finish_reason == "cancelled" and not turns.interactive:
        raise KeyboardInterrupt
    if completion.finish_reason == "cancelled" and not completion.text:
        services.note("(stopped; that message was dropped)")
    elif turns.interactive:
        services.note(summary(completion))


def _command(services: Services, conversation: Conversation, command: str) -> None:
    if command == "/reset":
        conversation.reset()
        services.note("(the conversation was forgotten)")
    elif command == "/stats":
        services.note(conversation.stats())
    elif command == "/help":
        services.note(HELP)
    else:
        services.note(f"unknown command {command}; {HELP}")


def _report(services: Services, turns: Turns, error: Exception) -> None:
    """A person can try again; a script must not go on with a turn missing."""
    if not turns.interactive:
        raise error
    services.note(f"exactspec: error: {error}; that message was dropped (/reset begins anew)")


def _enable_line_editing() -> None:
    # `input` edits lines once this module is loaded; some Pythons come without it.
    try:
        import readline  # noqa: F401
    except ImportError:
        return
