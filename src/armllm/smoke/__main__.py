"""``python -m armllm.smoke``: exit status 0 if all texts were right, 1 if not, 2 for wrong usage."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from armllm.smoke.arguments import parse, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNTIME = ("torch", "numpy", "safetensors", "tokenizers", "tqdm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test, report, and return the exit status; without an engine, say what to install."""
    parsed = parse(arguments)
    try:
        command = importlib.import_module("armllm.smoke.command")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in RUNTIME:
            raise
        reason = (
            f"{package} is not installed, and the engine needs it: pip install 'armllm[engine]'"
            " (or 'armllm[runtime]' beside a torch of your own)"
        )
    except ImportError as error:
        reason = str(error)
    else:
        status: int = command.recite(parsed)
        return status
    refuse(reason, as_json=parsed.json)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("armllm.smoke: interrupted", file=sys.stderr)
        sys.exit(130)
