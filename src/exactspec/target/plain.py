"""Dataclasses to JSON and back: the numbers and texts as they are, the arrays by a number that stands for them.

What is kept on disk of a model is described by its own dataclasses, so a field that is added to one of them is kept
without a change here. JSON gives every float back to the bit (Python writes the shortest text that does).

>>> from dataclasses import dataclass
>>> @dataclass
... class Pair:
...     name: str
...     sizes: tuple[int, ...]
>>> encode(Pair("a", (1, 2)), lambda array: 0)
{'name': 'a', 'sizes': [1, 2]}
>>> decode(Pair, {'name': 'a', 'sizes': [1, 2]}, [].__getitem__)
Pair(name='a', sizes=(1, 2))
"""

from __future__ import annotations

import collections.abc
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

ARRAY = "array"
"""The only key of the object that stands for an array; its value is the array's number."""


def encode(value: Any, put: Callable[[np.ndarray[Any, Any]], int]) -> Any:
    """`value` as JSON. `put` takes an array and returns its number. TypeError on anything without a plain form."""
    if isinstance(value, np.ndarray):
        return {ARRAY: put(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name), put) for field in fields(value) if field.init}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item, put) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: encode(item, put) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no plain form")


def fingerprint(value: Any) -> str:
    """Hash of all numbers, texts and arrays of `value`, in hex."""
    arrays: list[bytes] = []

    def put(array: np.ndarray[Any, Any]) -> int:
        arrays.append(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return len(arrays) - 1

    digest = hashlib.sha256(json.dumps(encode(value, put)).encode())
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


def decode(kind: Any, stored: Any, get: Callable[[int], np.ndarray[Any, Any]]) -> Any:
    """What `encode` was given, of the type `kind`. Raises ValueError, TypeError or KeyError where `stored` is not of
    that form."""
    if kind is Any:
        return stored
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if stored is None:
            return None
        kinds = [one for one in arguments if one is not type(None)]
        if len(kinds) != 1:
            return stored  # numbers and texts need no type
        return decode(kinds[0], stored, get)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = {field.name for field in fields(kind) if field.init}
        if names != stored.keys():
            raise ValueError(f"{getattr(kind, '__name__', kind)} has other fields than were stored")
        return kind(**{name: decode(hints[name], stored[name], get) for name in names})  # type: ignore[operator]
    if isinstance(stored, list):
        inner = arguments[0] if arguments else Any
        items = [decode(inner, item, get) for item in stored]
        return tuple(items) if origin is tuple else items
    if origin in (dict, collections.abc.Mapping):
        return {key: decode(arguments[1], item, get) for key, item in stored.items()}
    if isinstance(stored, Mapping):
        return get(stored[ARRAY])
    return stored
