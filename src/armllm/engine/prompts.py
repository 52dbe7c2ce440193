"""The forms in which the offline API takes prompts; they are vLLM's."""

from __future__ import annotations

from typing import Any

from armllm.errors import RequestError
from armllm.inputs import PromptType as Prompt

__all__ = ["Prompt", "as_batch", "as_prompt"]


def as_batch(prompts: Any) -> list[str | list[int]]:
    """A list of texts and lists of token ids, from whatever vLLM's `generate` takes."""
    if isinstance(prompts, (str, dict)) or (_is_list(prompts) and prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    if not _is_list(prompts):
        raise RequestError(
            f"prompts must be text, token ids, a dict, or a list of those, not {type(prompts).__name__}"
        )
    return [as_prompt(prompt) for prompt in prompts]


def as_prompt(prompt: Any) -> str | list[int]:
    """A text or a list of token ids, from one prompt of any form; RequestError says what is wrong."""
    if isinstance(prompt, dict):
        set_keys = {key for key, value in prompt.items() if value is not None}
        unknown = sorted(map(str, set_keys - {"prompt", "prompt_token_ids"}))
        if unknown or not set_keys:
            keys = ", ".join(unknown) or "none"
            raise RequestError(f"a prompt dict has the keys prompt or prompt_token_ids, not {keys}")
        # with both, as vLLM has it, the ids are the prompt
        if "prompt_token_ids" in set_keys:
            prompt = prompt["prompt_token_ids"]
            if not _is_list(prompt):
                raise RequestError("prompt_token_ids must be a list of ints")
        else:
            prompt = prompt.get("prompt")
            if not isinstance(prompt, str):
                raise RequestError("prompt must be text; give token ids as prompt_token_ids")
    if isinstance(prompt, str):
        return prompt
    if _is_list(prompt):
        return list(prompt)
    raise RequestError(f"a prompt must be text, token ids or a dict, not {type(prompt).__name__}")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
