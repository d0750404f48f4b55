"""The tokenizer of a folder: tokenizer.json, with the settings that transformers keeps beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

from tokenizers import Tokenizer

from exactspec.target.byte_level import BpeEncoder, byte_alphabet, byte_of, decode
from exactspec.target.chat import ChatTemplate
from exactspec.target.json_file import read_object
from exactspec.target.sentencepiece_bpe import SPACE
from exactspec.target.settings import of_known_form, one_line, told
from exactspec.target.tokenizer_file import Control, FileTokenizer, end_ids, looks_special

_SPECIAL_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def folder_tokenizer(folder: Path, vocab_size: int) -> FileTokenizer:
    """Tokenizer of a folder as transformers saves it. `vocab_size`: rows of the embedding (some have no token).

    Raises ValueError if tokenizer.json is missing or of a kind unknown here.
    """
    state = _read(folder / "tokenizer.json")
    if not state:
        raise ValueError("the folder has no tokenizer.json; save the model with transformers once to get one")
    with of_known_form("tokenizer.json or tokenizer_config.json"):
        return _tokenizer(folder, state, vocab_size)


def _tokenizer(folder: Path, state: Mapping[str, Any], vocab_size: int) -> FileTokenizer:
    settings = _read(folder / "tokenizer_config.json")
    added = [entry for entry in state.get("added_tokens") or [] if _id(entry) < vocab_size]
    controls = [
        Control(entry["content"], entry["id"], bool(entry.get("lstrip")), bool(entry.get("rstrip")))
        for entry in added
        if entry.get("special") or looks_special(entry["content"])
    ]
    named = {control.text: control.id for control in controls}
    variables = {key: text for key in _SPECIAL_VARIABLES if (text := _text(settings.get(key))) is not None}
    source = _template(folder, settings)
    return FileTokenizer(
        encoder=_encoder(state, set(named)),
        piece=_pieces(state, added, set(named), vocab_size).__getitem__,
        vocab_size=vocab_size,
        controls=controls,
        eos_ids=end_ids(controls, _stated_eos(folder, vocab_size, named.get(variables.get("eos_token", "")))),
        bos_id=_bos(state, settings, named.get(variables.get("bos_token", ""))),
        template=None if source is None else ChatTemplate(source, list(named), variables),
    )


def _id(entry: Mapping[str, Any]) -> int:
    id, content = entry["id"], entry["content"]
    if type(id) is not int or id < 0 or not isinstance(content, str):
        raise ValueError(f"tokenizer.json: an added token has a content and an id, this one is {told(entry)}")
    return id


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, {} if there is no such file."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}


def _text(token: Any) -> str | None:
    """A special token of tokenizer_config.json: its text, or an object that holds it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _stated_eos(folder: Path, vocab_size: int, eos: int | None) -> list[int | None]:
    stated: list[int | None] = [eos]
    for name in ("generation_config.json", "config.json"):
        value = _read(folder / name).get("eos_token_id")
        for id in value if isinstance(value, list) else [value]:
            if isinstance(id, int) and 0 <= id < vocab_size:
                stated.append(id)
    return stated


def _bos(state: Mapping[str, Any], settings: Mapping[str, Any], bos: int | None) -> int | None:
    """BOS for a raw prompt: as tokenizer_config.json says, else as tokenizer.json's post-processor does."""
    wanted = settings.get("add_bos_token")
    if isinstance(wanted, bool):
        return bos if wanted else None
    ids = _load({**state, "truncation": None, "padding": None}).encode("", add_special_tokens=True).ids
    return bos if ids[:1] == [bos] else None


