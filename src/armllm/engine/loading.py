"""Weights into memory, and what that took."""

from __future__ import annotations

import dataclasses
import logging
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.gguf_file import forget_gguf
from armllm.checkpoint.weights import Weights

if TYPE_CHECKING:
    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import WeightFormat
    from armllm.models import Model

logger = logging.getLogger(__name__)
GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What loading took. peak_bytes: the most that the process ever had in memory, mapped pages included.

    rounding_error: of the quantised matrices that had to be rounded anew, the largest ||w' - w|| / ||w||.
    """

    seconds: float
    weight_bytes: int
    peak_bytes: int
    rounding_error: float | None = None


def load_model(
    architecture: type[Model],
    config: ModelConfig,
    checkpoint: Tensors,
    dtype: torch.dtype,
    *,
    max_positions: int,
    quantization: WeightFormat | None = None,
) -> tuple[Model, LoadReport]:
    """Build the model with the checkpoint's weights in ``dtype``, and log what it took in one line."""
    started = time.perf_counter()
    with torch.inference_mode():
        weights = Weights(checkpoint, dtype, quantization=quantization)
        model = architecture(config, weights, max_positions=max_positions)
    forget_gguf()
    report = LoadReport(
        seconds=time.perf_counter() - started,
        weight_bytes=weights.num_bytes,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        rounding_error=max(weights.rounding_errors, default=None),
    )
    logger.info(
        "loaded %s: %.2f GiB of weights in %.1f s, memory peaked at %.2f GiB",
        config.architecture,
        report.weight_bytes / GIB,
        report.seconds,
        report.peak_bytes / GIB,
    )
    if weights.schemes:
        counts = Counter(map(str, weights.schemes.values()))
        logger.info(
            "%s: %s", quantization, ", ".join(f"{n} matrices {scheme}" for scheme, n in counts.items())
        )
    if report.rounding_error is not None:
        logger.warning(
            "%d matrices of %s had to be rounded anew, relative error at most %.2g: see docs/quantization.md",
            len(weights.rounding_errors),
            quantization,
            report.rounding_error,
        )
    return model, report
