"""/tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import Any

from exactspec.detokenize import Detokenizer
from exactspec.server import tools
from exactspec.server.chat import piece
from exactspec.server.errors import ApiError
from exactspec.server.service import Service
from exactspec.server.text_schema import DetokenizeRequest, TokenizeRequest


def tokenize(body: TokenizeRequest, service: Service) -> dict[str, Any]:
    """Ids of a text or of templated messages, as the generating endpoints would see them."""
    service.check_model(body.model)
    tokenizer = service.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give either prompt or messages", param="prompt")
    try:
        if body.messages is not None:
            described = tools.described(body.tools)
            extra = {} if described is None else {"tools": described}
            ids = tokenizer.chat(
                tools.templated(body.messages), add_generation_prompt=body.add_generation_prompt is not False, **extra
            )
        else:
            ids = tokenizer.encode(body.prompt)
            if tokenizer.bos_id is not None and body.add_special_tokens is not False:
                ids = [tokenizer.bos_id, *ids]
    except ValueError as error:
        raise ApiError(str(error), param="prompt" if body.messages is None else "messages") from None
    found = {"count": len(ids), "max_model_len": service.engine.target.max_length, "tokens": ids}
    if body.return_token_strs:
        found["token_strs"] = [piece(service, token).decode("utf-8", "replace") for token in ids]
    return found


def detokenize(body: DetokenizeRequest, service: Service) -> dict[str, Any]:
    """The text of ids; control tokens stand for none."""
    service.check_model(body.model)
    size = service.engine.target.vocab_size
    bad = next((t for t in body.tokens if not 0 <= t < size), None)
    if bad is not None:
        raise ApiError(f"tokens: {bad} is outside the vocabulary (0 to {size - 1})", param="tokens")
    return {"prompt": Detokenizer().push(b"".join(piece(service, token) for token in body.tokens))}
