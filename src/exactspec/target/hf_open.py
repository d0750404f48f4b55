"""Open a model of transformers as a target: ``hf:FOLDER``, or ``hf:ORG/NAME`` from the Hugging Face cache.

Nothing is downloaded, no code from the model's folder is run, and only safetensors are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from exactspec.memory import available_memory
from exactspec.target.hf import HFTarget, context_of
from exactspec.target.hf_layers import read_layers
from exactspec.target.safetensors_dir import hash_files, weight_files
from exactspec.target.settings import one_line
from exactspec.target.tokenizer import Tokenizer
from exactspec.target.tokenizer_json import folder_tokenizer

DTYPES = ("float32", "bfloat16")
DEVICES = ("cpu", "cuda")


def open_hf(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    context: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[HFTarget, Tokenizer]:
    """The target and the tokenizer of a folder as transformers saves it. `name`: the folder, or a hub id whose files
    are in the Hugging Face cache. `dtype`: of weights and arithmetic. `device`: "cuda" where torch finds one.

    Raises ValueError, one line that begins with `name`: not found, not a decoder, layers that cannot be rolled back,
    weights that are missing, quantised, or too large for the memory.
    """
    try:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("torch finds no CUDA device here: take the device cpu")
        folder = _folder(name)
        config = _config(folder)
        read_layers(config)
        context_of(config, context)
        files = weight_files(folder)
        tokenizer = folder_tokenizer(folder, config.get_text_config(decoder=True).vocab_size)
        number = getattr(torch, dtype)
        if device == "cpu":
            _require_memory(files, config, number)
        if progress is not None:
            progress(f"loading {name} in {dtype} through transformers")
        model = _load(folder, config, number).to(device)
        target = HFTarget(model, context=context, threads=threads, weights=hash_files(files))
    except OSError as error:
        raise ValueError(f"hf:{name}: {error.strerror or one_line(error)}") from None
    except ValueError as error:
        raise ValueError(f"hf:{name}: {one_line(error)}") from None
    if progress is not None:
        progress(target.promise)
    return target, tokenizer


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # a name that can be no id, an id that is not cached: the same advice
        raise ValueError(
            "neither a folder nor a model in the Hugging Face cache; 'hf download ORG/NAME' puts one there"
        ) from None


def _config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise ValueError("the folder has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the validators of configurations raise classes of their own
        raise ValueError(f"config.json cannot be used: {one_line(error)[:300]}") from None
    if getattr(config, "quantization_config", None):
        raise ValueError("the weights are quantised; take the unquantised model")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(f"transformers has no causal language model of the type {config.model_type!r}")
    return config


def _require_memory(files: list[Path], config: Any, dtype: Any) -> None:
    """Weights only: keys and values grow with the requests."""
    with torch.device("meta"):
        need = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()) * dtype.itemsize
    have = available_memory()
    if have is not None and need > have:
        raise ValueError(
            f"the weights take {need / 2**30:.2f} GiB in {str(dtype).removeprefix('torch.')}, available "
            f"{have / 2**30:.2f} GiB; take bfloat16, a smaller model, or free memory"
        )


def _load(folder: Path, config: Any, dtype: Any) -> Any:
    with _no_bars():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # safetensors, torch and transformers each raise their own
            raise ValueError(f"the weights cannot be loaded: {one_line(error)[:300]}") from None
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:  # transformers would leave them random
        raise ValueError(
            f"the weights lack {len(missing)} tensors of a {config.model_type} decoder, such as {missing[0]}"
        )
    return model


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' progress bars; the setting is put back."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
