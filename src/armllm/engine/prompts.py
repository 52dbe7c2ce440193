"""The forms in which the offline API takes prompts; they are vLLM's."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from armllm.errors import RequestError
from armllm.inputs import PicturePrompt, PromptType, TokenizedText

__all__ = ["EnginePrompt", "Prompt", "as_batch", "as_prompt"]

EnginePrompt: TypeAlias = str | list[int] | TokenizedText | PicturePrompt
Prompt: TypeAlias = PromptType | TokenizedText | PicturePrompt


def as_batch(prompts: Any) -> list[EnginePrompt]:
    """A list of texts, lists of token ids and those with pictures, from whatever vLLM's `generate` takes."""
    if isinstance(prompts, (str, dict, TokenizedText, PicturePrompt)) or (
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
    if isinstance(prompt, (TokenizedText, PicturePrompt)):
        return prompt
    if isinstance(prompt, dict):
        return _from_dict(prompt)
    if isinstance(prompt, str):
        return prompt
    if _is_list(prompt):
        return list(prompt)
    raise RequestError(f"a prompt must be text, token ids or a dict, not {type(prompt).__name__}")


def _from_dict(prompt: dict[Any, Any]) -> EnginePrompt:
    set_keys = {key for key, value in prompt.items() if value is not None}
    unknown = sorted(map(str, set_keys - {"prompt", "prompt_token_ids", "multi_modal_data"}))
    if unknown or not set_keys - {"multi_modal_data"}:
        keys = ", ".join(unknown) or "none"
        raise RequestError(
            f"a prompt dict has the keys prompt or prompt_token_ids, and maybe multi_modal_data, not {keys}"
        )
    written = _written(prompt.get("prompt"), prompt.get("prompt_token_ids"))
    pictures = _pictures(prompt.get("multi_modal_data"))
    return PicturePrompt(written, pictures) if pictures else written


def _written(text: Any, token_ids: Any) -> str | list[int] | TokenizedText:
    """With both, as vLLM has it, the ids are the prompt."""
    if text is not None and not isinstance(text, str):
        raise RequestError("prompt must be text; give token ids as prompt_token_ids")
    if token_ids is None:
        return cast("str", text)
    if not _is_list(token_ids):
        raise RequestError("prompt_token_ids must be a list of ints")
    return list(token_ids) if text is None else TokenizedText(text, list(token_ids))


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
