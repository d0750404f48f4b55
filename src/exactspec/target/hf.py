"""Any decoder of transformers as a target, in float arithmetic.

**Not exact.** Float kernels give a row slightly different logits alone and among others. So drafted and plain answers
are equal only up to near-ties: where the two best logits are closer than rounding, either may win, and the texts part
there. `HFTarget.near_ties` counts the rows where that could have happened. For equal bits, take `ExactTarget`.

The model's own code runs, through transformers' interfaces: masks of four dimensions and positions place the tree
(`hf_attention`), a cache of our own rolls it back (`hf_cache`), layers that cannot be rolled back are refused
(`hf_layers`). Whether a model honours all that is tried when the target is made: a small tree must give the logits of
the model's own plain forward. Segments of one call run one after the other.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AttentionInterface

from exactspec.target.base import FloatArray, IntArray, Segment, SegmentRows, Want
from exactspec.target.cpu import available_cores
from exactspec.target.hf_attention import GROUPED, grouped_attention, masks_for
from exactspec.target.hf_cache import HFCache
from exactspec.target.hf_layers import read_layers
from exactspec.target.segments import Layout, lay_out

TOP_K = 8
TIE_ROUNDINGS = 16
"""A gap is a near-tie below this many roundings (units in the last place) of the row's largest logit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NearTies:
    """`rows`: rows that were asked for a choice (drafted rows that were then rejected included); `count`: those whose
    two best logits are a near-tie; `smallest_gap`: between the two best, over all rows (inf before the first);
    `tolerance`: the relative gap (to the row's largest absolute logit) below which a row counts."""

    rows: int
    count: int
    smallest_gap: float
    tolerance: float


