"""POST /score, /rerank, /pooling and /classify: from embeddings and classes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from armllm.pooling_params import PoolingParams
from armllm.server.embeddings import embed, embed_input, new_answer, usage
from armllm.server.errors import ApiError
from armllm.server.http import answer
from armllm.server.limits import MANY_TEXTS, away_if
from armllm.server.protocol.base import MAX_PROMPTS
from armllm.server.protocol.scoring import (
    Classified,
    ClassifyRequest,
    PoolingRequest,
    Reranked,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from armllm.server.service import new_id
from armllm.server.vectors import as_json, as_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.protocol.scoring import Poolings
    from armllm.server.protocol.tokens import EmbeddingUsage
    from armllm.server.service import Service


async def create_score(request: Request) -> Response:
    """Compare texts by the cosine of their embeddings, or by a cross-encoder."""
    return await answer(request, ScoreRequest, _score)


async def _score(service: Service, body: ScoreRequest) -> Scores:
    left, right = (_as_list(getattr(body, name)) for name in body.pair())
    for name, texts in zip(body.pair(), (left, right), strict=True):
        if not texts:
            raise ApiError(f"{name} must not be an empty list", param=name, code="invalid_value")
    if len(left) not in {1, len(right)}:
        names = " and ".join(body.pair())
        raise ApiError(
            f"{names} have {len(left)} and {len(right)} texts: give one, or as many", param=body.pair()[0]
        )
    scores, counted = await _scores(service, left, right, body, body.pair())
    return {
        "id": new_id("score-", body.request_id),
        "object": "list",
        "created": int(time.time()),
        "model": service.model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": counted,
    }


async def create_rerank(request: Request) -> Response:
    """Order documents by how near they are to a query, by embeddings or a cross-encoder."""
    return await answer(request, RerankRequest, _rerank)


async def _rerank(service: Service, body: RerankRequest) -> Reranked:
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    scores, counted = await _scores(service, [body.query], texts, body, ("query", "documents"))
    order = sorted(range(len(texts)), key=lambda index: scores[index], reverse=True)
    return {
        "id": new_id("rerank-", body.request_id),
        "model": service.model,
        "usage": counted,
        "results": [
            {
                "index": index,
                "document": None if body.return_documents is False else {"text": texts[index]},
                "relevance_score": scores[index],
            }
            for index in order[: body.top_n or body.top_k or None]
        ],
    }


async def create_pooling(request: Request) -> Response:
    """Pool the states of texts into vectors, or into one of each token; else as /v1/embeddings."""
    return await answer(request, PoolingRequest, _pool)


async def _pool(service: Service, body: PoolingRequest) -> Poolings | Response:
    params = PoolingParams(dimensions=body.dimensions, use_activation=body.use_activation, task=body.task)
    vectors, counted = await embed_input(service, body, params)
    about = new_answer(service, new_id("pool-", body.request_id), counted)
    if body.wants_bytes:
        return await as_response(body, vectors, about)
    data = await as_json(body, vectors)
    return {
        **about,
        "object": "list",
        "data": [{"index": index, "object": "pooling", "data": vector} for index, vector in enumerate(data)],
    }


async def create_classification(request: Request) -> Response:
    """Tell the probability of each class of a model with a classification head."""
    return await answer(request, ClassifyRequest, _classify)


async def _classify(service: Service, body: ClassifyRequest) -> Classified:
    prompts = await service.prompts.read(
        body.input,
        field="input",
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=body.truncate_prompt_tokens,
        room=0,
    )
    params = PoolingParams(task="classify", use_activation=body.use_activation)
    found = await embed(service, prompts, params, body.priority)
    labels = service.facts.labels or ()
    return {
        "id": new_id("classify-", body.request_id),
        "object": "list",
        "created": int(time.time()),
        "model": service.model,
        "data": [
            {
                "index": index,
                "label": labels[values.index(max(values))],
                "probs": values,
                "num_classes": len(values),
            }
            for index, values in enumerate(found)
        ],
        "usage": usage(prompts),
    }


async def _scores(
    service: Service,
    left: list[Any],
    right: list[Any],
    body: ScoreRequest | RerankRequest,
    names: tuple[str, str],
) -> tuple[list[float], EmbeddingUsage]:
    """How near each of ``right`` is to its partner or the only one of ``left``, and the tokens of it all."""
    if len(left) + len(right) > MAX_PROMPTS:
        raise ApiError(f"the request has more than {MAX_PROMPTS} texts", param=names[1])
    times, cut = len(right) // len(left), body.truncate_prompt_tokens
    if service.facts.labels is not None:
        pairs = await service.prompts.pairs(left * times, right, truncate_to=cut)
        found = await embed(service, pairs, PoolingParams(task="score"), body.priority)
        return [score for (score,) in found], usage(pairs)
    groups = [
        await service.prompts.read(texts, field=name, add_special_tokens=True, truncate_to=cut, room=0)
        for name, texts in zip(names, (left, right), strict=True)
    ]
    vectors = await embed(service, [*groups[0], *groups[1]], PoolingParams(), body.priority)

    def compare() -> list[float]:
        both = zip(vectors[: len(left)] * times, vectors[len(left) :], strict=True)
        return [sum(x * y for x, y in zip(one, two, strict=True)) for one, two in both]

    return await away_if(len(vectors) > MANY_TEXTS, compare), usage(*groups)


def _as_list(inputs: Any) -> list[Any]:
    """Texts or lists of token ids, from one or several."""
    one = isinstance(inputs, str) or (inputs and isinstance(inputs[0], int))
    return [inputs] if one else list(inputs)