def _load(state: Mapping[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(state))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises plain Exception, and its panics are none
        raise ValueError(f"tokenizer.json cannot be used: {one_line(error)}") from None


def _encoder(state: Mapping[str, Any], controls: set[str]) -> BpeEncoder:
    """The tokenizer without its special tokens, so that their names in a text are ordinary text."""
    stored = state.get("model") or {}
    if not isinstance(stored, Mapping):
        raise ValueError(f"tokenizer.json: model should be an object, it is {told(stored)}")
    model = dict(stored)
    kind = model.get("type")
    if kind not in ("BPE", "Unigram", "WordLevel"):
        raise ValueError(f"tokenizer.json has a {told(kind)} model, which is not supported (BPE is)")
    if kind == "BPE":
        gone = controls - {model.get("unk_token")}
        model["vocab"] = {text: id for text, id in model["vocab"].items() if text not in gone}
        model["merges"] = [merge for merge in model["merges"] if gone.isdisjoint(_joined(merge))]
    plain = {
        **state,
        "model": model,
        "added_tokens": [entry for entry in state.get("added_tokens") or [] if entry["content"] not in controls],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    inner = _without_prefix(plain)
    return BpeEncoder(_load(plain), None if inner is None else _load(inner), spells=_spells(plain))


# Steps of which every character of a text goes into a token, or is unknown to the vocabulary.
_SPELLING = {"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "Metaspace", "UnicodeScripts"}


def _spells(state: Mapping[str, Any]) -> bool:
    """Whether the tokens spell the normalised text, all of it; where a step or token is not known to, it does not."""
    if (state.get("model") or {}).get("type") != "BPE":
        return False
    composes_alone = True
    for step in _steps(state.get("normalizer"), "normalizers"):
        kind, pattern, content = step.get("type"), step.get("pattern"), step.get("content")
        if not (kind in ("NFC", "Prepend") or (kind == "Replace" and (pattern, content) == ({"String": " "}, SPACE))):
            return False
        composes_alone &= kind == "NFC"
    for step in _steps(state.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") not in _SPELLING or step.get("behavior") == "Removed":
            return False
    for entry in state.get("added_tokens") or []:
        as_it_is = not entry.get("normalized") or (composes_alone and is_normalized("NFC", entry["content"]))
        if entry.get("lstrip") or entry.get("rstrip") or not as_it_is:
            return False
    return True


def _steps(outer: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """A step's parts, where it is a sequence; itself otherwise."""
    if outer is None:
        return []
    return [part for step in outer[inner] for part in _steps(step, inner)] if inner in outer else [outer]


def _joined(merge: Any) -> tuple[str, str, str]:
    parts = merge.split(" ", 1) if isinstance(merge, str) else merge
    if len(parts) != 2:
        raise ValueError(f"tokenizer.json: a merge has two parts, this one is {told(merge)}")
    left, right = parts
    return left, right, left + right


def _without_prefix(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same for pieces within a text, where a Metaspace step prefixes a space to the first piece alone."""
    step = state.get("pre_tokenizer")
    steps = step.get("pretokenizers", [step]) if isinstance(step, Mapping) else []
    if not any(one.get("type") == "Metaspace" and one.get("prepend_scheme") == "first" for one in steps):
        return None
    never = [{**one, "prepend_scheme": "never"} if one.get("type") == "Metaspace" else one for one in steps]
    return {**state, "pre_tokenizer": {"type": "Sequence", "pretokenizers": never}}


def _pieces(
    state: Mapping[str, Any], added: Iterable[Mapping[str, Any]], controls: set[str], vocab_size: int
) -> list[bytes]:
    pieces = [b""] * vocab_size
    vocab = state["model"].get("vocab") or {}
    items = vocab.items() if isinstance(vocab, Mapping) else ((text, id) for id, (text, _) in enumerate(vocab))
    kinds = _decoders(state.get("decoder"))
    byte_level, fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
    if not byte_level and not kinds & {"ByteFallback", "Metaspace"}:
        raise ValueError("tokenizer.json has a decoder that is not supported (byte-level and SentencePiece are)")
    alphabet = byte_alphabet()
    for text, id in items:
        if id >= vocab_size:
            raise ValueError(f"tokenizer.json has the token {id}, the embedding only {vocab_size} rows")
        if byte_level:
            pieces[id] = decode(text, alphabet)
        else:
            byte = byte_of(text) if fallback else None
            pieces[id] = text.replace("\u2581", " ").encode() if byte is None else bytes([byte])
    for entry in added:
        pieces[entry["id"]] = b"" if entry["content"] in controls else entry["content"].encode()
    return pieces


def _decoders(decoder: Any) -> set[str]:
    if not isinstance(decoder, Mapping):
        return set()
    return {str(one.get("type")) for one in decoder.get("decoders", [decoder])}


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file.name} cannot be read: {error}") from None
    template = settings.get("chat_template") or _read(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {str(one.get("name")): one.get("template") for one in template}.get("default")
    return template if isinstance(template, str) and template else None
