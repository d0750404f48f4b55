"""Texts, conversations and features: what is trained on, and that it is the same however it was made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import CLOSE, EOS, OPEN, ByteTokenizer
from tiny_weights import RandomWeights

from exactspec.bench.recipes.materials import Materials
from exactspec.drafters.layer.tensor_file import from_bfloat16
from exactspec.target.base import Segment, SegmentRows, Want
from exactspec.target.exact import ExactTarget
from exactspec.training.capture import Text, capture_texts, trained_rows
from exactspec.training.config import Config, DataConfig, config_of, read_config
from exactspec.training.features import HELD_OUT, TRAIN, make_features, self_prompts
from exactspec.training.generate import Asked, generate
from exactspec.training.prompts import RECIPES, held_out_file, make_prompt, prompt_material
from exactspec.training.shards import Document, FeatureWriter, read_documents
from exactspec.training.texts import chat_text, chats, corpus

SOME = Materials(library=Path(asyncio.__file__).parent)  # a part of the library: parsing all of it takes seconds
TOKENIZER = ByteTokenizer(eos=(EOS, CLOSE))


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=1, context=200)


def _same(a: Document, b: Document) -> bool:
    arrays = ("tokens", "trained", "hidden", "keys", "values", "topk_ids", "topk_logits")
    return a.name == b.name and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)


# -- which rows are trained (field case 30) ---------------------------------------------------------------------------


def test_the_mask_of_one_chat_by_hand(target: ExactTarget) -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "four ok"}]
    text = chat_text(TOKENIZER, messages, name="chat")
    written = [OPEN, *b"user\n2+2?", CLOSE, *b"\n", OPEN, *b"assistant\n", *b"four ok", CLOSE, *b"\n"]
    assert list(text.tokens) == written
    (document,) = capture_texts(target, [text])
    # (row, input, label) of every row in the loss: its label lies in what the assistant wrote, the end of turn included
    table = [
        (22, "\n", "f"),
        (23, "f", "o"),
        (24, "o", "u"),
        (25, "u", "r"),
        (26, "r", " "),
        (27, " ", "o"),
        (28, "o", "k"),
        (29, "k", CLOSE),
    ]
    rows = np.flatnonzero(document.trained)
    labels = np.append(document.tokens[1:], document.after)
    found = [(int(q), chr(document.tokens[q]), c if (c := int(labels[q])) == CLOSE else chr(c)) for q in rows]
    assert found == table
    assert len(document) == len(written) - 1  # the last token is a label only


def test_a_second_answer_is_trained_too() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bc"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "ef"},
    ]
    text = chat_text(TOKENIZER, messages, name="chat")
    assert text.answer is not None
    answers = np.array(text.tokens)[text.answer].tolist()
    assert answers == [*b"bc", CLOSE, *b"ef", CLOSE]
    labels = np.array(text.tokens[1:])[trained_rows(text.answer).astype(bool)].tolist()
    assert labels == answers
    with pytest.raises(ValueError, match="no message of the assistant"):
        chat_text(TOKENIZER, messages[:1], name="chat")


def test_chats_name_the_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    good = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    path.write_text(f"{good}\n\n{{}}\n")
    with pytest.raises(ValueError, match=r"chats.jsonl, line 3"):
        list(chats(TOKENIZER, path))


# -- features are the target's own ------------------------------------------------------------------------------------


def test_features_are_what_the_target_computes(target: ExactTarget) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 150).tolist()
    (document,) = capture_texts(target, [Text("t", "text", tokens)], rows_at_once=37)
    cache = target.new_cache()
    (rows,) = target.forward([Segment.chain(cache, tokens[:-1], Want.TOPK)])
    assert (document.topk_ids == rows.topk_ids).all()
    assert (document.topk_logits == rows.topk_logits).all()
    assert np.abs(from_bfloat16(document.hidden) - rows.hidden).max() <= np.abs(rows.hidden).max() / 256
    cache.keep(range(149))
    keys, values = cache.last_layer()  # head size 16, of which each half is padded to 16
    expected = np.concatenate([keys[..., :8], keys[..., 16:24]], axis=-1).transpose(1, 0, 2)
    assert (from_bfloat16(document.keys) == expected).all()
    assert (from_bfloat16(document.values) == values[..., :16].transpose(1, 0, 2)).all()
    assert document.trained.all()
    assert document.after == tokens[-1]


def _asked(count: int, turns: Sequence[str] = ("hello", "more")) -> list[Asked]:
    return [
        Asked(name=f"a{i}", kind="k", turns=(f"{turns[0]} {i}", *turns[1:]), temperature=(0.0, 1.5)[i % 2], seed=i)
        for i in range(count)
    ]


def test_conversations_do_not_depend_on_company(target: ExactTarget) -> None:
    asked = _asked(6)
    alone = {d.name: d for d in generate(target, TOKENIZER, asked, max_answer=20, slots=1)}
    together = {d.name: d for d in generate(target, TOKENIZER, asked, max_answer=20, slots=4)}
    assert list(alone) == [f"a{i}" for i in range(6)]
    assert sorted(together) == sorted(alone)
    assert all(_same(together[name], alone[name]) for name in alone)
    assert len({d.tokens.tobytes() for d in alone.values()}) == 6


def test_greedy_conversations_are_plain_decoding(target: ExactTarget) -> None:
    (document,) = generate(target, TOKENIZER, _asked(1, turns=("hello",)), max_answer=20)
    prompt = TOKENIZER.chat([{"role": "user", "content": "hello 0"}])
    assert document.tokens[: len(prompt)].tolist() == prompt
    rows = np.flatnonzero(document.trained)
    assert rows.tolist() == list(range(len(prompt) - 1, len(document)))
    following = np.append(document.tokens[1:], document.after)
    assert (following[rows] == document.topk_ids[rows, 0]).all()
    assert len(rows) == 20
    assert document.greedy


def test_a_second_turn_is_asked_after_the_first_answer(target: ExactTarget) -> None:
    """A model that ends its turn after three tokens: the second prompt follows the end of the first answer."""

    class Ending:
        calls = 0

        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
            results = target.forward(segments)
            self.calls += 1
            if self.calls % 3 == 0:
                for rows in results:
                    rows.topk_ids[-1, 0] = CLOSE
            return results

    (document,) = generate(Ending(), TOKENIZER, _asked(1), max_answer=20)  # type: ignore[arg-type]
    first = TOKENIZER.chat([{"role": "user", "content": "hello 0"}])
    second = [*b"\n", *TOKENIZER.chat([{"role": "user", "content": "more"}])]
    tokens = [*document.tokens.tolist(), document.after]
    assert tokens[: len(first)] == first
    at = len(first) + 3
    assert tokens[at - 1] == CLOSE
    assert tokens[at : at + len(second)] == second
    assert tokens[-1] == CLOSE
    assert len(tokens) == at + len(second) + 3
    starts = [len(first) - 1, at + len(second) - 1]
    assert np.flatnonzero(document.trained).tolist() == [start + i for start in starts for i in range(3)]


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_come_back_whole(tmp_path: Path, target: ExactTarget) -> None:
    made = list(capture_texts(target, [Text(f"t{i}", "text", list(range(i, i + 20))) for i in range(5)]))
    writer = FeatureWriter(tmp_path, identity="x", tokens_per_file=40)
    for document in made:
        writer.add(document)
    assert len(list(tmp_path.iterdir())) == 1  # 57 of 95 rows; the rest waits
    writer.flush()
    back = list(read_documents(tmp_path, identity="x"))
    assert len(back) == 5
    assert all(_same(a, b) and a.after == b.after for a, b in zip(made, back, strict=True))
    again = FeatureWriter(tmp_path, identity="x")
    assert again.names == {d.name for d in made}
    assert again.tokens == 95
    with pytest.raises(ValueError, match="features of another target"):
        FeatureWriter(tmp_path, identity="y")


def test_features_go_on_where_they_stopped(tmp_path: Path, target: ExactTarget) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"question {i}"]}) + "\n" for i in range(7)))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("some text that is long enough " * 3)
    data = DataConfig(
        prompts=str(prompts),
        corpus=(str(folder),),
        corpus_tokens=60,
        corpus_length=30,
        max_answer=6,
        held_out=2,
        slots=2,
    )
    whole = tmp_path / "whole"
    make_features(target, TOKENIZER, data, whole, tell=lambda text: None)
    stopped = tmp_path / "stopped"

    class Stop(Exception):
        pass

    calls = 0
    forward = target.forward

    class Stopping:
        """Fails at a forward, as a process that is killed."""

        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def forward(self, segments: Sequence[Segment]) -> object:
            nonlocal calls
            calls += 1
            if calls in (3, 20):
                raise Stop
            return forward(segments)

    for _ in range(2):
        with pytest.raises(Stop):
            make_features(Stopping(), TOKENIZER, data, stopped, tell=lambda text: None)  # type: ignore[arg-type]
    kinds = [d.kind for d in read_documents(stopped / TRAIN)]
    assert 0 < kinds.count("prompt") < 5  # conversations that had ended are not held again
    make_features(target, TOKENIZER, data, stopped, tell=lambda text: None)
    for part in (TRAIN, HELD_OUT):
        expected = {d.name: d for d in read_documents(whole / part)}
        found = {d.name: d for d in read_documents(stopped / part)}
        assert expected.keys() == found.keys()
        assert all(_same(found[name], expected[name]) for name in expected)
    assert len(list(read_documents(whole / HELD_OUT))) == 2
    assert sorted(d.kind for d in read_documents(whole / TRAIN)) == ["corpus"] * 2 + ["prompt"] * 5
    tight = replace(data, size_limit_gb=1e-9)
    said: list[str] = []
    make_features(target, TOKENIZER, tight, tmp_path / "tight", tell=said.append)
    assert any("the limit of" in text for text in said)
    assert not list(read_documents(tmp_path / "tight" / TRAIN))


# -- prompts and corpus -----------------------------------------------------------------------------------------------


def test_prompts_are_many_and_of_all_kinds() -> None:
    material = prompt_material(held_out=False, materials=SOME)
    prompts = [make_prompt(0, i, material) for i in range(400)]
    assert {p.kind for p in prompts} == set(RECIPES)
    assert len({p.turns[0] for p in prompts}) > 340
    assert prompts[:9] == [make_prompt(0, i, material) for i in range(9)]
    assert not any("{" in p.turns[0] and "}" in p.turns[0] and p.kind == "travel" for p in prompts)
    other = prompt_material(held_out=True, materials=SOME)
    assert not {f.name for f in other.functions} & {f.name for f in material.functions}


def test_held_out_prompts_are_no_trained_ones() -> None:
    data = DataConfig(self_prompts=60, held_out=20)
    trained = {asked.turns[0] for asked in self_prompts(data, held_out=False, materials=SOME)}
    held = self_prompts(data, held_out=True, known=frozenset(trained), materials=SOME)
    assert len(trained) == 60
    assert len(held) == 20
    assert not trained & {asked.turns[0] for asked in held}
    assert {asked.temperature for asked in held} == {0.0}


def test_the_corpus_leaves_held_out_files_alone() -> None:
    pieces = list(corpus(TOKENIZER, ["library"], tokens=20_000, length=256, seed=0))
    names = {piece.name.split(":")[1].removeprefix("library/") for piece in pieces}
    assert len(names) > 10
    assert not any(held_out_file(name) for name in names)
    assert 19_000 <= sum(len(piece.tokens) for piece in pieces) <= 21_000
    again = list(corpus(TOKENIZER, ["library"], tokens=20_000, length=256, seed=0))
    assert [p.name for p in again] == [p.name for p in pieces]
    with pytest.raises(ValueError, match="is no folder"):
        list(corpus(TOKENIZER, ["/nowhere"], tokens=100, length=20, seed=0))


# -- configuration ----------------------------------------------------------------------------------------------------


def test_a_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[data]\nself_prompts = 5\nchats = ["a.jsonl"]\n[layer]\ndepth = 2\n[train]\nlags = [1, 0.5]\n')
    config = read_config(path)
    assert config.data.self_prompts == 5
    assert config.data.chats == ("a.jsonl",)
    assert config.train.lags == (1.0, 0.5)
    assert config_of(config.as_dict()) == config
    assert config_of({}) == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nself_prompt = 5", "data.self_prompt is not known"),
        ("[trian]\n", "'trian' is no table"),
        ("[train]\nbatch = 1.5", "train.batch must be of type int"),
        ("[train]\nlags = [1]", "train.lags has 1 weights, layer.depth is 5"),
        ("[train]\nclip = 0", "rates must be positive"),
        ("[layer]\ndraft_feature = 'all'", "draft_feature is one of"),
        ("[data", "is no TOML"),
    ],
)
def test_mistakes_in_a_configuration(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)
