"""What the processes of a server log, and how."""

from __future__ import annotations

import logging
from typing import Any


class NoProbes(logging.Filter):
    """Leaves out what monitors and the page ask every second."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line stays; its arguments are client, method, path, HTTP version and status."""
        arguments = record.args
        return not (
            isinstance(arguments, tuple)
            and len(arguments) == 5
            and arguments[2] in ("/health", "/metrics")
            and arguments[4] == 200
        )


def log_config(level: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything goes to stderr, one line each. ``level`` is uvicorn's."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "filters": {"probes": {"()": NoProbes}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "plain",
                "filters": ["probes"],
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {
            "uvicorn": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            "armllm": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        },
    }
