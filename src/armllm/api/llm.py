"""The offline API: it takes a batch of prompts and returns all completions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from tqdm import tqdm

from armllm.api.llm_engine import LLMEngine
from armllm.api.missing import WithReasons, only_these
from armllm.engine.beam_search import search
from armllm.engine.generation import read_default_sampling
from armllm.engine.prompts import as_batch
from armllm.engine.reporting import as_classes, as_embedding, as_pooled, as_score
from armllm.engine.spread import config_of
from armllm.errors import RequestError
from armllm.inputs import PicturePrompt
from armllm.outputs import ScoringOutput, ScoringRequestOutput
from armllm.pictures import take_pictures
from armllm.sampling_params import (
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
    check_integer,
    check_pooling_task,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from armllm.chat import Message
    from armllm.engine.arg_utils import EngineArgs
    from armllm.engine.beam_search import BeamSearchOutput
    from armllm.engine.metrics import Metric
    from armllm.engine.prompts import EnginePrompt, Prompt
    from armllm.engine.stats import EngineStats
    from armllm.lora.request import LoRARequest
    from armllm.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
    )
    from armllm.rendering import Renderer
    from armllm.sampling_params import BeamSearchParams
    from armllm.tokenizer import Tokenizer

LoRARequests: TypeAlias = "LoRARequest | Sequence[LoRARequest | None] | None"
Params = TypeVar("Params", SamplingParams, PoolingParams)

TRUNCATION = "truncate_prompt_tokens"
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tokenization_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "lora_request": (None,),
}
"""Arguments of vLLM's methods that change nothing here."""


