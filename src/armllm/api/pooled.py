"""Embeddings, classes and scores of a batch of prompts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.api.batches import NEUTRAL, Batches, LoRARequests, one_each
from armllm.api.missing import only_these
from armllm.engine.prompts import as_batch
from armllm.engine.reporting import as_classes, as_embedding, as_pooled, as_score
from armllm.errors import RequestError
from armllm.outputs import ScoringOutput, ScoringRequestOutput
from armllm.pooling_params import PoolingParams, check_pooling_task
from armllm.sampling_params import check_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armllm.engine.prompts import EnginePrompt, Prompt
    from armllm.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
    )

TRUNCATION = "truncate_prompt_tokens"


class PooledCalls(Batches):
    """The methods of `LLM` that pool the states of prompts."""

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of every prompt, in order. The rest is as in `generate`.

        ``tokenization_kwargs``: with ``truncate_prompt_tokens`` a longer text loses its end; -1 is as many
        tokens as the model takes.
        """
        batch = self._beginnings(prompts, tokenization_kwargs)
        params = one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
        for one in params:
            if one.task not in (None, "embed"):
                raise RequestError(f"embed has no task {one.task!r}: use encode(pooling_task={one.task!r})")
        return [as_embedding(output) for output in self._run(batch, params, None, use_tqdm, lora_request)]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the pooled states of every prompt, as a tensor.

        ``pooling_task``: None, "embed" or "classify"; "token_embed" for a vector of each token, or
        "token_classify" for the classes of each, or its weight (BGE-M3). ``tokenization_kwargs``: as in
        `embed`.

        RequestError says why a task is refused.
        """
        check_pooling_task(pooling_task)
        batch = self._beginnings(prompts, tokenization_kwargs)
        params = one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
        if pooling_task is not None:
            params = [dataclasses.replace(one, task=pooling_task) for one in params]
        return [as_pooled(output) for output in self._run(batch, params, None, use_tqdm, lora_request)]

    def lexical_weights(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[dict[int, float]]:
        """Return the sparse vector of every prompt, in order: the weight of each token id, above 0.

        A token that is there more than once has its greatest weight. Tokens without a meaning, such as
        ``<unk>``, have none. Raises RequestError for a model without such weights; BGE-M3 has them.
        """
        outputs = self.encode(prompts, pooling_task="token_classify", use_tqdm=use_tqdm)
        model, special = self.llm_engine.processor.pooling.tokens, self.get_tokenizer().special_token_ids()
        if model is None:
            raise RequestError("this model has classes of tokens, and no weights: use encode")
        found = []
        for output in outputs:
            weights: dict[int, float] = {}
            token_ids = output.prompt_token_ids
            inner = token_ids[token_ids[0] == model.config.ends[0] :]
            for token_id, weight in zip(inner, output.outputs.data.tolist(), strict=False):
                if weight > 0 and token_id not in special:
                    weights[token_id] = max(weight, weights.get(token_id, 0.0))
            found.append(weights)
        return found

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        **neutral: Any,
    ) -> list[ClassificationRequestOutput]:
        """Return the probability of every class for every prompt, in order.

        With ``use_activation=False`` in ``pooling_params`` it returns the scores before softmax or sigmoid.
        ``tokenization_kwargs``: as in `embed`. Raises RequestError for a model without a classification head.
        """
        only_these(neutral, NEUTRAL)
        batch = self._beginnings(prompts, tokenization_kwargs)
        params = one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
        params = [dataclasses.replace(one, task="classify") for one in params]
        return [as_classes(output) for output in self._run(batch, params, None, use_tqdm, None)]

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        tokenization_kwargs: dict[str, Any] | None = None,
        **neutral: Any,
    ) -> list[ScoringRequestOutput]:
        """Return the similarity of pairs of texts: the cosine of their embeddings, from -1 to 1.

        A cross-encoder, a model with one class, reads both texts of a pair together. Its score is the
        probability of this class, or what the checkpoint makes of it. Both must be texts then.

        One text in ``data_1`` is compared with each of ``data_2``. Several texts are compared one by one with
        as many in ``data_2``. Raises RequestError if the numbers of texts do not fit.

        ``tokenization_kwargs``: as in `embed`; of a pair for a cross-encoder the longer text loses its end.
        """
        only_these(neutral, {**NEUTRAL, "chat_template": (None,)})
        first, second = as_batch(data_1), as_batch(data_2)
        if len(first) not in {1, len(second)}:
            raise RequestError(
                f"{len(first)} texts can't be compared with {len(second)}: give one, or as many"
            )
        if self.llm_engine.processor.pooling.classes is not None:
            most = self._most_tokens(tokenization_kwargs)
            return self._score_pairs(first, second, pooling_params or PoolingParams(), use_tqdm, most)
        params = dataclasses.replace(pooling_params or PoolingParams(), normalize=True)
        outputs = self.embed(
            [*first, *second], params, use_tqdm=use_tqdm, tokenization_kwargs=tokenization_kwargs
        )
        left = outputs[: len(first)] * (len(second) // len(first) if first else 0)
        return [
            ScoringRequestOutput(
                request_id=b.request_id,
                prompt_token_ids=a.prompt_token_ids + b.prompt_token_ids,
                outputs=ScoringOutput(
                    sum(x * y for x, y in zip(a.outputs.embedding, b.outputs.embedding, strict=True))
                ),
            )
            for a, b in zip(left, outputs[len(first) :], strict=True)
        ]

    def _score_pairs(
        self,
        first: Sequence[EnginePrompt],
        second: Sequence[EnginePrompt],
        params: PoolingParams,
        use_tqdm: bool | Callable[..., Any],
        most: int | None,
    ) -> list[ScoringRequestOutput]:
        pairs: list[Any] = list(zip(list(first) * (len(second) // len(first)), second, strict=True))
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise RequestError("a cross-encoder needs pairs of texts, not token ids")
        batch, each = [], []
        for token_ids, segment in self.get_tokenizer().encode_pairs(pairs, truncate_to=most):
            batch.append(token_ids)
            each.append(dataclasses.replace(params, task="score", second_segment=segment))
        return [as_score(output) for output in self._run(batch, each, None, use_tqdm, None)]

    def _beginnings(
        self, prompts: Prompt | Sequence[Prompt], tokenization_kwargs: dict[str, Any] | None
    ) -> list[EnginePrompt]:
        """What of each prompt is pooled."""
        batch, most = as_batch(prompts), self._most_tokens(tokenization_kwargs)
        if most is None:
            return batch
        return [self.llm_engine.processor.beginning(prompt, most) for prompt in batch]

    def _most_tokens(self, tokenization_kwargs: dict[str, Any] | None) -> int | None:
        """How many tokens of a longer prompt stay, if vLLM's options limit them."""
        options = tokenization_kwargs or {}
        if options.keys() - {TRUNCATION}:
            raise RequestError(f"tokenization_kwargs can only have {TRUNCATION} here, not {options!r:.80}")
        most: int | None = options.get(TRUNCATION)
        if most is None:
            return None
        check_integer(TRUNCATION, most, low=-1)
        return self.llm_engine.processor.max_model_len if most == -1 else most
