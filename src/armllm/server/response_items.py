"""The items of a response - messages, thoughts, calls - and the events of a stream of them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

from armllm.server.events import CallArguments, CallStart, Event, Reasoning, Text

if TYPE_CHECKING:
    from armllm.server.protocol.responses import OutputCall, OutputItem, OutputText

StreamEvent: TypeAlias = tuple[str, dict[str, Any]]
"""The type of an event, and its fields."""


class Items:
    """What a model's answer consists of, in order. Each begins where the one before ends.

    one_call: calls after the first are left out; with_reasoning: else thoughts are.
    """

    def __init__(self, *, one_call: bool, with_reasoning: bool) -> None:
        self.all: list[OutputItem | OutputCall] = []
        self._one_call = one_call
        self._with_reasoning = with_reasoning

    def add(self, event: Event) -> list[StreamEvent]:
        """Put a piece of the answer where it belongs."""
        if isinstance(event, CallStart | CallArguments):
            if event.index > 0 and self._one_call:
                return []
            return self._begin(_new_call(event.name)) if isinstance(event, CallStart) else self._extend(event)
        if isinstance(event, Reasoning) and not self._with_reasoning:
            return []
        kind = "message" if isinstance(event, Text) else "reasoning"
        happened: list[StreamEvent] = []
        if not self.all or self.all[-1]["type"] != kind:
            happened += self._begin(_new_text(kind))
            part: OutputText = {**self._part(), "text": ""}
            happened.append(
                ("response.content_part.added", {**self._place(), "content_index": 0, "part": part})
            )
        part = self._part()
        part["text"] += event.text
        fields = {**self._place(), "content_index": 0, "delta": event.text}
        return [*happened, (f"response.{part['type']}.delta", fields)]

    def close(self, *, cut: bool) -> list[StreamEvent]:
        """Finish the last one, which is incomplete where the answer was cut off."""
        if not self.all:
            return []
        item = self.all[-1]
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "function_call":
            fields = {**self._place(), "name": item["name"], "arguments": item["arguments"]}
            happened: list[StreamEvent] = [("response.function_call_arguments.done", fields)]
        else:
            part, place = item["content"][0], {**self._place(), "content_index": 0}
            happened = [
                (f"response.{part['type']}.done", {**place, "text": part["text"]}),
                ("response.content_part.done", {**place, "part": part}),
            ]
        return [*happened, ("response.output_item.done", {"output_index": len(self.all) - 1, "item": item})]

    def _begin(self, item: OutputItem | OutputCall) -> list[StreamEvent]:
        happened = self.close(cut=False)
        self.all.append(item)
        opened = dict(item) if item["type"] == "function_call" else {**item, "content": []}
        fields = {"output_index": len(self.all) - 1, "item": opened}
        return [*happened, ("response.output_item.added", fields)]

    def _extend(self, event: CallArguments) -> list[StreamEvent]:
        call = self.all[-1]
        if call["type"] != "function_call":
            raise TypeError("arguments without a call")
        call["arguments"] += event.text
        return [("response.function_call_arguments.delta", {**self._place(), "delta": event.text})]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.all[-1]["id"], "output_index": len(self.all) - 1}

    def _part(self) -> OutputText:
        item = self.all[-1]
        if item["type"] == "function_call":
            raise TypeError("a call has no text")
        return item["content"][0]


def _new_text(kind: str) -> OutputItem:
    if kind == "message":
        return {
            "type": "message",
            "id": f"msg_{uuid.uuid4().hex}",
            "status": "in_progress",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": []}],
        }
    return {
        "type": "reasoning",
        "id": f"rs_{uuid.uuid4().hex}",
        "status": "in_progress",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": ""}],
    }


def _new_call(name: str) -> OutputCall:
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": f"call_{uuid.uuid4().hex}",
        "name": name,
        "arguments": "",
        "status": "in_progress",
    }
