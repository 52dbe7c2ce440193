"""The forms in which the offline API takes prompts; they are vLLM's."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from armllm.errors import RequestError
from armllm.inputs import PicturePrompt, PromptType

__all__ = ["EnginePrompt", "Prompt", "as_batch", "as_prompt"]

EnginePrompt: TypeAlias = str | list[int] | PicturePrompt
Prompt: TypeAlias = PromptType | PicturePrompt


def as_batch(prompts: Any) -> list[EnginePrompt]:
    """A list of texts, lists of token ids and those with pictures, from whatever vLLM's `generate` takes."""
    if isinstance(prompts, (str, dict, PicturePrompt)) or (
        _is_list(prompts) and prompts and isinstance(prompts[0], int)
    ):
        prompts = [prompts]
    if not _is_list(prompts):
        raise RequestError(
            f"prompts must be text, token ids, a dict, or a list of those, not {type(prompts).__name__}"
        )
    return [as_prompt(prompt) for prompt in prompts]


def as_prompt(prompt: Any) -> EnginePrompt:
    """A text or a list of token ids, maybe with pictures, from one prompt of any form.

    RequestError says what is wrong.
    """
    if isinstance(prompt, PicturePrompt):
        return prompt
    if isinstance(prompt, dict):
        set_keys = {key for key, value in prompt.items() if value is not None}
        unknown = sorted(map(str, set_keys - {"prompt", "prompt_token_ids", "multi_modal_data"}))
        if unknown or not set_keys - {"multi_modal_data"}:
            keys = ", ".join(unknown) or "none"
            raise RequestError(
                "a prompt dict has the keys prompt or prompt_token_ids, and maybe multi_modal_data, not"
                f" {keys}"
            )
        pictures = _pictures(prompt.get("multi_modal_data"))
        if pictures:
            text = as_prompt({key: prompt[key] for key in set_keys - {"multi_modal_data"}})
            return PicturePrompt(cast("str | list[int]", text), pictures)
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


def _pictures(data: Any) -> tuple[Any, ...]:
    """Those of vLLM's multi_modal_data: one picture, or a list of them."""
    if data is None:
        return ()
    if not isinstance(data, dict):
        raise RequestError(f'multi_modal_data must be a dict such as {{"image": picture}}, not {data!r:.80}')
    others = [kind for kind, value in data.items() if kind != "image" and value not in (None, [])]
    if others:
        raise RequestError(f"multi_modal_data: {others[0]!r:.80} is not supported, only pictures, as image")
    pictures = data.get("image")
    if pictures is None:
        return ()
    return tuple(pictures) if _is_list(pictures) else (pictures,)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