class HFTarget:
    """A `Target` over a model of transformers; the model is the target's from now on. Not exact: see the module.

    `model`: an ``AutoModelForCausalLM`` in float32, bfloat16 or float16, on one device. `context`: longest context in
    tokens (None: what the model states). `threads`: threads of torch, **for the whole process** (None: all cores it may
    use). `weights`: what `identity` says of the weights, a hash.
    Raises ValueError if the model cannot be a target: layers that cannot be rolled back, masks or positions that its
    attention does not follow, no stated context, options out of range.
    """

    top_k = TOP_K

    def __init__(
        self, model: Any, *, context: int | None = None, threads: int | None = None, weights: str = "unnamed"
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.threads = available_cores() if threads is None else threads
        self.layers = read_layers(model.config)
        self.max_length = context_of(model.config, context)
        self.name = str(model.config.get_text_config(decoder=True).model_type)
        self._model = model.eval()
        self._device, self._dtype = model.device, model.dtype
        if not self._dtype.is_floating_point:
            raise ValueError(f"{self.name} is not in float numbers but in {self._dtype}")
        self._eps = float(torch.finfo(self._dtype).eps)
        self._tie_rows = self._tie_count = 0
        self._smallest_gap = float("inf")
        self._lock = threading.Lock()
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_rows = "logits_to_keep" in names
        # The decoder's output is the head's input; the head's own scaling or capping stays the model's business.
        self._hidden: Any = None
        self._hook = (model.get_decoder() or model.base_model).register_forward_hook(self._remember)
        self.vocab_size = 1  # until the first forward has shown the width of a row
        self.attention = self._choose_attention()
        self._tie_rows = self._tie_count = 0
        self._smallest_gap = float("inf")
        self.identity = self._describe(weights)
        _log.info("%s: %s", self.name, self.promise)

    @property
    def exact(self) -> bool:
        """False: equal to plain decoding up to near-ties of floats (`near_ties`), not bit for bit."""
        return False

    @property
    def promise(self) -> str:
        """In one line, what `exact` False means here."""
        return (
            f"{_dtype_name(self._dtype)} through transformers, not bit-exact: drafted and plain answers are equal up "
            "to float near-ties (counted in near_ties)"
        )

    @property
    def near_ties(self) -> NearTies:
        """Near-ties since the target was made."""
        return NearTies(self._tie_rows, self._tie_count, self._smallest_gap, TIE_ROUNDINGS * self._eps)

    def new_cache(self) -> HFCache:
        return HFCache.new(self.layers.windows)

    def close(self) -> None:
        """Let go of the model. The target cannot be used afterwards."""
        with self._lock:
            self._hook.remove()
            self._model = self._hidden = None

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        """See `exactspec.target.base.Target.forward`."""
        with self._lock:
            if self._model is None:
                raise RuntimeError("this target is closed")
            layouts = lay_out(segments, self.vocab_size, self.max_length, cache_type=HFCache)
            if torch.get_num_threads() != self.threads:
                torch.set_num_threads(self.threads)
            with torch.inference_mode():
                return [self._rows(layout) for layout in layouts]

    # -- one segment -----------------------------------------------------------------------------------------------

    def _rows(self, layout: Layout[HFCache]) -> SegmentRows:
        n = len(layout.tokens)
        want = np.array(layout.want)
        asked = np.flatnonzero(want > Want.NONE)
        layout.cache.stage(())
        logits, hidden = self._run(layout, asked)
        layout.cache.stage(layout.parents)
        argmax, index = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
        ids = np.full((n, TOP_K), -1, dtype=np.int64)
        values = np.zeros((n, TOP_K), dtype=np.float32)
        if len(asked):
            argmax[asked] = logits.argmax(axis=1)
            self._count_ties(logits)
            full = want[asked] >= Want.LOGITS
            index[asked[full]] = np.flatnonzero(full)
            best = want[asked] >= Want.TOPK
            if best.any():
                ids[asked[best]], values[asked[best]] = top(logits[best], TOP_K)
        return SegmentRows(argmax, hidden, index, logits, ids, values)

    def _run(self, layout: Layout[HFCache], asked: IntArray) -> tuple[FloatArray, FloatArray]:
        """float32 logits [asked, vocab] and the head's input [n, hidden_size]."""
        mask = masks_for(
            layout,
            self.layers.kinds,
            additive=self.attention != GROUPED,
            dtype=self._dtype,
            device=self._device,
        )
        positions = [layout.cache.length + depth for depth in layout.depths]
        options: dict[str, Any] = {self._cache_name: layout.cache.inner, "use_cache": True}
        if self._takes_rows:
            options["logits_to_keep"] = torch.from_numpy(asked).to(self._device)
        out = self._model(
            input_ids=torch.tensor([layout.tokens], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            attention_mask=mask,
            **options,
        )
        logits = out.logits[0] if self._takes_rows else out.logits[0, torch.from_numpy(asked).to(self._device)]
        hidden, self._hidden = self._hidden[0], None
        found: FloatArray = logits.float().cpu().numpy()
        if np.isnan(found).any():
            raise ValueError(f"{self.name} gives logits that are no numbers (NaN) in {_dtype_name(self._dtype)}")
        return found, hidden.float().cpu().numpy()

    def _remember(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def _count_ties(self, logits: FloatArray) -> None:
        if logits.shape[1] < 2:
            return
        rows = torch.from_numpy(logits)
        two = torch.topk(rows, 2).values
        gap = two[:, 0] - two[:, 1]
        low, high = torch.aminmax(rows, dim=1)
        # Some models write -inf for ids that are none; the size of a row is that of its finite logits.
        size = torch.maximum(torch.where(torch.isinf(low), 0.0, -low), high.abs())
        self._tie_rows += len(logits)
        self._tie_count += int((gap <= TIE_ROUNDINGS * self._eps * size).sum())
        self._smallest_gap = min(self._smallest_gap, float(gap.min()))

    # -- does the model follow the tree? ---------------------------------------------------------------------------

    def _choose_attention(self) -> str:
        """Our attention function if the model's attention goes through the interface and needs nothing more, else the
        one that transformers chose, else the model's own. The first one that passes the trial."""
        chosen = str(self._model.config._attn_implementation)
        plain = self._plain_logits()
        self.vocab_size = min(plain.shape[1], self._model.get_input_embeddings().weight.shape[0])
        AttentionInterface.register(GROUPED, grouped_attention)
        trouble = ""
        for name in dict.fromkeys((GROUPED, chosen, "eager")):
            self.attention = name
            try:
                self._model.set_attn_implementation(name)
                difference = self._difference(plain)
            except Exception as error:  # whatever a model raises on a mask or a cache that it does not know
                trouble = " ".join(str(error).split())[:200] or type(error).__name__
                continue
            if difference <= self._eps**0.5:
                return name
            trouble = f"logits differ from a plain forward by {difference:.1e} of the largest"
        self._hook.remove()
        raise ValueError(f"{self.name} does not follow a tree of drafts: {trouble}; it cannot be a target")

    def _trial(self) -> tuple[list[int], list[int]]:
        """Ids of the trial: three prompt tokens, the path of three rows below them, one token after it; and two rows
        beside the path."""
        size = self._model.get_input_embeddings().weight.shape[0]
        ids = [(7919 * i + 11) % size for i in range(9)]
        return ids[:7], ids[7:]

    def _plain_logits(self) -> FloatArray:
        path, _ = self._trial()
        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor([path], device=self._device), use_cache=False)
        self._hidden = None
        logits: FloatArray = out.logits[0].float().cpu().numpy()
        return logits

    def _difference(self, plain: FloatArray) -> float:
        """Largest difference between the rows of the trial tree and `plain`, relative to the largest logit; one row of
        the four may be worse (a router of experts may tip over a rounding)."""
        path, beside = self._trial()
        cache = self.new_cache()
        self.forward([Segment.chain(cache, path[:3], Want.NONE)])
        cache.keep(range(3))
        # The path comes last: a model that ignores the mask sees the other branch's rows from it.
        tokens = np.array([path[3], *beside, path[4], path[5]])
        tree = Segment(cache, tokens, np.array([-1, 0, 1, 0, 3]), np.full(5, Want.LOGITS))
        (rows,) = self.forward([tree])
        found = [rows.row_logits(row) for row in (0, 3, 4)]
        cache.keep([0, 3, 4])
        (after,) = self.forward([Segment.chain(cache, path[6:], Want.LOGITS)])
        found.append(after.row_logits(0))
        expected = plain[3:]
        width = found[0].shape[0]
        size = float(np.abs(expected[np.isfinite(expected)]).max()) or 1.0
        worst = np.sort([np.nanmax(np.abs(a - b[:width]), initial=0.0) for a, b in zip(found, expected, strict=True)])
        return float(worst[-2]) / size

    def _describe(self, weights: str) -> str:
        from exactspec import __version__

        parts = (
            f"exactspec-{__version__}",
            f"transformers-{transformers.__version__}",
            f"torch-{torch.__version__}",
            self.name,
            f"{self._device.type}-{_dtype_name(self._dtype)}",
            self.attention,
            weights[:16],
        )
        return "/".join(parts)


def top(logits: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """The k best ids of each row and their logits, best first, ties to the lowest id: [rows, k] each (-1 and 0 where a
    row has fewer ids)."""
    rows, width = logits.shape
    ids, values = np.full((rows, k), -1, dtype=np.int64), np.zeros((rows, k), dtype=np.float32)
    least = torch.topk(torch.from_numpy(logits), min(k, width)).values[:, -1].numpy()
    for row in range(rows):
        among = np.flatnonzero(logits[row] >= least[row])  # more than k where the last place is a tie
        best = among[np.argsort(-logits[row, among], kind="stable")][:k]
        ids[row, : len(best)], values[row, : len(best)] = best, logits[row, best]
    return ids, values


def context_of(config: Any, context: int | None) -> int:
    """Longest context in tokens. Raises ValueError if the model states none and none is given.

    Rotary frequencies that change with the length ("longrope") would be those of the deepest drafted row for all rows;
    such a model runs up to the length where they change.
    """
    if context is not None and context < 1:
        raise ValueError(f"context must be at least 1 token, got {context}")
    text = config.get_text_config(decoder=True)
    stated = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    for one in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if one.get("rope_type") == "longrope":
            stated = one.get("original_max_position_embeddings", stated)
    if stated is None and context is None:
        raise ValueError(f"{text.model_type} states no longest context: give one (context=, --context)")
    return min(length for length in (stated, context) if length is not None)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
