"""Chat templates, rendered in a process with limits.

A template is a program from the checkpoint, and messages come from clients: one expression of it can ask for
all time and memory. The process is `python -m armllm.rendering`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.chat import ChatTemplate
from armllm.errors import ArmllmError, CheckpointError, RequestError
from armllm.helper_process import HelperProcess, answer_questions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS = 2.0
CPU_SECONDS = 3  # where the template does not look at the clock; and up to one more
MOST_BYTES = 1 << 30
COMPILE_BYTES = 256 << 20  # jinja keeps them, and values of constants; 180 kB of a template take 40 MB


class Renderer:
    """One template; see `ChatTemplate`. CheckpointError if it can't be compiled."""

    def __init__(self, source: str, tokens: dict[str, str], max_characters: int) -> None:
        setup = {"source": source, "tokens": tokens, "max_characters": max_characters}
        self._process = HelperProcess("armllm.rendering", setup)
        self._ask({})

    def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The prompt for a conversation; RequestError when the template refuses it or takes too much."""
        answer = self._ask({"messages": messages, "options": options})
        if "error" in answer:
            raise RequestError(answer["error"])
        text: str = answer["text"]
        return text

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] | None = self._process.ask(question)
        except (TypeError, ValueError) as error:  # of Python's json, before anything is sent
            raise RequestError(f"messages, tools and chat_template_kwargs must be JSON: {error}") from None
        refusal = self._process.setup_answer
        if refusal:
            raise CheckpointError(refusal)
        if answer is None and refusal is None:
            raise CheckpointError("the chat template can't be compiled: it takes too much time or memory")
        if answer is None:
            raise RequestError("the chat template takes too much time or memory on these messages")
        return answer


def _prepare(setup: dict[str, Any]) -> tuple[str, Callable[[dict[str, Any]], dict[str, str]]]:
    """Why the template can't be used, empty if it can, and what renders it."""
    try:
        template = ChatTemplate(
            setup["source"], setup["tokens"], max_seconds=SECONDS, max_characters=setup["max_characters"]
        )
    except CheckpointError as error:
        return str(error), lambda _: {}

    def render(question: dict[str, Any]) -> dict[str, str]:
        if not question:
            return {}
        try:
            return {"text": template.render(question["messages"], **question["options"])}
        except ArmllmError as error:
            return {"error": str(error)}

    return "", render


if __name__ == "__main__":
    answer_questions(_prepare, cpu_seconds=CPU_SECONDS, most_bytes=MOST_BYTES, prepare_bytes=COMPILE_BYTES)
