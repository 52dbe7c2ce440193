"""The offline API: it takes a batch of prompts and returns all completions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from armllm.api.batches import NEUTRAL, LoRARequests, one_each
from armllm.api.missing import only_these
from armllm.api.pooled import PooledCalls
from armllm.engine.beam_search import search
from armllm.engine.generation import read_default_sampling
from armllm.engine.prompts import as_batch
from armllm.errors import RequestError
from armllm.inputs import PicturePrompt
from armllm.pictures import take_pictures
from armllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from armllm.chat import Message
    from armllm.engine.arg_utils import EngineArgs
    from armllm.engine.beam_search import BeamSearchOutput
    from armllm.engine.metrics import Metric
    from armllm.engine.prompts import Prompt
    from armllm.engine.stats import EngineStats
    from armllm.lora.request import LoRARequest
    from armllm.outputs import RequestOutput
    from armllm.rendering import Renderer
    from armllm.sampling_params import BeamSearchParams


class LLM(PooledCalls):
    """A model that is loaded and ready to generate.

    ``model`` is a checkpoint: a folder, a GGUF file, or a name on the Hugging Face hub. The options are those
    of `EngineConfig`; ``chat_template`` is the default of `chat`. vLLM's other options are accepted where
    they change nothing, and refused with a reason otherwise.
    """

    def __init__(self, model: str, *, chat_template: str | Path | None = None, **options: Any) -> None:
        super().__init__(model, options)
        self._chat_template = chat_template
        self._renderers: dict[str, Renderer] = {}  # the last one, by its source

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
        params = one_each(batch, sampling_params, SamplingParams, "sampling_params")
        # one copy for all requests that share theirs
        finals = {
            id(choice): dataclasses.replace(choice, output_kind=RequestOutputKind.FINAL_ONLY)
            for choice in params
        }
        params = [finals[id(choice)] for choice in params]
        return self._run(batch, params, priority, use_tqdm, lora_request)

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


def _only_neutral(**options: Any) -> None:
    """Refuse options of vLLM's methods that ask for something."""
    for name, value in options.items():
        if value:
            raise RequestError(f"{name} can only be None here, not {value!r:.80}")
