"""Hugging Face: what a repository holds, with hashes, before a byte of it is downloaded. Gives up fast."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from exactspec.target.model_path import is_complete_folder
from exactspec.target.named import ModelError

T = TypeVar("T")

HTTP_TIMEOUT_S = 4.0  # per connection or read of the metadata request
LOOKUP_DEADLINE_S = 8.0  # for the whole lookup: a dead resolver or a trickling proxy is not covered by HTTP timeouts

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:\\]+\.gguf))?")


class HubUnreachable(ModelError):
    """The hub did not answer (or must not be asked): another source may be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a repository. `sha256` is None for small files that the hub does not hash (not in LFS)."""

    name: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRepo:
    """A repository at one commit (`revision`)."""

    repo: str
    revision: str
    licence: str
    files: tuple[RemoteFile, ...]


class HubClient(Protocol):
    """What the model store asks of the hub."""

    def lookup(self, repo: str) -> RemoteRepo:
        """Raises HubUnreachable if the hub does not answer, ModelError if it says no."""
        ...

    def fetch(self, repo: RemoteRepo, names: tuple[str, ...], folder: Path) -> None:
        """Download files of `repo` into `folder` under their own names; continues what is there. May raise anything
        that the network raises."""
        ...

    def cached(self, repo: str, file: str | None) -> Path | None:
        """A complete copy that the user's Hugging Face cache already holds. Asks no network."""
        ...


def parse_hub_id(text: str) -> tuple[str, str | None] | None:
    """``org/name`` -> (repo, None), ``org/name:file.gguf`` -> (repo, file), anything else -> None.

    >>> parse_hub_id("Qwen/Qwen2.5-0.5B-GGUF:q4_0.gguf")
    ('Qwen/Qwen2.5-0.5B-GGUF', 'q4_0.gguf')
    """
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in text or (match["file"] is None and text.endswith((".gguf", ".safetensors"))):
        return None
    return match["repo"], match["file"]


def choose_files(repo: RemoteRepo, file: str | None) -> tuple[RemoteFile, ...]:
    """The files to download: the GGUF that was asked for, else safetensors with configuration and tokenizer, else
    the only GGUF. Raises ModelError if that leaves no choice, or several."""
    if file is not None:
        chosen = tuple(entry for entry in repo.files if entry.name == file)
        if not chosen:
            raise ModelError(f"{repo.repo} has no file {file}; it has {_some(_ggufs(repo)) or 'no GGUF file'}")
        if re.search(r"-\d{5}-of-\d{5}\.gguf$", file):
            raise ModelError(f"{repo.repo}: {file} is one piece of a split GGUF file; choose a file in one piece")
        return chosen
    # Only the root: sub-folders hold other formats (onnx/, original/). consolidated* is a second copy of the weights.
    root = [entry for entry in repo.files if "/" not in entry.name and not entry.name.startswith("consolidated")]
    if any(entry.name.endswith(".safetensors") for entry in root):
        return tuple(e for e in root if e.name.endswith((".safetensors", ".json", ".jinja")) or e.name == "merges.txt")
    ggufs = _ggufs(repo)
    if len(ggufs) == 1:
        return choose_files(repo, ggufs[0])
    if ggufs:
        raise ModelError(f"{repo.repo} has several GGUF files; name one, '{repo.repo}:FILE': {_some(ggufs)}")
    raise ModelError(f"{repo.repo} has neither *.safetensors nor a GGUF file")


def _ggufs(repo: RemoteRepo) -> list[str]:
    return [entry.name for entry in repo.files if entry.name.endswith(".gguf")]


def _some(names: list[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


class HuggingFace:
    """The hub through `huggingface_hub`, so the user's token, endpoint, proxy and offline settings count.

    `endpoint`: another server than the one huggingface_hub is configured for. `timeout_s`: for the connection and for
    each read of a lookup.
    """

    def __init__(self, *, endpoint: str | None = None, timeout_s: float = HTTP_TIMEOUT_S) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    def lookup(self, repo: str) -> RemoteRepo:
        """One request. Fails within `LOOKUP_DEADLINE_S` seconds; at once when ``HF_HUB_OFFLINE`` is set."""
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

        if constants.HF_HUB_OFFLINE:
            raise HubUnreachable("HF_HUB_OFFLINE is set")
        api = HfApi(endpoint=self._endpoint)
        try:
            info = watch(
                lambda: api.model_info(repo, files_metadata=True, timeout=self._timeout_s),
                deadline_s=LOOKUP_DEADLINE_S,
            )
        except GatedRepoError:
            raise ModelError(
                f"{repo} asks for its terms to be accepted: do so on its Hugging Face page, then run 'hf auth login'"
            ) from None
        except (RepositoryNotFoundError, HFValidationError):
            raise ModelError(f"{repo} is not on Hugging Face, or it is private: check the spelling") from None
        except HfHubHTTPError as error:
            raise HubUnreachable(f"the hub answered {one_line(error)}") from None
        except Exception as error:  # the HTTP client's own classes differ between versions of huggingface_hub
            raise HubUnreachable(one_line(error)) from None
        return RemoteRepo(
            repo=repo,
            revision=info.sha or "main",
            licence=_licence(info),
            files=tuple(
                RemoteFile(name=entry.rfilename, bytes=entry.size or 0, sha256=entry.lfs.sha256 if entry.lfs else None)
                for entry in info.siblings or []
            ),
        )

    def fetch(self, repo: RemoteRepo, names: tuple[str, ...], folder: Path) -> None:
        """See `HubClient.fetch`; one file after another, each of them resumable."""
        import inspect

        from huggingface_hub import hf_hub_download

        # The store draws one bar for all files. Releases before tqdm_class draw theirs as well, which does no harm.
        quiet = {"tqdm_class": _silent_bar()} if "tqdm_class" in inspect.signature(hf_hub_download).parameters else {}
        for name in names:
            hf_hub_download(repo.repo, name, revision=repo.revision, local_dir=folder, endpoint=self._endpoint, **quiet)

    def cached(self, repo: str, file: str | None) -> Path | None:
        from huggingface_hub import snapshot_download, try_to_load_from_cache

        if file is not None:
            found = try_to_load_from_cache(repo, file)
            return Path(found) if isinstance(found, str) else None
        try:
            folder = Path(snapshot_download(repo, local_files_only=True))
        except Exception:  # not there, or not whole: either way it has to be fetched
            return None
        return folder if is_complete_folder(folder) else None


def _silent_bar() -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    class SilentBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

    return SilentBar


def _licence(info: Any) -> str:
    licence = getattr(info.card_data, "license", None) or "not stated"
    if licence == "other":
        licence = getattr(info.card_data, "license_name", None) or "other"
    return str(licence)


def one_line(error: BaseException) -> str:
    """The first line of an exception's text, or its class name if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def watch(
    call: Callable[[], T],
    *,
    tick: Callable[[], None] | None = None,
    every_s: float = 0.2,
    deadline_s: float | None = None,
) -> T:
    """Run `call` in a daemon thread and call `tick` about every `every_s` seconds until it ends.

    The caller stays open to Ctrl-C. Raises what `call` raises, or TimeoutError after `deadline_s` seconds (the call is
    left behind in its thread).
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=work, daemon=True).start()
    if deadline_s is not None:
        if not done.wait(deadline_s):
            raise TimeoutError(f"no answer within {deadline_s:g} s")
    else:
        while not done.wait(every_s):
            if tick is not None:
                tick()
    if errors:
        raise errors[0]
    return results[0]
