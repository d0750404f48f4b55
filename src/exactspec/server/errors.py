"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}`` and the status that belongs to it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

from exactspec.target.tokenizer import TooManyTokens

INVALID = "invalid_request_error"
_LONGEST = 2000  # characters of a message
_SOURCES = ("body", "query", "path")
_FORM = re.compile(r"str|int|float|bool|.*[^a-z0-9_].*", re.DOTALL)
"""What pydantic puts between the fields' names for the forms of a union: ``str``, ``list[int]``, ``TextPart``."""


CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client went away; nobody receives it."""


class Gone(Exception):
    """The client went away: nobody waits for an answer."""


class ApiError(Exception):
    """A refused or failed request. `param`: the field of the request that is wrong; `code`: for programs.

    `message` and `param` may quote the request, so what stands for no character in them is escaped, for a reply is
    UTF-8, and what is longer than anybody reads is cut: the request may have megabytes in one name.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _shown(message)
        self.status = status
        self.type = type
        self.param = None if param is None else _shown(param)
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)


def _shown(text: str) -> str:
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")


def invalid(error: ValueError, fields: Sequence[str] = ()) -> ApiError:
    """A 400 of a ValueError of the library; those that begin with a field's name get it as `param`."""
    text = str(error)
    first = text.split(" ", 1)[0].split("[", 1)[0].rstrip(":")
    return ApiError(text, param=first if first in fields else None)


def _fields(error: Mapping[str, Any]) -> list[str]:
    """Names and indices that lead to the place of an error of pydantic."""
    parts = [str(part) for part in error["loc"] if part not in _SOURCES]
    return [part for part in parts if not _FORM.fullmatch(part)]


def of_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first thing that is wrong with a request's body, from pydantic's list."""
    first = errors[0] if errors else {"loc": (), "type": "", "msg": "the request is malformed"}
    if first["type"] == "extra_forbidden":
        name = ".".join(str(part) for part in first["loc"] if part not in _SOURCES)
        return ApiError(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    # Where a value may have several forms, each has its errors: the one that fits furthest is what was meant.
    same = [error for error in errors if _fields(error)[: len(_fields(first))] == _fields(first)]
    first = max(same, key=lambda error: len(_fields(error)), default=first)
    param = ".".join(_fields(first)) or None
    if first["type"] == "json_invalid":
        return ApiError("the request's body is not valid JSON", code="invalid_json")
    if first["type"] == "missing":
        what = f"Missing required parameter: '{param}'" if param else "the request has no JSON body"
        return ApiError(what, param=param, code="missing_required_parameter")
    message = " ".join(str(first["msg"]).removeprefix("Value error, ").split())
    return ApiError(f"{param}: {message}" if param else message, param=param, code="invalid_value")


def too_long(error: TooManyTokens, param: str) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {error.at_most} tokens, but the prompt has {error.told}. "
        "Please shorten it.",
        param=param,
        code="context_length_exceeded",
    )


def queue_full(retry_after_s: float) -> ApiError:
    seconds = max(1, math.ceil(retry_after_s))
    return ApiError(
        f"Too many requests are waiting; try again in {seconds} s",
        status=429,
        type="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(seconds)},
    )


def not_serving(state: str) -> ApiError:
    """503 while the model is being loaded, while the server is shutting down, and after a fault that it does not
    survive."""
    return ApiError(
        f"the server is {state}",
        status=503,
        type="server_error",
        code={"stopping": "shutting_down", "broken": "internal_error"}.get(state, "not_ready"),
        headers={"Retry-After": "5"},
    )


def timed_out(limit_s: float) -> ApiError:
    return ApiError(
        f"no answer within the time limit of {limit_s:g} s",
        status=504,
        type="server_error",
        code="timeout",
    )


def failed() -> ApiError:
    """500: a fault of ours; its details are in the log, not in the reply."""
    return ApiError(
        "the request failed inside the server; its log says more",
        status=500,
        type="server_error",
        code="internal_error",
    )
