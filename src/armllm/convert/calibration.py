"""AWQ-style calibration: scales of input channels that make rounded products err less on a given text.

Lin et al. 2023 (arXiv:2306.00978), section 3.2: s = mean|x|^alpha per input channel, alpha by a grid search
on the error of the product's outputs. Inputs are rounded to 8 bits in it, as the kernels do, so that for
weights of 8 bits outliers move from activations to weights (SmoothQuant, Xiao et al. 2022).
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm import kernels
from armllm.checkpoint.folder import Checkpoint
from armllm.checkpoint.weights import LoadingWeights
from armllm.convert.folding import Fold, ScaledCheckpoint, find_folds
from armllm.engine.loading import WeightSource
from armllm.errors import CheckpointError, RequestError
from armllm.layers.attention import AttentionMetadata
from armllm.models import check_model, read_model_config
from armllm.progress import progress
from armllm.quant.round_to_nearest import RoundToNearest
from armllm.quant.rounding import from_float
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import WeightFormat
    from armllm.engine.config import EngineConfig
    from armllm.models import Model

logger = logging.getLogger(__name__)
LENGTH, SEQUENCES = 512, 16  # tokens of a piece of text, and how many pieces are taken
LEAST_TOKENS = 64
INPUT_ROWS = 256  # of each product's inputs, on which errors are measured
OUTPUT_ROWS = 1024  # of the matrices that share their inputs: an estimate needs no more
ALPHAS = tuple(step / 10 for step in range(1, 11))
BLOCK_SIZE = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was found: products scaled, tokens seen, the mean relative error of outputs before and after."""

    products: int
    tokens: int
    error_before: float
    error_after: float
    skipped: dict[str, str]

    def __str__(self) -> str:
        summary = (
            f"calibrated {self.products} products on {self.tokens} tokens:"
            f" error of their outputs {self.error_before:.2%}, now {self.error_after:.2%}"
        )
        reasons = dict.fromkeys(self.skipped.values())
        return "; ".join([summary, *(f"not scaled: {reason}" for reason in reasons)])


