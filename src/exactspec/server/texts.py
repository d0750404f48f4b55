"""/tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import Any

from exactspec.detokenize import Detokenizer
from exactspec.prompts import encode_prompt
from exactspec.server.chat import piece, templated_ids
from exactspec.server.errors import ApiError
from exactspec.server.service import Service
from exactspec.server.text_schema import DetokenizeRequest, TokenizeRequest
from exactspec.target.tokenizer import TooManyTokens

CONTEXTS = 4
"""How many times the context's length a text may have that is only to be counted."""


def tokenize(body: TokenizeRequest, service: Service) -> dict[str, Any]:
    """Ids of a text or of templated messages, as the generating endpoints would see them."""
    service.check_model(body.model)
    tokenizer = service.tokenizer
    most = CONTEXTS * service.engine.target.max_length
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give either prompt or messages", param="prompt")
    param = "prompt" if body.messages is None else "messages"
    try:
        if body.messages is not None:
            generation = body.add_generation_prompt is not False
            ids = templated_ids(body.messages, body.tools, tokenizer, at_most=most, add_generation_prompt=generation)
        elif body.add_special_tokens is not False:
            ids = encode_prompt(body.prompt, tokenizer, at_most=most) if body.prompt else []
        else:
            ids = tokenizer.encode(body.prompt, at_most=most)
    except TooManyTokens as error:
        raise ApiError(
            f"texts of up to {most} tokens are taken here, {CONTEXTS} times the context, but this one has "
            f"{error.told}: send it in parts",
            param=param,
            code="context_length_exceeded",
        ) from None
    except ValueError as error:
        raise ApiError(str(error), param=param) from None
    found = {"count": len(ids), "max_model_len": service.engine.target.max_length, "tokens": ids}
    if body.return_token_strs:
        found["token_strs"] = [piece(service, token).decode("utf-8", "replace") for token in ids]
    return found


def detokenize(body: DetokenizeRequest, service: Service) -> dict[str, Any]:
    """The text of ids; control tokens stand for none."""
    service.check_model(body.model)
    size, most = service.engine.target.vocab_size, CONTEXTS * service.engine.target.max_length
    if len(body.tokens) > most:
        raise ApiError(f"tokens: at most {most} are taken here, got {len(body.tokens)}", param="tokens")
    bad = next((t for t in body.tokens if not 0 <= t < size), None)
    if bad is not None:
        raise ApiError(f"tokens: {bad} is outside the vocabulary (0 to {size - 1})", param="tokens")
    return {"prompt": Detokenizer().push(b"".join(piece(service, token) for token in body.tokens))}
