"""The log: one JSON object a line, with the request's id where it belongs to one."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

FIELDS = "fields"
"""Key of `extra` under which a record's own fields come: ``log.info("request", extra={FIELDS: {...}})``."""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= getattr(record, FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            entry["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(entry, default=str)


def start(stream: TextIO, *, level: str = "INFO") -> logging.Handler:
    """Send the package's and uvicorn's records to `stream`; the handler, to be taken off again with `stop`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in ("exactspec", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    return handler


def stop(handler: logging.Handler) -> None:
    for name in ("exactspec", "uvicorn"):
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.propagate = True
