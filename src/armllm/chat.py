"""Messages to a prompt, by the checkpoint's own chat template.

Templates are programs that come with a checkpoint; they run in jinja2's sandbox, with the names that
transformers gives them.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from armllm.checkpoint.json_file import check_size, read_object
from armllm.errors import CheckpointError, NoChatTemplateError, RequestError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser

Message = dict[str, Any]


PICTURE = {"type": "image"}  # a part of a message, as `pictures.take_pictures` leaves it
# What a variable of chat_template_kwargs can't be called.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "self"})
LONGEST_TEMPLATE = 1 << 20  # bytes; those of today have up to 20,000
LONGEST_REPEAT = 1 << 20  # characters or items of `x * count`
_DEADLINE: contextvars.ContextVar[float] = contextvars.ContextVar("_DEADLINE", default=math.inf)


class ChatTemplate:
    """One template. ``tokens``: texts of the special tokens, under the names that templates use.

    ``max_seconds`` and ``max_characters`` limit a rendering, for servers of untrusted messages.
    """

    def __init__(
        self,
        source: str,
        tokens: dict[str, str],
        *,
        max_seconds: float = math.inf,
        max_characters: float = math.inf,
    ) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
        )
        self.max_seconds, self.max_characters = max_seconds, max_characters
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self.tokens = tokens
        try:
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template can't be compiled: {first_line(error, 300)}") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation; RequestError when the template refuses it or takes too much.

        ``add_generation_prompt`` ends it where the assistant speaks; ``continue_final_message`` ends it
        within the last message instead, for the model to go on. ``variables`` are further ones of the
        template's own.
        """
        reserved = RESERVED.intersection(variables or ())
        if reserved:
            raise RequestError(f"chat_template_kwargs can't set {min(reserved)}")
        if continue_final_message and add_generation_prompt:
            raise RequestError("continue_final_message needs add_generation_prompt=False")
        conversation = [_plain(message) for message in messages]
        if not conversation:
            raise RequestError("messages: a conversation needs at least one message")
        conversation_values = {
            "messages": conversation,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._generate({**self.tokens, **(variables or {}), **conversation_values})
        except Exception as error:  # noqa: BLE001 - a template is someone else's program
            raise RequestError(f"the chat template fails on these messages: {first_line(error)}") from None
        return _cut(text, conversation[-1].get("content")) if continue_final_message else text

    def _generate(self, variables: dict[str, Any]) -> str:
        """The text of the template, piece by piece, as far as the limits allow."""
        before = _DEADLINE.set(time.monotonic() + self.max_seconds)
        pieces, size = [], 0
        try:
            for piece in self.template.generate(variables):
                size += len(piece)
                if size > self.max_characters:
                    raise jinja2.TemplateError(f"it writes more than {self.max_characters} characters")
                _check_time()
                pieces.append(piece)
        finally:
            _DEADLINE.reset(before)
        return "".join(pieces)


def read_template(template: str | Path, option: str = "chat_template") -> str:
    """The source of a template: a file's content, or ``template`` itself where it looks like one."""
    if isinstance(template, str) and "{" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{option} {template}: {getattr(error, 'strerror', None) or error}") from None


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Looks at the clock wherever a template looks something up, as all do that take long."""

    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        _check_time()
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *arguments: Any, **options: Any) -> Any:
        """``obj(...)``."""
        _check_time()
        return super().call(context, obj, *arguments, **options)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """``left * right`` and ``left ** right``, whose results may be larger than memory."""
        for one, other in ((left, right), (right, left)):
            if (
                isinstance(one, (str, list, tuple))
                and isinstance(other, int)
                and len(one) * other > LONGEST_REPEAT
            ):
                raise jinja2.TemplateError("it repeats something too often")
        if operator == "**" and not (abs(left) <= LONGEST_REPEAT and abs(right) <= 64):
            raise jinja2.TemplateError("it raises a number to too high a power")
        return super().call_binop(context, operator, left, right)


def _check_time() -> None:
    if time.monotonic() > _DEADLINE.get():
        raise jinja2.TemplateError("it takes too long")


def find_template(folder: Path, settings: dict[str, Any], *, tools: bool) -> str:
    """The template's source, from chat_template.jinja, tokenizer_config.json or chat_template.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        check_size(path, LONGEST_TEMPLATE)
        _check_link(path)
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not text: {error}") from None
    found = settings.get("chat_template")
    path = folder / "chat_template.json"
    if found is None and path.is_file():
        try:
            found = read_object(path).get("chat_template")
        except CheckpointError as error:
            raise CheckpointError(f"{path} must be a JSON object with a chat_template: {error}") from None
    if isinstance(found, list):
        entries = [entry for entry in found if isinstance(entry, dict)]
        named = {str(entry.get("name")): entry.get("template") for entry in entries}
        found = (named.get("tool_use") if tools else None) or named.get("default")
    if not isinstance(found, str):
        raise NoChatTemplateError(
            f"{folder} has no chat template: give one (--chat-template; in Python chat_template), or ask for"
            " plain completions"
        )
    return found


def _check_link(path: Path) -> None:
    """Refuse a template that is a link to any file of this machine, which clients could then read.

    A snapshot in the hub's cache has links to the files in `blobs`.
    """
    homes = [home := path.parent.resolve()]
    if home.parent.name == "snapshots":
        homes.append(home.parents[1] / "blobs")
    if not any(map(path.resolve().is_relative_to, homes)):
        raise CheckpointError(
            f"{path} is a link to {path.resolve()}, outside of the checkpoint: copy the file there"
        )


def _plain(message: Message) -> Message:
    """The message with its content as one text, unless pictures are marked in it; other parts are refused."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages: each must be a dict with a role, not {message!r:.80}")
    if message.get("tool_calls"):
        message = message | {"tool_calls": [_with_parsed_arguments(call) for call in message["tool_calls"]]}
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if (
                not isinstance(part, dict)
                or part.get("type") != "text"
                or not isinstance(part.get("text"), str)
            ) and part != PICTURE:
                kind = part.get("type") if isinstance(part, dict) else part
                raise RequestError(f"messages: content of type {kind!r} is not supported, only text")
        if PICTURE in content:  # its template says where they are
            return dict(message)
        return message | {"content": "\n".join(part["text"] for part in content)}
    if content is not None and not isinstance(content, str):
        raise RequestError(f"messages: content must be text or a list of parts, not {type(content).__name__}")
    return dict(message)


def _with_parsed_arguments(call: Any) -> Any:
    """A tool call with its arguments as a dict, as templates expect them; OpenAI's API has JSON text."""
    if not isinstance(call, dict):
        raise RequestError(f"messages: a tool call must be a dict, not {call!r:.80}")
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        raise RequestError(
            f"messages: the arguments of a tool call are not JSON: {function['arguments']!r:.80}"
        ) from None
    return call | {"function": function | {"arguments": arguments}}


def _cut(text: str, final: Any) -> str:
    """The text up to the end of the final message's content, with its trailing space if that was kept."""
    if isinstance(final, list):
        final = final[-1].get("text")
    ending_text = (final or "").lstrip()
    for ending in (ending_text, ending_text.rstrip()):
        at = text.rfind(ending)
        if ending and at >= 0:
            return text[: at + len(ending)]
    raise RequestError("continue_final_message: the template does not show the last message as it is")


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return dt.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Without the HTML escapes of jinja2's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
