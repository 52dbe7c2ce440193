"""The offline API: a batch of prompts in, all completions out."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tqdm import tqdm

from armllm.engine.config import EngineConfig
from armllm.engine.llm_engine import LLMEngine
from armllm.errors import RequestError
from armllm.models.generation import read_default_sampling
from armllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armllm.chat import Message
    from armllm.outputs import RequestOutput
    from armllm.tokenizer import Tokenizer

# text, token ids, {"prompt": text} or {"prompt_token_ids": token ids}
Prompt: TypeAlias = "str | Sequence[int] | dict[str, Any]"


class LLM:
    """A checkpoint, ready to generate.

    Takes the options of `EngineConfig`; another one is refused by name, also where vLLM has it.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.llm_engine = LLMEngine(EngineConfig.of(model, options))
        self._request_ids = map(str, itertools.count())

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when given none: generation_config.json of the checkpoint, then defaults."""
        return read_default_sampling(self.llm_engine.config.model_folder)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Complete every prompt; the outputs are in the prompts' order.

        ``sampling_params``: one for all, one each, or None for the checkpoint's own. All prompts are
        checked before the first is started: RequestError (a ValueError) names what is wrong. ``use_tqdm``:
        a progress bar on stderr, or a factory of bars.
        """
        batch = _as_batch(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or self.get_default_sampling_params()] * len(batch)
        else:
            params = list(sampling_params)
            if len(params) != len(batch):
                raise RequestError(
                    f"{len(batch)} prompts but {len(params)} sampling_params: give one, or one each"
                )
        for choice in params:
            if not isinstance(choice, SamplingParams):
                raise RequestError(f"sampling_params must be SamplingParams, not {type(choice).__name__}")
        # one copy for all requests that share theirs
        finals = {
            id(choice): dataclasses.replace(choice, output_kind=RequestOutputKind.FINAL_ONLY)
            for choice in params
        }
        request_ids: list[str] = []
        try:
            for prompt, choice in zip(batch, params, strict=True):
                request_id = next(self._request_ids)
                self.llm_engine.add_request(request_id, prompt, finals[id(choice)])
                request_ids.append(request_id)
            outputs = self._run(len(batch), use_tqdm)
        except BaseException:
            self.llm_engine.abort(request_ids)
            raise
        return [outputs[request_id] for request_id in request_ids]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, put into words by the checkpoint's chat template.

        A message is a dict with ``role`` and ``content``. ``chat_template`` is the source of another
        template; ``chat_template_kwargs`` are further variables for it.
        """
        from armllm.chat import ChatTemplate, find_template  # noqa: PLC0415 - only chat needs jinja2

        tokenizer = self.get_tokenizer()
        source = chat_template or find_template(tokenizer.folder, tokenizer.settings, tools=bool(tools))
        template = ChatTemplate(source, tokenizer.special_texts())
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **chat_template_kwargs or {},
            )
            for conversation in cast("Sequence[Sequence[Message]]", conversations)
        ]
        # a template writes the begin token itself
        token_ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        outputs = self.generate(token_ids, sampling_params, use_tqdm=use_tqdm)
        for output, prompt in zip(outputs, prompts, strict=True):
            output.prompt = prompt
        return outputs

    def _run(self, num_requests: int, use_tqdm: bool | Callable[..., Any]) -> dict[str, RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        with make_bar(
            total=num_requests,
            desc="Processed prompts",
            dynamic_ncols=True,
            disable=not use_tqdm,
            postfix=f"est. speed input: {0:.2f} toks/s, output: {0:.2f} toks/s",
        ) as bar:
            num_input = num_output = 0
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    outputs[output.request_id] = output
                    num_input += len(output.prompt_token_ids)
                    num_output += sum(len(completion.token_ids) for completion in output.outputs)
                    if use_tqdm:
                        elapsed = max(bar.format_dict["elapsed"], 1e-9)
                        bar.postfix = (
                            f"est. speed input: {num_input / elapsed:.2f} toks/s,"
                            f" output: {num_output / elapsed:.2f} toks/s"
                        )
                        bar.update(1)
        return outputs


def _as_batch(prompts: Any) -> list[str | list[int]]:
    """A list of texts and lists of token ids, from whatever vLLM's `generate` takes."""
    if isinstance(prompts, (str, dict)) or (_is_list(prompts) and prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    if not _is_list(prompts):
        raise RequestError(
            f"prompts must be text, token ids, a dict, or a list of those, not {type(prompts).__name__}"
        )
    return [_as_prompt(prompt) for prompt in prompts]


def _as_prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, dict):
        unknown = sorted(map(str, prompt.keys() - {"prompt", "prompt_token_ids"}))
        if unknown or not prompt:
            given = ", ".join(unknown) or "none"
            raise RequestError(f"a prompt dict has the keys prompt or prompt_token_ids, not {given}")
        # with both, as vLLM has it, the ids are the prompt
        if "prompt_token_ids" in prompt:
            prompt = prompt["prompt_token_ids"]
            if not _is_list(prompt):
                raise RequestError("prompt_token_ids must be a list of ints")
        else:
            prompt = prompt["prompt"]
            if not isinstance(prompt, str):
                raise RequestError("prompt must be text; give token ids as prompt_token_ids")
    if isinstance(prompt, str):
        return prompt
    if _is_list(prompt):
        return list(prompt)
    raise RequestError(f"a prompt must be text, token ids or a dict, not {type(prompt).__name__}")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
