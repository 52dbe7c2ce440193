"""Under which names `armllm serve` and `armllm run-batch` answer, and how answers are read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from armllm.cli.options import frontend_option, lora_option

if TYPE_CHECKING:
    from armllm.server.service import ServerOptions


@dataclasses.dataclass
class Answers:
    """Options of both commands, with vLLM's names."""

    served_model_name: Annotated[
        list[str] | None,
        frontend_option(help="Name in requests; default: MODEL. May be repeated; answers have the first."),
    ] = None
    chat_template: Annotated[
        str | None,
        frontend_option(help="Chat template, as a file or as text; default: the checkpoint's."),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool,
        frontend_option(
            "--enable-auto-tool-choice/--no-enable-auto-tool-choice",
            help="Let the model decide to call tools.",
        ),
    ] = False
    tool_call_parser: Annotated[
        str | None,
        frontend_option(help="Format of the model's tool calls: hermes, llama3_json, mistral or openai."),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        frontend_option(help="Format of the model's reasoning: deepseek_r1, openai_gptoss or qwen3."),
    ] = None
    lora_modules: Annotated[
        list[str] | None,
        lora_option(help="LoRA adapters: name=path, or a JSON object. May be repeated."),
    ] = None

    def options(self, model: str, engine: dict[str, Any], **others: Any) -> ServerOptions:
        """The server's options, or RequestError. ``engine`` gets space for the adapters."""
        from armllm.chat import read_template  # noqa: PLC0415 - --help needs none of it
        from armllm.server.adapters import with_adapters  # noqa: PLC0415
        from armllm.server.service import ServerOptions  # noqa: PLC0415

        template = self.chat_template
        return ServerOptions(
            adapters=with_adapters(engine, self.lora_modules),
            served_model_names=tuple(self.served_model_name or [model]),
            chat_template=None if template is None else read_template(template, "--chat-template"),
            enable_auto_tool_choice=self.enable_auto_tool_choice,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            **others,
        )
