"""The application: routes and error replies."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from exactspec.server import texts
from exactspec.server.chat import chat_call
from exactspec.server.chat_schema import ChatRequest
from exactspec.server.completions import text_call
from exactspec.server.errors import CLIENT_GONE, ApiError, Gone, failed, of_validation
from exactspec.server.gate import Gate
from exactspec.server.page import add_page
from exactspec.server.respond import respond
from exactspec.server.service import Service
from exactspec.server.text_schema import CompletionRequest, DetokenizeRequest, TokenizeRequest

_log = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """The ASGI application over a service; nothing is started by it."""
    app = FastAPI(title="exactspec", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    _add_errors(app)
    _add_routes(app, service)
    add_page(app)
    app.add_middleware(Gate, service=service)
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await respond(service, partial(chat_call, body, service), request)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await respond(service, partial(text_call, body, service), request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return _model(service)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
        return await service.read(partial(texts.tokenize, body, service), request)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
        return await service.read(partial(texts.detokenize, body, service), request)

    @app.get("/health")
    async def health() -> Response:
        ready = service.state == "ready"
        return JSONResponse({"status": "ok" if ready else service.state}, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _model(service: Service) -> dict[str, Any]:
    engine = service.engine
    return {
        "id": service.settings.name,
        "object": "model",
        "created": service.created,
        "owned_by": "exactspec",
        "max_model_len": engine.target.max_length,
        "exactspec": {
            "identity": engine.identity,
            "exact": engine.target.exact,
            "draft": engine.speculation.draft,
            "max_nodes": engine.speculation.max_nodes,
            "drafts": list(dict.fromkeys((engine.speculation.draft, *engine.drafts))),
        },
    }


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(Gone)
    async def left(request: Request, error: Gone) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return of_validation(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path[:200]}"
        messages = {
            400: "the request's body is not valid JSON, or is nested too deeply",
            404: f"Unknown request URL: {what}",
            405: f"Not allowed: {what}",
        }
        return ApiError(
            messages.get(error.status_code, str(error.detail)),
            status=error.status_code,
            code={400: "invalid_json", 404: "unknown_url"}.get(error.status_code),
            headers=error.headers,
        ).response()

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        _log.error("a request broke", exc_info=error)
        return failed().response()
