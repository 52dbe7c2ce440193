"""POST /score, /rerank and /pooling: what embeddings are good for. POST /classify says why not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from armllm.sampling_params import NO_CLASSES, PoolingParams
from armllm.server.embeddings import embed, embed_input, usage
from armllm.server.errors import ApiError
from armllm.server.http import answer
from armllm.server.protocol.base import MAX_PROMPTS
from armllm.server.protocol.scoring import (
    ClassifyRequest,
    PoolingRequest,
    Reranked,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from armllm.server.service import new_id

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.protocol.scoring import Poolings
    from armllm.server.service import Prompt, Service


async def create_score(request: Request) -> Response:
    """Compare texts by the cosine of their embeddings."""
    return await answer(request, ScoreRequest, _score)


async def _score(service: Service, body: ScoreRequest) -> Scores:
    left, right = [
        await service.prompts(
            getattr(body, name), field=name, add_special_tokens=True, truncate_to=body.truncate_prompt_tokens
        )
        for name in body.pair()
    ]
    if len(left) not in {1, len(right)}:
        names = " and ".join(body.pair())
        raise ApiError(
            f"{names} have {len(left)} and {len(right)} texts: give one, or as many", param=body.pair()[0]
        )
    scores = await _cosines(service, left, right, body.priority)
    return {
        "id": new_id("score-"),
        "object": "list",
        "created": int(time.time()),
        "model": service.model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": usage(left, right),
    }


async def create_rerank(request: Request) -> Response:
    """Order documents by how near their embeddings are to a query's."""
    return await answer(request, RerankRequest, _rerank)


async def _rerank(service: Service, body: RerankRequest) -> Reranked:
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    options: dict[str, Any] = {"add_special_tokens": True, "truncate_to": body.truncate_prompt_tokens}
    query = await service.prompts(body.query, field="query", **options)
    documents = await service.prompts(texts, field="documents", **options)
    scores = await _cosines(service, query, documents, body.priority)
    order = sorted(range(len(texts)), key=lambda index: scores[index], reverse=True)
    return {
        "id": new_id("rerank-"),
        "model": service.model,
        "usage": usage(query, documents),
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
    """Pool the states of texts into vectors; as /v1/embeddings."""
    return await answer(request, PoolingRequest, _pool)


async def _pool(service: Service, body: PoolingRequest) -> Poolings:
    params = PoolingParams(dimensions=body.dimensions, use_activation=body.use_activation, task=body.task)
    vectors, counted = await embed_input(service, body, params)
    return {
        "id": new_id("pool-"),
        "object": "list",
        "created": int(time.time()),
        "model": service.model,
        "data": [
            {"index": index, "object": "pooling", "data": vector} for index, vector in enumerate(vectors)
        ],
        "usage": counted,
    }


async def create_classification(request: Request) -> Response:
    """Refuse: no model of this server has a classification head."""
    return await answer(request, ClassifyRequest, _classify)


async def _classify(_service: Service, _body: ClassifyRequest) -> NoReturn:
    raise ApiError(NO_CLASSES, param="model", code="unsupported_model")


async def _cosines(
    service: Service, left: list[Prompt], right: list[Prompt], priority: int | None
) -> list[float]:
    if len(left) + len(right) > MAX_PROMPTS:
        raise ApiError(f"the request has more than {MAX_PROMPTS} texts")
    vectors = await embed(service, [*left, *right], PoolingParams(), priority)
    firsts = vectors[: len(left)] * (len(right) // len(left))
    pairs = zip(firsts, vectors[len(left) :], strict=True)
    return [sum(x * y for x, y in zip(first, second, strict=True)) for first, second in pairs]
