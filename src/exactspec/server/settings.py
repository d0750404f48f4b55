"""How the server behaves, whatever it serves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exactspec.server.hosts import is_name
from exactspec.target.chat import check_text

MOST_CHOICES = 1024
"""Of one request, whatever the settings say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`name`: of the model in requests and replies. `host`, `port`: where to listen; port 0 takes a free one.

    `api_keys`: one of them is asked for as ``Authorization: Bearer KEY`` on all paths but ``/health`` and the web
    page; empty: none is. `cors_origins`: origins whose web pages may read replies. `allowed_hosts`: names that the
    server may be called by, besides this machine's own (`exactspec.server.hosts`). `max_body_bytes`: of a request.
    `idle_limit_s`: for a connection on which nothing happens, and for a request's head; it may be twice that.
    `body_limit_s`: for the body to arrive. `time_limit_s`: from then on to the end of the reply. `max_choices`:
    answers of one request (prompts x ``n``). `grace_s`: how long running requests may go on after SIGTERM.
    `log_prompts`: prompts and replies go to the log as well.
    Raises ValueError, naming the field, on a value out of range.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 16_000_000
    idle_limit_s: float = 30.0
    body_limit_s: float = 60.0
    time_limit_s: float = 1800.0
    max_choices: int = 16
    grace_s: float = 30.0
    log_prompts: bool = False

    def __post_init__(self) -> None:
        _require(bool(self.name), "name must not be empty")
        check_text(self.name, "name")  # of a command line, it need not be; and every reply carries it
        _require(0 <= self.port <= 65535, f"port must be in [0, 65535], got {self.port}")
        _require(all(self.api_keys), "api_keys must not be empty texts")
        _require(all(key.isascii() for key in self.api_keys), "api_keys must be ASCII: they travel in a header")
        for name in self.allowed_hosts:
            _require(is_name(name), f"allowed_hosts must be names without scheme or port, got {name!r}")
        _require(self.max_body_bytes >= 1000, f"max_body_bytes must be >= 1000, got {self.max_body_bytes}")
        for field in ("idle_limit_s", "body_limit_s", "time_limit_s"):
            value = getattr(self, field)
            _require(math.isfinite(value) and value > 0, f"{field} must be > 0, got {value}")
        _require(math.isfinite(self.grace_s) and self.grace_s >= 0, f"grace_s must be >= 0, got {self.grace_s}")
        ok = 1 <= self.max_choices <= MOST_CHOICES
        _require(ok, f"max_choices must be in [1, {MOST_CHOICES}], got {self.max_choices}")


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
