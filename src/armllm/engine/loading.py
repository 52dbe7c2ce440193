"""Weights: where they come from, into memory, and what that took."""

from __future__ import annotations

import functools
import logging
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.dummy import DummyTensors
from armllm.checkpoint.gguf_file import forget_gguf
from armllm.checkpoint.weights import LoadingWeights
from armllm.engine.stats import LoadReport
from armllm.progress import progress
from armllm.quant.formats import choose_format, open_stored

if TYPE_CHECKING:
    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.folder import Checkpoint
    from armllm.checkpoint.gguf import GGUFCheckpoint
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import Inventory, WeightFormat
    from armllm.engine.config import EngineConfig
    from armllm.models import Model
    from armllm.quant.floats import DecodedTensors

logger = logging.getLogger(__name__)
GIB = 1 << 30


class WeightSource:
    """Where a model's weights come from, and in which form, by the engine's options.

    stored: how the checkpoint has its matrices. Nothing is opened before it is needed.
    """

    def __init__(self, config: EngineConfig, stored: WeightFormat | None) -> None:
        self.config = config
        self._stored = stored

    @functools.cached_property
    def quantization(self) -> WeightFormat | None:
        """How matrices are read; RequestError if the options want what the checkpoint is not."""
        return choose_format(self.config.quantization, self._stored)

    @functools.cached_property
    def checkpoint(self) -> Checkpoint | GGUFCheckpoint | DecodedTensors | DummyTensors:
        """The files, or what stands for them."""
        folder = self.config.model_folder
        if self.config.load_format == "dummy":
            return DummyTensors(folder, quantized=self._stored is not None)
        return open_stored(folder, self._stored)

    def tensors(self) -> Tensors:
        """What is loaded, once the whole checkpoint has been checked."""
        return self.checkpoint


def load_model(
    architecture: type[Model],
    config: ModelConfig,
    source: WeightSource,
    inventory: Inventory,
    dtype: torch.dtype,
    *,
    max_positions: int,
) -> tuple[Model, LoadReport]:
    """Build the model with the source's weights in ``dtype``, and log what it took in one line.

    ``inventory`` is what `check_model` found with the same source.
    """
    tensors = source.tensors()
    started = time.perf_counter()
    with torch.inference_mode(), progress.step(f"loading weights of {config.num_layers} layers"):
        weights = LoadingWeights(tensors, dtype, source.quantization, inventory=inventory)
        model = architecture(config, weights, max_positions=max_positions)
    forget_gguf()
    if source.config.load_format == "dummy":
        logger.warning("load_format dummy: the weights are random, and so are all answers")
    report = LoadReport(
        seconds=time.perf_counter() - started,
        weight_bytes=inventory.num_bytes,
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
    if inventory.schemes:
        counts = Counter(map(str, inventory.schemes.values()))
        logger.info(
            "%s: %s", source.quantization, ", ".join(f"{n} matrices {scheme}" for scheme, n in counts.items())
        )
    if report.rounding_error is not None:
        logger.warning(
            "%d matrices of %s had to be rounded again, relative error up to %.2g: see docs/quantization.md",
            len(weights.rounding_errors),
            source.quantization,
            report.rounding_error,
        )
    return model, report
