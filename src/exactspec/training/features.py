"""All features that a configuration asks for, in two folders: ``train`` and ``held-out``. Goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from exactspec.bench.recipes.materials import Materials
from exactspec.json_lines import json_lines
from exactspec.target.exact import ExactTarget
from exactspec.target.tokenizer import Tokenizer
from exactspec.training.capture import capture_texts
from exactspec.training.config import DataConfig
from exactspec.training.generate import Asked, generate
from exactspec.training.prompts import make_prompt, prompt_material
from exactspec.training.shards import Document, FeatureWriter
from exactspec.training.texts import chats, corpus

TRAIN, HELD_OUT = "train", "held-out"
_TELL_S = 20.0
_GB = 1e9


@dataclass(slots=True)
class _Teller:
    """Progress with the time left, now and then."""

    tell: Callable[[str], None]
    what: str
    total: int
    done: int = 0
    _start: float = field(default_factory=monotonic)
    _last: float = field(default_factory=monotonic)
    _first: int = -1

    def step(self, tokens: int) -> None:
        self._first = self.done if self._first < 0 else self._first
        self.done += 1
        now = monotonic()
        if now - self._last >= _TELL_S:
            self._last = now
            left = (now - self._start) / (self.done - self._first) * (self.total - self.done)
            self.tell(f"{self.what}: {self.done}/{self.total}, {tokens:,} tokens, {left / 60:.0f} minutes left")


def self_prompts(
    data: DataConfig,
    *,
    held_out: bool,
    known: frozenset[str] = frozenset(),
    materials: Materials | None = None,
) -> list[Asked]:
    """The conversations of a configuration. `known`: first turns that are not asked again (trained ones, for the
    held-out part). Held-out answers are greedy."""
    if data.prompts != "recipes":
        return _from_file(Path(data.prompts), data, held_out=held_out)
    material = prompt_material(held_out=held_out, materials=materials)
    count, index = data.held_out if held_out else data.self_prompts, 0
    asked: list[Asked] = []
    seen = set(known)
    while len(asked) < count and index < 20 * count:
        prompt = make_prompt(data.seed, index, material, greedy=1.0 if held_out else data.greedy)
        if prompt.turns[0] not in seen:
            seen.add(prompt.turns[0])
            temperature = 0.0 if prompt.greedy else data.temperature
            asked.append(
                Asked(
                    name=f"self:{data.seed}:{index}",
                    kind=prompt.kind,
                    turns=prompt.turns,
                    temperature=temperature,
                    seed=(data.seed << 32) + index,
                )
            )
        index += 1
    return asked


def _from_file(path: Path, data: DataConfig, *, held_out: bool) -> list[Asked]:
    """Of a file, the last `held_out` prompts are kept out."""
    asked: list[Asked] = []
    for number, entry in json_lines(path):
        try:
            turns = entry.get("turns") or [m["content"] for m in entry["messages"] if m["role"] == "user"]
        except (KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: neither turns nor messages") from None
        greedy = held_out or (number % 1000) / 1000 < data.greedy
        asked.append(
            Asked(
                name=f"self:{path.name}:{number}",
                kind=str(entry.get("kind", "prompt")),
                turns=turns,
                temperature=0.0 if greedy else data.temperature,
                seed=(data.seed << 32) + number,
            )
        )
    if len(asked) <= data.held_out:
        raise ValueError(f"{path} has {len(asked)} prompts, {data.held_out} are to be held out: give more")
    return asked[-data.held_out :] if held_out else asked[: -data.held_out][: data.self_prompts]


def make_features(
    target: ExactTarget,
    tokenizer: Tokenizer,
    data: DataConfig,
    folder: Path,
    *,
    tell: Callable[[str], None],
) -> None:
    """Write what is not there yet. Stops, and says so, at the limit of size. Killed at any point, the next call goes
    on; conversations that were under way begin anew and come out the same."""
    held = FeatureWriter(folder / HELD_OUT, identity=target.identity)
    train = FeatureWriter(folder / TRAIN, identity=target.identity)
    questions = self_prompts(data, held_out=False)
    known = frozenset(asked.turns[0] for asked in questions)
    others = self_prompts(data, held_out=True, known=known)
    limit = data.size_limit_gb * _GB
    _converse(target, tokenizer, others, data, held, "held-out conversations", tell, limit)
    pieces = corpus(
        tokenizer, data.corpus, tokens=data.corpus_tokens, length=data.corpus_length, seed=data.seed
    )  # read and encoded again on resuming; the target's pass is what takes time
    texts = [text for text in pieces if text.name not in train.names]
    for path in data.chats:
        texts += [text for text in chats(tokenizer, Path(path)) if text.name not in train.names]
    teller = _Teller(tell, "texts", len(texts))
    _write(capture_texts(target, texts), train, teller, limit - held.nbytes)
    _converse(target, tokenizer, questions, data, train, "conversations", tell, limit - held.nbytes)
    tell(f"features: {train.tokens:,} tokens to train on, {held.tokens:,} held out")


def _converse(
    target: ExactTarget,
    tokenizer: Tokenizer,
    asked: Sequence[Asked],
    data: DataConfig,
    writer: FeatureWriter,
    what: str,
    tell: Callable[[str], None],
    limit: float,
) -> None:
    left = [one for one in asked if one.name not in writer.names]
    teller = _Teller(tell, what, len(asked), len(asked) - len(left))
    documents = generate(target, tokenizer, left, max_answer=data.max_answer, slots=data.slots)
    _write(documents, writer, teller, limit)


def _write(documents: Iterator[Document], writer: FeatureWriter, teller: _Teller, limit: float) -> None:
    try:
        if writer.nbytes < limit:
            for document in documents:
                writer.add(document)
                teller.step(writer.tokens)
                if writer.nbytes >= limit:
                    break
    finally:  # an interrupted run keeps what was whole
        writer.flush()
    if writer.nbytes >= limit:
        teller.tell(f"{teller.what}: the limit of {limit / _GB:.1f} GB is reached (data.size_limit_gb)")