class Recorder:
    """Inputs of products by name: mean magnitudes of channels, and some rows."""

    def __init__(self, wanted: Iterable[str], num_pieces: int) -> None:
        self.wanted = set(wanted)
        self.rows_per_piece = -(-INPUT_ROWS // num_pieces)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.rows: dict[str, list[Tensor]] = {}

    def __call__(self, name: str, x: Tensor) -> None:
        """``x[T, K]`` goes into the product that begins with the matrix ``name``."""
        if name not in self.wanted:
            return
        self.sums[name] = self.sums.get(name, 0) + x.float().abs().sum(0)
        self.counts[name] = self.counts.get(name, 0) + x.shape[0]
        step = max(1, x.shape[0] // self.rows_per_piece)
        self.rows.setdefault(name, []).append(x[step // 2 :: step].clone())

    def means(self, name: str) -> Tensor:
        """Mean magnitude per channel, fp32 ``[K]``."""
        return self.sums[name] / self.counts[name]

    def inputs(self, name: str) -> Tensor:
        """Rows, fp32 ``[R, K]``."""
        return torch.cat(self.rows[name]).float()


def read_pieces(path: Path, tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """The tokens of a calibration text in pieces, evenly chosen where it is long.

    RequestError if there is no such text, or too little of it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"calibration text {path} can't be read: {why}") from None
    tokens = tokenizer.encode(text)
    if len(tokens) < LEAST_TOKENS:
        raise RequestError(
            f"calibration text {path} has {len(tokens)} tokens; give at least {LEAST_TOKENS}, better"
            f" {LENGTH * SEQUENCES}, of the kind that the model will see"
        )
    length = min(LENGTH, longest)
    pieces = [tokens[first : first + length] for first in range(0, len(tokens), length)]
    step = max(1, len(pieces) // SEQUENCES)
    return pieces[::step][:SEQUENCES]


def calibrated(
    folder: Path,
    scheme: str,
    text: Path,
    tokenizer: Tokenizer,
    dtype: torch.dtype,
    *,
    overrides: dict[str, Any] | None = None,
) -> tuple[ScaledCheckpoint, Calibration]:
    """The floating-point checkpoint in ``folder`` with scales for ``scheme`` that suit ``text``.

    RequestError and CheckpointError say what is wrong.
    """
    if folder.is_file():
        raise RequestError(f"calibration needs the tensors of a folder, and {folder} is a GGUF file")
    architecture, config = read_model_config(folder, overrides)
    if config.quantization is not None:
        raise RequestError(
            f"{folder} is quantized already: {config.quantization}; there is nothing to calibrate"
        )
    pieces = read_pieces(text, tokenizer, config.max_model_len)
    checkpoint = Checkpoint(folder)
    _, inventory = check_model(architecture, config, checkpoint, dtype, RoundToNearest(scheme))
    with progress.step(f"calibrating on {sum(map(len, pieces))} tokens"):
        return calibrate(architecture, config, checkpoint, inventory.schemes, pieces, dtype=dtype)


class CalibratedSource(WeightSource):
    """The engine's source with tensors scaled to suit the text of its option ``calibration``."""

    def tensors(self) -> ScaledCheckpoint:
        """The scaled tensors. The model runs over the text here, after everything else was checked."""
        config = self.config
        text, tokenizer = Path(str(config.calibration)), Tokenizer(config.tokenizer_folder)
        scheme, dtype = str(config.quantization), config.torch_dtype
        scaled, _ = calibrated(
            config.model_folder, scheme, text, tokenizer, dtype, overrides=config.hf_overrides
        )
        return scaled


def source_of(config: EngineConfig, stored: WeightFormat | None) -> WeightSource:
    """The source that the engine's options ask for; ``stored``: how the checkpoint has its matrices."""
    return (WeightSource if config.calibration is None else CalibratedSource)(config, stored)


@torch.inference_mode()
def calibrate(
    architecture: type[Model],
    config: ModelConfig,
    checkpoint: Tensors,
    schemes: Mapping[str, Scheme],
    pieces: list[list[int]],
    *,
    dtype: torch.dtype,
) -> tuple[ScaledCheckpoint, Calibration]:
    """The checkpoint with scales folded into it that suit ``schemes`` (by full names of matrices).

    The floating-point model sees the ``pieces`` in ``dtype`` first.
    """
    folds = find_folds(checkpoint.names(), config)
    recorder = Recorder((fold.seen for fold in folds.found), len(pieces))
    longest = max(map(len, pieces))
    model = architecture(config, LoadingWeights(checkpoint, dtype, watch=recorder), max_positions=longest)
    _show(model, pieces, longest, dtype)
    del model
    scaled = ScaledCheckpoint(checkpoint)
    before, after = [], []
    for fold in folds.found:
        parts = {name: schemes[name] for name in fold.matrices if name in schemes}
        if not parts or fold.seen not in recorder.sums:
            continue
        exact_powers = len(parts) < len(fold.matrices)  # the others stay floating-point: nothing to round
        found, plain, best = _search(fold, parts, checkpoint, recorder, exact_powers=exact_powers)
        before.append(plain)
        after.append(best)
        if found is not None:
            scaled.fold(fold, found)
    report = Calibration(
        products=len(before),
        tokens=sum(map(len, pieces)),
        error_before=sum(before) / max(1, len(before)),
        error_after=sum(after) / max(1, len(after)),
        skipped=folds.skipped,
    )
    logger.info("%s", report)
    return scaled, report


def _search(
    fold: Fold, parts: Mapping[str, Scheme], checkpoint: Tensors, recorder: Recorder, *, exact_powers: bool
) -> tuple[Tensor | None, float, float]:
    """The best scales, None for none; the relative error of outputs without any, and with them."""
    x, means = recorder.inputs(fold.seen), recorder.means(fold.seen)
    each = max(1, OUTPUT_ROWS // len(parts))
    matrices = []
    for name, scheme in parts.items():
        stored = checkpoint.read(f"{name}.weight")
        step = max(1, stored.shape[0] // each)
        matrices.append((stored[::step].float(), scheme))
        if not matrices[-1][0].isfinite().all():
            raise CheckpointError(f"{checkpoint.folder}: tensor {name}.weight has a NaN or an infinity")
    if not means.isfinite().all():
        raise CheckpointError(
            f"{checkpoint.folder}: inputs of {fold.seen} are NaN or infinite: a tensor before it is damaged"
        )
    exact = [x @ matrix.T for matrix, _ in matrices]
    size = sum(float(one.square().sum()) for one in exact) or 1.0

    def error(scales: Tensor | None) -> float:
        rounded = _rounded(x if scales is None else x / scales)
        total = 0.0
        for (matrix, scheme), wanted in zip(matrices, exact, strict=True):
            weight = from_float(matrix if scales is None else matrix * scales, scheme).dequantize()
            total += float((rounded @ weight.T - wanted).square().sum())
        return float((total / size) ** 0.5)

    plain = least = error(None)
    best = None
    means = fold.shared(means.clamp_min(1e-4 * float(means.amax())).clamp_min(1e-20))
    for alpha in ALPHAS:
        scales = means**alpha
        scales /= (scales.amax() * scales.amin()).sqrt()
        if exact_powers:
            scales = scales.log2().round().exp2()
        found = error(scales)
        if found < least:
            best, least = scales, found
    return best, plain, least


def _rounded(x: Tensor) -> Tensor:
    """Rows as the kernels see them: 8 bits, one scale per row."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (x / scale).round() * scale


def _show(model: Model, pieces: list[list[int]], longest: int, dtype: torch.dtype) -> None:
    """Let the model see each piece from its start."""
    num_blocks = -(-longest // BLOCK_SIZE)
    for layer in model.attention_layers:
        layout = layer.cache_layout(dtype, BLOCK_SIZE)
        layer.bind(layout, kernels.allocate_kv_cache(layout, num_blocks))
    for recurrent in model.recurrent_layers:
        recurrent.bind_states(1, dtype)
    for piece in pieces:
        count = len(piece)
        for recurrent in model.recurrent_layers:
            recurrent.copy_state(None, 0)
        positions = torch.arange(count)
        metadata = AttentionMetadata(
            slot_mapping=positions,
            block_tables=torch.arange(num_blocks, dtype=torch.int32).unsqueeze(0),
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            state_slots=torch.zeros(1, dtype=torch.int64),
        )
        places = model.places(positions, torch.full((count,), count))
        model(torch.tensor(piece), places, metadata, rows=None)
