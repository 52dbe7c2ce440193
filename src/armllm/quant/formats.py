"""Which matrices of a checkpoint are quantized, and how they are read: one class per format."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from armllm.checkpoint.folder import Checkpoint, open_checkpoint
from armllm.checkpoint.json_file import read_object
from armllm.errors import RequestError
from armllm.quant.awq import AWQ
from armllm.quant.compressed_tensors import CompressedTensors
from armllm.quant.floats import FloatFormat, is_float
from armllm.quant.gguf_format import GGUFFormat
from armllm.quant.gptq import GPTQ
from armllm.quant.mxfp4 import MXFP4, CompressedMXFP4, is_compressed
from armllm.quant.packed import Packed
from armllm.quant.round_to_nearest import RoundToNearest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.gguf import GGUFCheckpoint
    from armllm.checkpoint.weights import WeightFormat
    from armllm.quant.floats import DecodedTensors

logger = logging.getLogger(__name__)
KEYS = ("quantization_config", "compression_config")
CACHE_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")
"""How the authors rounded keys and values. No weight depends on it, and ours is the user's choice."""
FILES = {
    GPTQ.method: "quantize_config.json",
    AWQ.method: "quant_config.json",
    "modelopt": "hf_quant_config.json",
}


def _compressed(reader: ConfigReader) -> WeightFormat:
    """By the type of weights; groups that are all MXFP4 have products with its 4 bits."""
    if not is_float(reader):
        return CompressedTensors.of(reader)
    checked = FloatFormat.of_compressed(reader)
    return CompressedMXFP4.of(reader) if is_compressed(reader) else checked


READERS: dict[str, Callable[[ConfigReader], WeightFormat]] = {
    AWQ.method: AWQ.of,
    CompressedTensors.method: _compressed,
    "fbgemm_fp8": FloatFormat.of_fp8,
    "fp8": FloatFormat.of_fp8,
    GPTQ.method: GPTQ.of,
    MXFP4.method: MXFP4.of,
    "modelopt": FloatFormat.of_modelopt,
    Packed.method: Packed.of,
}
METHODS = (*READERS, GGUFFormat.method)


def read_format(reader: ConfigReader) -> WeightFormat | None:
    """What config.json says about quantization, None for a floating-point checkpoint.

    CheckpointError names a scheme that is not supported.
    """
    if reader.path.suffix == ".gguf":
        return GGUFFormat()
    section = _section(reader)
    if section is None:
        return None
    method = str(section.get("quant_method", "?"))
    if method not in READERS:
        raise reader.error(
            f"quantization_config ({method}) is not supported, only {', '.join(READERS)}; take the"
            " unquantized checkpoint, which --quantization rounds while loading"
        )
    for name in CACHE_KEYS:
        if section.get(name, None):
            logger.warning("%s: %s is not used: see --kv-cache-dtype", section.path, name)
    return READERS[method](section)


def open_stored(path: Path, stored: WeightFormat | None) -> Checkpoint | GGUFCheckpoint | DecodedTensors:
    """The tensors of a folder or of a GGUF file as models take them."""
    checkpoint = open_checkpoint(path)
    if isinstance(stored, FloatFormat) and isinstance(checkpoint, Checkpoint):
        return stored.decoded(checkpoint)
    return checkpoint


def _section(reader: ConfigReader) -> ConfigReader | None:
    """The object that describes the quantization; some programs write it into files of their own."""
    for key in KEYS:
        if reader.values.get(key):
            return reader.section(key)
    paths = {method: reader.path.parent / name for method, name in FILES.items()}
    method = next((method for method, path in paths.items() if path.is_file()), None)
    if method is None:
        return None
    path = paths[method]
    values = read_object(path)
    inner = values.get("quantization")  # of ModelOpt
    return type(reader)(
        {"quant_method": method, **values, **(inner if isinstance(inner, dict) else {})}, path
    )


def choose_format(asked: str | None, found: WeightFormat | None) -> WeightFormat | None:
    """What weights are read as, given the option ``quantization`` and what the checkpoint is.

    A checkpoint's own method may be named, as vLLM's users do; another one is a RequestError. A packed folder
    is checked, which reads all of it.
    """
    if isinstance(found, Packed):
        found.check()
    if asked is None or (found is not None and asked == found.method):
        return found
    if asked in METHODS:
        raise RequestError(f"quantization {asked!r}: the checkpoint is {found or 'not quantized'}")
    if found is not None and not isinstance(found, GGUFFormat | FloatFormat):
        raise RequestError(
            f"quantization {asked!r}: the checkpoint is {found} already; leave the option away, or take the"
            " unquantized checkpoint"
        )
    return RoundToNearest(asked)
