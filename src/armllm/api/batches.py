"""Batches of requests, which an engine in this process runs from the first to the last."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from tqdm import tqdm

from armllm.api.llm_engine import LLMEngine
from armllm.api.missing import WithReasons
from armllm.engine.spread import config_of
from armllm.errors import RequestError
from armllm.pooling_params import PoolingParams
from armllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from armllm.engine.prompts import EnginePrompt
    from armllm.lora.request import LoRARequest
    from armllm.outputs import RequestOutput
    from armllm.tokenizer import Tokenizer

LoRARequests: TypeAlias = "LoRARequest | Sequence[LoRARequest | None] | None"
Params = TypeVar("Params", SamplingParams, PoolingParams)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tokenization_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "lora_request": (None,),
}
"""Arguments of vLLM's methods that change nothing here."""


class Batches(WithReasons):
    """An engine, and how a batch gets through it."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.llm_engine = LLMEngine(config_of(model, options))
        self._request_ids = map(str, itertools.count())

    def get_tokenizer(self) -> Tokenizer:
        """Return the checkpoint's tokenizer."""
        return self.llm_engine.get_tokenizer()

    def _run(
        self,
        batch: Sequence[EnginePrompt],
        params: Sequence[SamplingParams | PoolingParams],
        priority: int | Sequence[int] | None,
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequests,
    ) -> list[RequestOutput]:
        """Queue everything, step until all is done, and leave nothing behind if something fails."""
        priority = priority or 0
        priorities = [priority] * len(batch) if isinstance(priority, int) else list(priority)
        if len(priorities) != len(batch):
            raise RequestError(f"{len(batch)} prompts but {len(priorities)} priorities: give one each")
        adapters: list[LoRARequest | None] = (
            list(lora_request)
            if isinstance(lora_request, (list, tuple))
            else [cast("LoRARequest | None", lora_request)] * len(batch)
        )
        if len(adapters) != len(batch):
            raise RequestError(
                f"{len(batch)} prompts but {len(adapters)} lora_requests: give one, or one each"
            )
        batch = self.llm_engine.processor.tokenize_together(batch)
        request_ids: list[str] = []
        try:
            for prompt, choice, rank, adapter in zip(batch, params, priorities, adapters, strict=True):
                request_id = next(self._request_ids)
                self.llm_engine.add_request(request_id, prompt, choice, lora_request=adapter, priority=rank)
                request_ids.append(request_id)
            outputs = self._finish(len(batch), use_tqdm)
        except BaseException:
            self.llm_engine.abort(request_ids)
            raise
        return [outputs[request_id] for request_id in request_ids]

    def _finish(self, num_requests: int, use_tqdm: bool | Callable[..., Any]) -> dict[str, RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        with _bar(num_requests, use_tqdm) as bar:
            num_input = num_output = 0
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step(several=True):
                    if output.error is not None:
                        raise output.error
                    outputs[output.request_id] = output
                    num_input += len(output.prompt_token_ids)
                    num_output += sum(len(completion.token_ids) for completion in output.outputs)
                    if bar is not None:
                        elapsed = max(bar.format_dict["elapsed"], 1e-9)
                        bar.postfix = (
                            f"est. speed input: {num_input / elapsed:.2f} toks/s,"
                            f" output: {num_output / elapsed:.2f} toks/s"
                        )
                        bar.update(1)
        return outputs


def _bar(num_requests: int, use_tqdm: bool | Callable[..., Any]) -> AbstractContextManager[Any]:
    """The progress bar, or None: one that shows nothing would take a fifth of a ms, too."""
    if not use_tqdm:
        return contextlib.nullcontext()
    make_bar = use_tqdm if callable(use_tqdm) else tqdm
    return make_bar(  # type: ignore[no-any-return]
        total=num_requests,
        desc="Processed prompts",
        dynamic_ncols=True,
        postfix=f"est. speed input: {0:.2f} toks/s, output: {0:.2f} toks/s",
    )


def one_each(batch: Sequence[Any], params: Any, kind: type[Params], name: str) -> list[Params]:
    """One of ``params`` for all, or one each; RequestError unless they are of this kind."""
    each = list(params) if isinstance(params, (list, tuple)) else [params] * len(batch)
    if len(each) != len(batch):
        raise RequestError(f"{len(batch)} prompts but {len(each)} {name}: give one, or one each")
    for one in each:
        if not isinstance(one, kind):
            raise RequestError(f"{name} must be {kind.__name__}, not {type(one).__name__}")
    return each
