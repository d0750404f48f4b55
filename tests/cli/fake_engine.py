"""An engine without a model, for the command line's tests: a scripted answer, one byte a token.

Run as a program it is the ``exactspec`` command with this engine: ``python fake_engine.py generate -p hello``.
The model name chooses the behaviour: ``echo`` answers with the last message in brackets, ``slow`` does so with 50 ms
a token, ``base`` has no chat template, ``broken`` fails inside, ``missing`` cannot be loaded, ``differs`` answers
otherwise when drafted, ``emoji`` answers in several scripts, ``escape`` with control characters, ``sampled`` with its
seed, ``tiny`` has a context of 8 tokens.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion, Metrics, TokenInfo

EMOJI = "🧭 naïve — ジャケット 한국어 👩‍🔧"
SEED = 4242


class FakeTokenizer:
    def __init__(self, *, has_chat_template: bool) -> None:
        self.has_chat_template = has_chat_template

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class FakeEngine:
    """Answers from a script. Every second pair of tokens counts as copied when drafted; steps of two tokens."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.options = options
        self.tokenizer = FakeTokenizer(has_chat_template=name != "base")
        self.target = SimpleNamespace(max_length=8 if name == "tiny" else 4096, identity="fake/1", exact=True)
        self.requests: list[tuple[Any, SamplingParams, Speculation, str | None]] = []
        self.sessions = 0

    def encode(self, prompt: Any) -> list[int]:
        return list(str(prompt).encode())

    def session(self) -> FakeSession:
        self.sessions += 1
        return FakeSession(self)

    def answer(self, prompt: Any, params: SamplingParams, drafted: bool) -> str:
        if self.name == "emoji":
            return EMOJI
        if self.name == "escape":
            return "a\x1b[31mb\x07c\u009bd"
        if self.name == "sampled":
            return f"seed {params.seed}"
        if self.name == "differs" and drafted:
            return "[hellO]"
        return f"[{prompt}]" if isinstance(prompt, str) else f"<{prompt[-1]['content']}>"

    def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        speculation: Speculation | None = None,
        prediction: str | None = None,
        record_steps: bool = False,
        progress: Any = None,
        cached: int = 0,
    ) -> Iterator[Chunk]:
        assert speculation is not None
        self.requests.append((prompt, params, speculation, prediction))
        if self.name == "broken":
            raise RuntimeError("the fake broke\non purpose")
        length = len(str(prompt))
        if self.name == "tiny" and length > 8:
            raise ValueError(f"the prompt has {length} tokens, the context holds 8: shorten it")
        drafted = speculation.draft != "none"
        ids = self.answer(prompt, params, drafted).encode()[: params.max_tokens]
        tokens: list[TokenInfo] = []
        step = 2
        finish = "length" if params.max_tokens is not None and len(ids) == params.max_tokens else "stop"
        sent = 0
        try:
            for at in range(0, len(ids), step):
                new = []
                for index in range(at, min(at + step, len(ids))):
                    copied = drafted and index // 2 % 2 == 1
                    new.append(
                        TokenInfo(
                            ids[index],
                            bytes([ids[index]]).decode(errors="replace"),
                            logprob=-0.5 if params.logprobs is not None else None,
                            top=((ids[index], -0.5), (0, float("-inf")))[: params.logprobs or 0],
                            source=("prediction" if prediction else "copy") if copied else "target",
                            source_span=(0, 2) if copied else None,
                        )
                    )
                if self.name == "slow":
                    time.sleep(0.05 * len(new))
                tokens += new
                text = ids[: len(tokens)].decode(errors="ignore")
                piece, sent = text[sent:], len(text)
                yield Chunk(piece, tuple(new))
        except KeyboardInterrupt:
            finish = "cancelled"
        text = ids[: len(tokens)].decode(errors="ignore")
        copied_count = sum(token.source != "target" for token in tokens)
        steps = -(-len(tokens) // step) if drafted else len(tokens)
        completion = Completion(
            text=text,
            token_ids=tuple(token.id for token in tokens),
            finish_reason=finish,
            seed=SEED if params.seed is None else params.seed,
            identity="fake/1",
            exact=True,
            metrics=Metrics(
                prompt_tokens=length,
                completion_tokens=len(tokens),
                cached_tokens=cached,
                num_steps=steps,
                num_draft_tokens=copied_count,
                num_accepted_tokens=copied_count,
                prefill_s=0.01,
                decode_s=0.001 * steps,
                accepted_by_source={"copy": copied_count},
            ),
            tokens=tuple(tokens),
        )
        yield Chunk(text[sent:], (), completion)


class FakeSession:
    """Says as `cached_tokens` how many messages it has seen before."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.seen = 0

    def stream(self, messages: Any, params: SamplingParams, **options: Any) -> Iterator[Chunk]:
        cached, self.seen = self.seen, len(messages)
        return self.engine.stream(messages, params, cached=cached, **options)


def open_fake(name: str, *, progress: Any, **options: Any) -> FakeEngine:
    if name == "missing":
        raise ValueError("no model is named missing:\n  see exactspec models")
    progress(f"loading {name}")
    return FakeEngine(name, **options)


if __name__ == "__main__":
    raise SystemExit(main(services=dataclasses.replace(Services.of_process(), open_engine=open_fake)))
