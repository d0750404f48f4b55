"""Where the prompt comes from: exactly one of -p, --prompt-file, --messages, or piped stdin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exactspec.cli.options import check_text
from exactspec.cli.services import CliError, EngineLike, Message, Prompt, Services

ROLES = ("system", "user", "assistant", "tool")


def decode(data: bytes, what: str) -> str:
    """UTF-8 text of `data` (a byte order mark is dropped); CliError names `what` and the place of a bad byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(
            f"{what} is not valid UTF-8 (byte {error.start}): convert it first, for example with iconv -t utf-8"
        ) from None


def read_file(path: Path, option: str, services: Services) -> str:
    """Text of a file, "-" being stdin."""
    if str(path) == "-":
        return decode(services.stdin.read(), "stdin")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CliError(f"{option}: cannot read {path}: {error.strerror or error}; give a readable file") from None
    return decode(data, str(path))


def chomp(text: str) -> str:
    """Without the one line end that a text file closes with: it is not part of what was asked."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def parse_messages(text: str, where: str) -> list[Message]:
    """A JSON list of {"role", "content"} objects; CliError names the first thing that is wrong."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CliError(f"{where} is not valid JSON: {error}") from None
    except RecursionError:
        raise CliError(f'{where} is nested too deeply: give a list of {{"role", "content"}} objects') from None
    if not isinstance(value, list):
        raise CliError(f'{where} must hold a JSON list of {{"role", "content"}} objects, got {_kind(value)}')
    if not value:
        raise CliError(f"{where} holds no messages: give at least one user message")
    for index, message in enumerate(value):
        at = f"{where}, message {index}"
        if not isinstance(message, dict):
            raise CliError(f'{at} must be an object with "role" and "content", got {_kind(message)}')
        for key in ("role", "content"):
            if key not in message:
                raise CliError(f'{at} has no "{key}"')
            if not isinstance(message[key], str):
                raise CliError(f'{at}: "{key}" must be a string, got {_kind(message[key])}')
            check_text(message[key], f'{at}: "{key}"')
        unknown = sorted(set(message) - {"role", "content"})
        if unknown:
            raise CliError(f'{at}: unknown key "{unknown[0]}"; only "role" and "content" are read')
        if message["role"] not in ROLES:
            raise CliError(f'{at}: role must be one of {", ".join(ROLES)}, got "{message["role"]}"')
    if all(not message["content"].strip() for message in value):
        raise CliError(f"{where}: every message is empty; give a user message with text")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]


def read_prompt(
    services: Services,
    *,
    text: str | None,
    prompt_file: Path | None,
    messages_file: Path | None,
    system: str | None,
    raw: bool,
) -> Prompt:
    """A string to complete (`raw`), or messages for the chat template. Nothing in a text is parsed for special tokens.

    Raises CliError for none or several sources, an empty prompt, text that is not UTF-8, bad messages.
    """
    given = [
        name
        for name, value in (("-p", text), ("--prompt-file", prompt_file), ("--messages", messages_file))
        if value is not None
    ]
    if len(given) > 1:
        raise CliError(f"the prompt is given twice, by {' and '.join(given)}: keep one")
    if raw and system is not None:
        raise CliError("--system needs the chat template, which --raw leaves out: drop one of them")
    if raw and messages_file is not None:
        raise CliError("--messages needs the chat template, which --raw leaves out: drop one of them")
    if system is not None:
        check_text(system, "--system")
    if messages_file is not None:
        where = "stdin" if str(messages_file) == "-" else str(messages_file)
        messages = parse_messages(read_file(messages_file, "--messages", services), where)
        if system is not None:
            if messages[0]["role"] == "system":
                raise CliError(f"{where} already has a system message: drop --system")
            messages.insert(0, {"role": "system", "content": system})
        return messages

    if prompt_file is not None:
        prompt = chomp(read_file(prompt_file, "--prompt-file", services))
    elif text is not None and text != "-":
        prompt = check_text(text, "-p")
    elif text is None and services.stdin.isatty():
        raise CliError("no prompt: give -p TEXT, --prompt-file FILE or --messages FILE, or pipe text in")
    else:
        prompt = chomp(decode(services.stdin.read(), "stdin"))
    # White space alone is no question for a chat, but is something to complete.
    if not (prompt if raw else prompt.strip()):
        raise CliError("the prompt is empty: give some text with -p, --prompt-file or stdin")
    if raw:
        return prompt
    turn = {"role": "user", "content": prompt}
    return [turn] if system is None else [{"role": "system", "content": system}, turn]


def fit_to_model(prompt: Prompt, engine: EngineLike) -> Prompt:
    """`prompt` as the loaded model takes it: a base model without a chat template completes a lone user turn."""
    if isinstance(prompt, str) or engine.tokenizer.has_chat_template:
        return prompt
    if len(prompt) == 1 and prompt[0]["role"] == "user":
        return str(prompt[0]["content"])
    raise CliError("this model has no chat template: give one plain prompt, without --system or --messages")


def check_place(path: Path, option: str) -> None:
    """Raises `CliError`, before an answer is computed, where no file can be written."""
    if path.is_dir():
        raise CliError(f"{option}: {path} is a folder: name a file")
    if not path.resolve().parent.is_dir():
        raise CliError(f"{option}: there is no folder {path.parent}")