class LLM(WithReasons):
    """A model that is loaded and ready to generate.

    ``model`` is a checkpoint: a folder, a GGUF file, or a name on the Hugging Face hub. The options are those
    of `EngineConfig`; ``chat_template`` is the default of `chat`. vLLM's other options are accepted where
    they change nothing, and refused with a reason otherwise.
    """

    def __init__(self, model: str, *, chat_template: str | Path | None = None, **options: Any) -> None:
        self.llm_engine = LLMEngine(config_of(model, options))
        self._chat_template = chat_template
        self._renderers: dict[str, Renderer] = {}  # the last one, by its source
        self._request_ids = map(str, itertools.count())

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Load the model that the options name."""
        return cls(**vars(engine_args))

    def get_metrics(self) -> list[Metric]:
        """Return the figures of `stats` as `Gauge` and `Counter`, under the names of vLLM's metrics."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache; see `LLMEngine.reset_prefix_cache`."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def get_tokenizer(self) -> Tokenizer:
        """Return the checkpoint's tokenizer."""
        return self.llm_engine.get_tokenizer()

    def stats(self) -> EngineStats:
        """Return counters of the engine since its start, and how long each part took."""
        return self.llm_engine.stats()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the default of `generate`: the checkpoint's generation_config.json over vLLM's defaults."""
        return read_default_sampling(self.llm_engine.config)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt, and return the outputs in the order of the prompts.

        - ``sampling_params``: one for all prompts, one for each, or None for the checkpoint's defaults.
        - ``use_tqdm``: whether a progress bar goes to stderr, or a function that makes one.
        - ``priority``: one number, or one for each prompt. With scheduling_policy "priority" the lowest comes
          first.
        - ``lora_request``: one adapter for all prompts, or one or None for each.

        All prompts are checked before the first one starts. RequestError (a ValueError) names what is wrong.
        """
        _only_neutral(tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs)
        batch = as_batch(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _one_each(batch, sampling_params, SamplingParams, "sampling_params")
        # one copy for all requests that share theirs
        finals = {
            id(choice): dataclasses.replace(choice, output_kind=RequestOutputKind.FINAL_ONLY)
            for choice in params
        }
        params = [finals[id(choice)] for choice in params]
        return self._run(batch, params, priority, use_tqdm, lora_request)

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
        params = _one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
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
        params = _one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
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
        params = _one_each(batch, pooling_params or PoolingParams(), PoolingParams, "pooling_params")
        params = [dataclasses.replace(one, task="classify") for one in params]
        return [as_classes(output) for output in self._run(batch, params, None, use_tqdm, None)]

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequest | None = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        priority: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the ``beam_width`` likeliest sequences of every prompt.

        ``concurrency_limit``: how many prompts are searched at once; default: all. ``lora_request``: the
        adapter of all prompts. ``priority``: as in `generate`.
        """
        if concurrency_limit is not None and concurrency_limit < 1:
            raise RequestError(f"concurrency_limit must be at least 1, not {concurrency_limit!r}")
        processor = self.llm_engine.processor
        batch = [processor.tokenize(prompt) for prompt in as_batch(prompts)]
        size = concurrency_limit or max(len(batch), 1)
        outputs = [
            output
            for first in range(0, len(batch), size)
            for output in search(
                batch[first : first + size],
                params,
                lambda beams, one_token: self.generate(
                    beams, one_token, use_tqdm=False, lora_request=lora_request, priority=priority
                ),
                end_token_ids=processor.end_token_ids,
                max_model_len=processor.max_model_len,
                use_tqdm=use_tqdm,
            )
        ]
        if processor.tokenizer is not None:
            for output in outputs:
                for sequence in output.sequences:
                    sequence.text = processor.tokenizer.decode(
                        sequence.tokens, skip_special_tokens=params.skip_special_tokens
                    )
        return outputs

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
        tokenizer, batch, each = self.get_tokenizer(), [], []
        for left, right in zip(list(first) * (len(second) // len(first)), second, strict=True):
            if not isinstance(left, str) or not isinstance(right, str):
                raise RequestError("a cross-encoder needs pairs of texts, not token ids")
            token_ids, segment = tokenizer.encode_pair(left, right, truncate_to=most)
            batch.append(token_ids)
            each.append(dataclasses.replace(params, task="score", second_segment=segment))
        return [as_score(output) for output in self._run(batch, each, None, use_tqdm, None)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        **neutral: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several. The checkpoint's chat template makes the prompts.

        - ``messages``: dicts with ``role`` and ``content``: a text, or a list of parts. A part of the type
          ``text`` has a text, one of the type ``image_url`` a data URL, and ``image_pil`` a PIL image.
        - ``chat_template``: another template, or the path of its file.
        - ``chat_template_kwargs``: further variables for the template.
        - ``lora_request``, ``priority``: as in `generate`.
        - ``neutral``: vLLM's other arguments, such as ``mm_processor_kwargs=None``.
        """
        only_these(neutral, {**NEUTRAL, "chat_template_content_format": ("auto", "string")})
        tokenizer = self.get_tokenizer()
        template = self._template(chat_template, tools=bool(tools))
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        taken = [take_pictures(one) for one in cast("Sequence[Sequence[Message]]", conversations)]
        for _, pictures in taken:
            self.llm_engine.processor.picture_limit.check(len(pictures))
        prompts = [
            template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                variables=chat_template_kwargs,
            )
            for conversation, _ in taken
        ]
        # a template writes the begin token itself
        token_ids: list[Any] = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        for index, (_, pictures) in enumerate(taken):
            if pictures:
                token_ids[index] = PicturePrompt(token_ids[index], tuple(pictures))
        outputs = self.generate(
            token_ids, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, priority=priority
        )
        for output, prompt in zip(outputs, prompts, strict=True):
            output.prompt = prompt
        return outputs

    def _template(self, chat_template: str | None, *, tools: bool) -> Renderer:
        """What renders conversations with or without tools."""
        from armllm.chat import find_template, read_template  # noqa: PLC0415 - only chat needs jinja2
        from armllm.rendering import Renderer  # noqa: PLC0415

        tokenizer = self.get_tokenizer()
        source = chat_template or self._chat_template
        source = (
            read_template(source)
            if source
            else find_template(tokenizer.folder, tokenizer.settings, tools=tools)
        )
        if source not in self._renderers:
            longest = self.llm_engine.runner.max_model_len * tokenizer.longest_token
            self._renderers = {source: Renderer(source, tokenizer.special_texts(), longest)}
        return self._renderers[source]

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


def _only_neutral(**options: Any) -> None:
    """Refuse options of vLLM's methods that ask for something."""
    for name, value in options.items():
        if value:
            raise RequestError(f"{name} can only be None here, not {value!r:.80}")


def _one_each(batch: Sequence[Any], params: Any, kind: type[Params], name: str) -> list[Params]:
    """One of ``params`` for all, or one each; RequestError unless they are of this kind."""
    each = list(params) if isinstance(params, (list, tuple)) else [params] * len(batch)
    if len(each) != len(batch):
        raise RequestError(f"{len(batch)} prompts but {len(each)} {name}: give one, or one each")
    for one in each:
        if not isinstance(one, kind):
            raise RequestError(f"{name} must be {kind.__name__}, not {type(one).__name__}")
    return each
