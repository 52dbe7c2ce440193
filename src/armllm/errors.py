"""What a user of the engine may see go wrong: one class per cause, each with the command's exit status.

A message says what is wrong, where, and what to do, in one or two lines. All are ValueErrors, as vLLM's users
expect.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def first_line(error: BaseException, most: int = 200) -> str:
    """What another library says, in one line of up to ``most`` characters; its kind if it says nothing."""
    return printable(str(error).strip().split("\n", 1)[0][:most]) or type(error).__name__


class ArmllmError(ValueError):
    """Base of the engine's errors; ``status`` is the exit status of the `armllm` command."""

    status = 1


class CheckpointError(ArmllmError):
    """The model folder is incomplete, damaged, or of a kind that the engine does not run.

    Its message may quote the folder's files: what a terminal would obey, such as colors, is shown as text.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class HubUnreachableError(CheckpointError):
    """The Hugging Face hub does not answer, and the model is not in the cache."""

    status = 3


class RequestError(ArmllmError):
    """A prompt, a sampling parameter or an engine option that is not supported."""

    status = 2


class NoChatTemplateError(RequestError):
    """A conversation for a model that has no chat template."""


class BusyError(RequestError):
    """Too much is waiting to take this request as well; later there will be room for it."""


class MemoryLimitError(ArmllmError):
    """The model or its KV cache does not fit into the memory that there is."""

    status = 3


class EngineError(ArmllmError):
    """The engine failed or was shut down while a request was in it."""

    status = 70


class ModelError(ArmllmError):
    """The model computes what no token can be chosen from."""
