"""`armllm pack`: a checkpoint's quantized matrices in the order of a CPU's kernels, to be mapped."""

from __future__ import annotations

import dataclasses
import json
from typing import IO, TYPE_CHECKING, Any

import torch

from armisa import Isa
from armisa.errors import IsaError
from armllm import kernels
from armllm.checkpoint.config import ConfigReader
from armllm.checkpoint.folder import SINGLE
from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.checkpoint.gguf_file import open_gguf
from armllm.checkpoint.hub import resolve_model
from armllm.checkpoint.scheme import SCHEMES, check_scheme
from armllm.checkpoint.weights import LoadingWeights
from armllm.convert.calibration import calibrated
from armllm.convert.derived import check_free, derived_folder
from armllm.errors import CheckpointError, RequestError
from armllm.layers.cpu import cpu_computes_bfloat16
from armllm.models import check_model, read_model_config
from armllm.progress import progress
from armllm.quant.digest import digest_file
from armllm.quant.formats import choose_format, open_stored
from armllm.quant.integers import IntegerFormat, pack
from armllm.quant.packed import ALIGNMENT, MANIFEST, VERSION, Packed, Source, StoredMatrix, sealed
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.matrix import PackedMatrix
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import Inventory, Product

NATIVE = "native"
CONFIG = "config.json"
# What a tensor takes in a safetensors header besides its name; it is written last, in room kept for it.
HEADER_ENTRY = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedFolder:
    """What was written. matrices: how many. num_bytes: of all tensors. rounding_errors: see `LoadReport`."""

    folder: Path
    target: str
    matrices: int
    num_bytes: int
    rounding_errors: list[float]


def pack_checkpoint(
    model: str,
    output: Path,
    *,
    target: str = NATIVE,
    quantization: str | None = None,
    calibration: Path | None = None,
) -> PackedFolder:
    """Write ``model``, a folder or GGUF file, to the new folder ``output``, packed for ``target``'s kernels.

    ``target``: a core or product that `armbuild detect --list` names, or "native". ``quantization`` and
    ``calibration`` as the engine takes them, for a floating-point checkpoint. The folder appears when all is
    written. Memory peaks at a matrix and its packed form. RequestError and CheckpointError say what is wrong.
    """
    targets = kernel_targets(target)
    if quantization is not None:
        check_scheme("--quantization", quantization)
    check_free(output)
    path = resolve_model(model)
    architecture, config = read_model_config(path)
    if isinstance(config.quantization, Packed):
        raise RequestError(
            f"{path} is {config.quantization} already; pack {config.quantization.source.model}"
        )
    form = choose_format(quantization, config.quantization)
    source: Tensors = open_stored(path, config.quantization)
    if calibration is not None:
        if quantization is None:
            raise RequestError("--calibrate needs a --quantization to calibrate")
        dtype = torch.bfloat16 if cpu_computes_bfloat16() else torch.float32
        source, report = calibrated(path, quantization, calibration, Tokenizer(path), dtype)
        progress.line(str(report))
    _, inventory = check_model(architecture, config, source, torch.bfloat16, form)
    if not isinstance(form, IntegerFormat) or not inventory.schemes:
        raise RequestError(f"{path} is not quantized: add --quantization, one of {', '.join(SCHEMES)}")
    _check_products(inventory, path)
    with derived_folder(None if path.is_file() else path, output) as work, progress.step("packing"):
        writer = _Writer(work / SINGLE, source, form, targets)
        writer.write(inventory)
        manifest = {
            "target": targets["4"] if target == NATIVE else target,
            "layouts": {bits: kernels.weight_layouts()[name] for bits, name in targets.items()},
            "origin": str(form),
            "source": dataclasses.asdict(_source(path, source)),
            "digests": {SINGLE: digest_file(work / SINGLE)},
            "matrices": {name: dataclasses.asdict(stored) for name, stored in writer.matrices.items()},
        }
        whole = {"version": VERSION, "seal": sealed(manifest), **manifest}
        (work / MANIFEST).write_text(json.dumps(whole) + "\n", encoding="utf-8")
        if path.is_file():
            _write_tokenizer(path, work)
        _write_config(path, work)
    return PackedFolder(
        folder=output,
        target=target,
        matrices=len(writer.matrices),
        num_bytes=writer.end,
        rounding_errors=writer.rounding_errors,
    )


def kernel_targets(name: str) -> dict[str, str]:
    """By bits, as text, the kernel target whose products a CPU runs; RequestError if it is not known."""
    if name == NATIVE:
        return {bits: kernels.weight_target(int(bits)) for bits in ("4", "8")}
    try:
        targets = Isa.from_target(name).kernels()
    except IsaError as error:
        raise RequestError(f"--target: {error}") from None
    return {bits: targets[f"matmul_w{bits}a8_f32"] for bits in ("4", "8")}


