"""Settings of a model file by name, each of the type that is asked for; a file may hold anything under any name."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_SHOWN = 60  # characters of a value in a message


def told(value: Any) -> str:
    """A value of a file as a message quotes it: short, however long it is.

    >>> told(list(range(1000))), told("x" * 1000)[-6:]
    ('a list of 1000 entries', 'xx ...')
    """
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) > 8:
        return f"a list of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def one_line(error: BaseException) -> str:
    """What an error says, in one line that can be printed: names and texts of a file may hold line breaks, control
    characters and halves of surrogate pairs, and be very long."""
    words = " ".join(str(error).split())
    words = words if len(words) <= 390 else f"{words[:280]} ... {words[-100:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)


@contextlib.contextmanager
def of_known_form(what: str) -> Iterator[None]:
    """For reading what another package defines and writes: where it is not what that package writes, the error is one
    ValueError, whatever was expected and not found."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{what} is not of a known form ({type(error).__name__}: {error})") from None


class Settings:
    """Values of a file under a prefix: ``Settings(metadata, "llama.").size("block_count")``. `file`: what messages call
    the file.

    Every getter takes a default for what the file does not say (JSON's null counts as that). Raises ValueError, naming
    the setting, where there is none, and where the value is of another type or out of range.
    """

    __slots__ = ("_file", "_prefix", "_values")

    def __init__(self, values: Mapping[str, Any], prefix: str = "", *, file: str = "the header") -> None:
        self._values, self._prefix, self._file = values, prefix, file

    def value(self, key: str, default: Any = None) -> Any:
        """Whatever is there."""
        found = self._values.get(self._prefix + key)
        return default if found is None else found

    def wrong(self, key: str, kind: str) -> ValueError:
        """The error for a value that should be `kind`."""
        return ValueError(f"{self._file}: {self._prefix}{key} should be {kind}, it is {told(self.value(key))}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._known(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._known(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """From 0 to 2**31 - 1."""
        value = self._number(key, default, "an integer in range")
        if not 0 <= value < 2**31 or value != int(value):
            raise self.wrong(key, "an integer in range")
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        """A number, finite. (A header's float32 is the model's own number rounded: 1e-5 is 9.999999747378752e-06.)"""
        value = self._number(key, default, "a number")
        if not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return value

    def texts(self, key: str) -> list[str] | None:
        """A list of texts; None where the file says nothing."""
        value = self.value(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            raise self.wrong(key, "a list of texts")
        return value

    def numbers(self, key: str, *, whole: bool = False) -> npt.NDArray[Any] | None:
        """A list of numbers without NaN; None where the file says nothing."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(entry, (int, float)) for entry in value):
            value = np.array(value)
        array = value if isinstance(value, np.ndarray) else np.zeros(0, dtype=object)
        if array.ndim != 1 or array.dtype.kind not in ("iu" if whole else "iuf"):
            raise self.wrong(key, f"a list of {'whole ' if whole else ''}numbers")
        if np.isnan(array).any():
            raise ValueError(f"{self._file}: {self._prefix}{key} holds what is no number (NaN)")
        return array

    def _known(self, key: str, default: Any) -> Any:
        value = self.value(key, default)
        if value is None:
            raise ValueError(f"{self._file} lacks {self._prefix}{key}")
        return value

    def _number(self, key: str, default: float | None, kind: str) -> float:
        value = self._known(key, default)
        if isinstance(value, np.ndarray):  # one number per layer; the families here have the same in all
            if value.size == 0 or not (value == value[0]).all():
                raise ValueError(f"{self._prefix}{key} differs between layers, which is not supported")
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, kind)
        return float(value) if -(2**1000) < value < 2**1000 else math.inf if value > 0 else -math.inf
