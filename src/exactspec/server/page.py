"""The web page: files of the package, held in memory, each at a path of its own.

Only these paths exist, so that all others keep the API's error replies. Nothing is loaded from elsewhere, and the
page's policy says so to the browser: no script but the page's own files runs, whatever text a model writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request
from fastapi.responses import Response

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content-Security-Policy. With trusted types, text cannot become markup even by mistake."""


def add_page(app: FastAPI) -> None:
    """``/`` and ``/page/NAME`` for each file of the folder `web`."""
    for file in sorted((resources.files("exactspec.server") / "web").iterdir(), key=lambda file: file.name):
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            app.add_api_route(path, _route(file, kind), methods=["GET", "HEAD"], include_in_schema=False)


def _route(file: Traversable, kind: str) -> Callable[[Request], Awaitable[Response]]:
    data = file.read_bytes()
    headers = {
        "Content-Type": kind,
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",  # kept, and asked for again: an update of the package shows at once
        "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
    }

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers)

    return serve
