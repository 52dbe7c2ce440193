"""Small helpers that programs for vLLM import from its modules."""

from __future__ import annotations

import enum
import gc
import logging
import resource
import uuid


class UsageContext(str, enum.Enum):
    """Who loads an engine; it decides how large steps are by default."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def init_logger(name: str) -> logging.Logger:
    """Return the logger of this name."""
    return logging.getLogger(name)


def random_uuid() -> str:
    """Return an id for a request."""
    return uuid.uuid4().hex


def set_ulimit(target_soft_limit: int = 65535) -> None:
    """Allow this process as many open files as that, or as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = target_soft_limit if hard == resource.RLIM_INFINITY else min(target_soft_limit, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:  # noqa: ARG001 - there is none
    """Collect what a deleted `LLM` leaves."""
    gc.collect()
