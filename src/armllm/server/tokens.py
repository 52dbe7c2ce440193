"""/tokenize, /detokenize, /v1/models and /version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import armllm
from armllm.server.conversation import render_prompt
from armllm.server.errors import ApiError
from armllm.server.http import answer, json_response
from armllm.server.limits import LONG_TEXT
from armllm.server.prompts import check_vocabulary
from armllm.server.protocol.tokens import (
    Detokenized,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizeRequest,
    Version,
)
from armllm.server.service import Service, token_text

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def tokenize(request: Request) -> Response:
    """Turn a text or a conversation into token ids."""
    return await answer(request, TokenizeRequest, _tokenize)


async def _tokenize(service: Service, body: TokenizeRequest) -> Tokenized:
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        text = body.prompt
    else:
        special = bool(body.add_special_tokens)
        text, pictures = await render_prompt(service, body, body.messages or [], body.tools)
        if pictures:
            raise ApiError("pictures are only taken by /v1/chat/completions", param="messages")
    ids = (await service.prompts.encode(text, add_special_tokens=special)).token_ids

    def spell() -> list[str]:
        return [token_text(service.tokenizer, one) for one in ids]

    slow = len(ids) > LONG_TEXT
    texts = await service.limits.offload.if_slow(slow, spell) if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids, "token_strs": texts}


async def detokenize(request: Request) -> Response:
    """Turn token ids into text, special tokens included."""
    return await answer(request, DetokenizeRequest, _detokenize)


async def _detokenize(service: Service, body: DetokenizeRequest) -> Detokenized:
    def decode() -> str:
        check_vocabulary(body.tokens, service.vocab_size, "tokens")
        return service.tokenizer.decode(body.tokens, skip_special_tokens=False)

    return {"prompt": await service.limits.offload.if_slow(len(body.tokens) > LONG_TEXT, decode)}


async def list_models(request: Request) -> Response:
    """All names that the model is served under."""
    service: Service = request.app.state.service
    names = [*service.options.served_model_names, *service.adapters.loaded]
    found: ModelList = {"object": "list", "data": [_card(service, name) for name in names]}
    return json_response(found)


async def get_model(request: Request) -> Response:
    """One name."""
    service: Service = request.app.state.service
    name = request.path_params["model"]
    try:
        service.of(name)
    except ApiError as error:
        error.param = None
        raise
    return json_response(_card(service, name))


async def version(_request: Request) -> Response:
    """The version of armllm."""
    found: Version = {"version": armllm.__version__}
    return json_response(found)


def _card(service: Service, name: str) -> ModelCard:
    adapter = service.adapters.loaded.get(name)
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "armllm",
        "root": service.facts.model if adapter is None else adapter.lora_path,
        "parent": None if adapter is None else adapter.base_model_name or service.model,
        "max_model_len": service.max_model_len,
    }