def _source(path: Path, tensors: Tensors) -> Source:
    files = {tensors.where(name).name for name in tensors.names()}
    if path.is_file():
        return Source.of(path.parent, sorted(files | {path.name}))
    return Source.of(path, [CONFIG, *sorted(files)])


def _write_config(path: Path, work: Path) -> None:
    values = ConfigReader.open(path).values
    values.pop("compression_config", None)
    values["quantization_config"] = {"quant_method": Packed.method}
    (work / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(path: Path, work: Path) -> None:
    """A GGUF file's tokenizer, if it has one, as separate files."""
    if open_gguf(path).get("tokenizer.ggml.tokens"):
        tokenizer = Tokenizer(path)
        (work / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        settings = json.dumps(tokenizer.settings, indent=2)
        (work / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")


def _check_products(inventory: Inventory, path: Path) -> None:
    """Every quantized matrix must be in a product with a unique name."""
    known = {product.prefix + name for product in inventory.products for name in product.parts}
    other = sorted(inventory.schemes.keys() - known)
    if other:
        raise CheckpointError(f"{path}: {other[0]} holds several matrices in one tensor and can't be packed")


class _Writer:
    """A safetensors file of packed matrices, each at a multiple of 64 bytes, and then of other tensors."""

    def __init__(self, path: Path, source: Tensors, form: IntegerFormat, targets: dict[str, str]) -> None:
        self.path, self.source, self.form, self.targets = path, source, form, targets
        self.matrices: dict[str, StoredMatrix] = {}
        self.rounding_errors: list[float] = []
        self.end = 0
        self._entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._columns: dict[str, Tensor] = {}

    def write(self, inventory: Inventory) -> None:
        """All that a model takes."""
        names = [product.prefix + next(iter(product.parts)) for product in inventory.products]
        # a product may become as many matrices as it has parts, each with columns
        room = sum(2 * len(product.parts) for product in inventory.products) + len(inventory.dense)
        longest = max(map(len, [*names, *inventory.dense]))
        room = -(-(1024 + room * (longest + HEADER_ENTRY)) // ALIGNMENT) * ALIGNMENT
        with self.path.open("wb") as file:
            file.truncate(room)
            file.seek(room)
            for number, product in enumerate(inventory.products, 1):
                progress.update(f"{number} of {len(names)}: {names[number - 1]}")
                self._write_product(file, product)
            for name in sorted(inventory.dense):
                tensor, dtype = self.source.read(name), self.source.describe(name)[0]
                if dtype in BLOCKS:  # an embedding of 4 to 8 bits, say: bfloat16 holds as many
                    tensor, dtype = tensor.bfloat16(), "BF16"
                self._append(file, name, tensor, dtype)
            for name, columns in self._columns.items():
                self._append(file, name, columns, "I64")
            header = json.dumps(self._entries, separators=(",", ":")).encode()
            file.seek(0)
            file.write((room - 8).to_bytes(8, "little"))
            file.write(header.ljust(room - 8))
        self.path.chmod(0o644)

    def _write_product(self, file: IO[bytes], product: Product) -> None:
        weights = LoadingWeights(self.source, torch.bfloat16)
        weights.prefix = product.prefix
        if product.bias is False:
            weights.check_idle_biases(product.parts)
        for names, weight in self.form.load(weights, product.parts, product.in_features, product.scheme):
            packed = pack(weight, self.targets[str(weight.bits)])
            self._note({product.prefix + name: product.parts[name] for name in names}, packed)
            first = product.prefix + names[0]
            padding = torch.zeros(-packed.weight.nbytes % ALIGNMENT, dtype=torch.uint8)
            self._append(file, f"{first}.packed", packed.weight.data, "U8", padding)
            if packed.columns is not None:
                self._columns[f"{first}.columns"] = packed.columns
        self.rounding_errors += weights.rounding_errors

    def _note(self, parts: dict[str, int], packed: PackedMatrix) -> None:
        weight = packed.weight
        self.matrices[next(iter(parts))] = StoredMatrix(
            parts=parts,
            in_features=weight.in_features,
            bits=weight.bits,
            group_size=weight.group_size,
            zero_points=weight.zero_points,
            scales=weight.scales,
            values=weight.values,
            ordered=packed.columns is not None,
            input_scale=packed.input_scale,
            input_zero=packed.input_zero,
            num_bytes=weight.nbytes,
        )

    def _append(
        self, file: IO[bytes], name: str, tensor: Tensor, dtype: str, padding: Tensor | None = None
    ) -> None:
        shape, begin = list(tensor.shape), self.end
        for part in (tensor.contiguous(), padding):
            if part is not None and part.numel():
                file.write(part.view(-1).view(torch.uint8).numpy().data)
                self.end += part.nbytes
        if padding is not None:
            shape[0] += len(padding)
        self._entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, self.end]}
