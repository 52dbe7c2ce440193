"""The files of sentence-transformers: how a checkpoint's states become its embeddings."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import layer_norm, linear, normalize

from armllm.checkpoint.config import MAX_WIDTH, Classes, ConfigReader
from armllm.checkpoint.json_file import read_document, read_object
from armllm.checkpoint.safetensors_file import SafetensorsFile
from armllm.checkpoint.weights import FLOATING
from armllm.errors import CheckpointError
from armllm.models.encoder import read_activation, text_length
from armllm.tokenizer import sentence_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.config import ModelConfig

logger = logging.getLogger(__name__)
MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
POOLING = "1_Pooling"
MOST_MODULES = 32
KINDS = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize")
TRAINING = "Dropout"  # has no effect later
SCORES = "scores"  # what the last module of a cross-encoder makes
PACKAGE = "sentence_transformers."
PATH = re.compile(r"(?:[\w.-][\w. /-]{0,99})?")  # below the checkpoint's folder
# keys of pooling's config.json -> names here, in the order in which several are put side by side
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
# the newer file names them so, under one key, in an order of its own
NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
# torch's classes, as they are without arguments: sentence-transformers stores the name alone
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch.nn, name)()
    for name in (
        *("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU"),
        *("LeakyReLU", "ELU", "SELU", "Softplus", "Mish", "Softsign"),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection:
    """activation(x W^T + b) in fp32; ``weight[out_features, in_features]``.

    added: what is made of x and added to that. normalized: x is brought to length 1 before. makes_scores: the
    result is the scores of classes, not a vector.
    """

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    added: Callable[[Tensor], Tensor] | None = None
    normalized: bool = False
    makes_scores: bool = False

    @property
    def out_features(self) -> int:
        """The length of its result."""
        return self.weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        if self.normalized:
            x = normalize(x, dim=-1)
        projected = self.activation(linear(x, self.weight, self.bias))
        return projected if self.added is None else projected + self.added(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorNorm:
    """Layer normalization of a vector in fp32; normalized: it is brought to length 1 before."""

    weight: Tensor
    bias: Tensor
    normalized: bool = False

    @property
    def out_features(self) -> int:
        """The length of its result."""
        return len(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self.normalized:
            x = normalize(x, dim=-1)
        return layer_norm(x, self.weight.shape, self.weight, self.bias)


def read_modules(
    folder: Path, hidden_size: int
) -> tuple[tuple[str, ...], tuple[Projection | VectorNorm, ...]]:
    """How to pool, empty if nothing says so, and what follows; CheckpointError names what is not known."""
    modes: tuple[str, ...] = ()
    projections: list[Projection | VectorNorm] = []
    normalized = False  # at the end they are anyway, unless a request says otherwise
    if folder.is_file():
        return modes, ()
    for kind, path in _known(folder):
        if num_scores(projections) is not None:
            raise CheckpointError(f"{folder / MODULES}: module {kind!r} behind scores is not supported")
        if kind == "Pooling":
            modes = read_modes(path / "config.json")
        elif kind == "Normalize":
            refuse_other_vectors(ConfigReader(_settings(path), path / "config.json"))
            normalized = True
        elif kind in ("Dense", "LayerNorm"):
            if not modes:
                raise CheckpointError(
                    f"{folder / MODULES}: module {kind!r} without Pooling before it is not supported: it"
                    " makes a vector of each token (ColBERT)"
                )
            width = projections[-1].out_features if projections else len(modes) * hidden_size
            found = read_projection(path, width) if kind == "Dense" else read_norm(path, width)
            projections.append(dataclasses.replace(found, normalized=normalized))
            normalized = False
    return modes, tuple(projections)


def project(projections: Sequence[Projection | VectorNorm], vectors: Tensor) -> Tensor:
    """``vectors[..., width]`` through all of them."""
    for projection in projections:
        vectors = projection(vectors)
    return vectors


def num_scores(projections: Sequence[Projection | VectorNorm]) -> int | None:
    """The classes whose scores the last module makes, as of a cross-encoder; None if it makes a vector."""
    last = projections[-1] if projections else None
    return last.out_features if isinstance(last, Projection) and last.makes_scores else None


def read_score_classes(folder: Path, count: int) -> Classes:
    """Of scores that modules make: without names, by the activation of sentence-transformers' file."""
    path = folder / SETTINGS
    reader = ConfigReader(read_object(path) if path.is_file() else {}, path)
    named = reader.get("activation_fn", None) or ("Sigmoid" if count == 1 else "Identity")
    labels = tuple(f"LABEL_{index}" for index in range(count))
    return Classes(labels=labels, pooling="modules", activation=read_activation(reader, named))


def _known(folder: Path) -> list[tuple[str, Path]]:
    """The modules that have an effect, all of kinds that are supported."""
    path = folder / MODULES
    listed = [(kind, inner) for kind, inner in _listed(folder) if kind != TRAINING]
    unknown = next((kind for kind, _ in listed if kind not in KINDS), None)
    if unknown is not None:
        way = ": hf_overrides with classifier_from_token do the same" if unknown == "LogitScore" else ""
        raise CheckpointError(
            f"{path}: module {unknown!r:.80} is not supported, only {', '.join(KINDS)}{way}"
        )
    if any(kind == "Transformer" and inner != folder for kind, inner in listed):
        raise CheckpointError(f"{path}: a Transformer in another folder is not supported")
    return listed


def check_texts(folder: Path, *, has_classes: bool) -> None:
    """Refuse another result of the transformer than states of tokens, and log what is done to each text.

    Version 6 of sentence-transformers writes each text as a message of the chat template, if there is one.
    """
    path, values = sentence_settings(folder)
    if not values:
        return
    reader = ConfigReader(values, path)
    if not has_classes:
        reader.only("module_output_name", "token_embeddings")
    text_length(reader)  # for what it refuses
    modalities = reader.get("modality_config", {})
    if isinstance(modalities, dict) and "message" in modalities:
        logger.warning(
            "%s: sentence-transformers puts each text into the chat template, and armllm does not; for the"
            " same results send texts that are in it",
            path,
        )


def warn_of_prompt(folder: Path) -> None:
    """Log what sentence-transformers puts before each text by itself, and armllm does not."""
    path = folder / SETTINGS
    if not path.is_file():
        return
    reader = ConfigReader(read_object(path), path)
    prompts, name = reader.get("prompts", None), reader.get("default_prompt_name", None)
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if isinstance(prompt, str) and prompt:
        logger.warning(
            "%s: sentence-transformers puts %.200r before each text by default; for the same embeddings"
            " send it with each text",
            path,
            prompt,
        )


def default_dimensions(folder: Path) -> int | None:
    """How many numbers of an embedding sentence-transformers keeps by itself, if it was told to."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    return ConfigReader(read_object(path), path).optional_integer("truncate_dim", None)


def embedding_size(
    config: ModelConfig, modes: tuple[str, ...], projections: tuple[Projection | VectorNorm, ...]
) -> int:
    """Numbers of an embedding that is pooled and projected so."""
    return projections[-1].out_features if projections else max(1, len(modes)) * config.final_size


def _listed(folder: Path) -> list[tuple[str, Path]]:
    """The kinds of modules and their folders, in order."""
    path = folder / MODULES
    if not path.is_file():
        pooling = folder / POOLING
        return [("Pooling", pooling)] if (pooling / "config.json").is_file() else []
    modules = read_document(path)
    if isinstance(modules, list) and len(modules) > MOST_MODULES:
        raise CheckpointError(f"{path} lists {len(modules)} modules; no more than {MOST_MODULES} are taken")
    found = []
    for module in modules if isinstance(modules, list) else [None]:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise CheckpointError(f"{path} must hold a list of modules, each with a type and a path")
        inner = module.get("path", "")
        if not isinstance(inner, str) or not PATH.fullmatch(inner) or ".." in inner:
            raise CheckpointError(f"{path}: {inner!r:.80} is not a folder below it")
        kind = module["type"]  # code of others may do anything under the same name
        found.append((kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind, folder / inner))
    return found


def read_modes(path: Path) -> tuple[str, ...]:
    """The ways to pool of a pooling module's config.json."""
    values = _settings(path.parent)
    if "pooling_mode" in values:
        listed = values["pooling_mode"]
        names = listed if isinstance(listed, list) else [listed]
        active = [name for name in names if not isinstance(name, str) or name not in NAMES] or names
        modes = [NAMES[name] for name in names if isinstance(name, str) and name in NAMES]
        supported = ", ".join(NAMES)
    else:
        active = [key for key, on in values.items() if key.startswith("pooling_mode_") and on is True]
        modes = [mode for key, mode in MODES.items() if key in active]
        supported = ", ".join(MODES)
    if values.get("include_prompt") is False and modes != ["last"]:
        logger.warning("%s: include_prompt is false, but the tokens of a prompt are pooled, too", path)
    if not modes or len(modes) != len(active):
        wanted = " and ".join(map(str, active)) or "no pooling"
        raise CheckpointError(f"{path} asks for {wanted:.200}; supported are {supported}")
    return tuple(modes)


def _settings(folder: Path) -> dict[str, Any]:
    """A module's config.json, which may be missing."""
    path = folder / "config.json"
    return read_object(path) if path.is_file() else {}


def refuse_other_vectors(reader: ConfigReader) -> None:
    """A module between others that takes or makes something else than the text's vector."""
    for name in ("module_input_name", "module_output_name"):
        reader.only(name, "sentence_embedding")


def read_projection(folder: Path, width: int) -> Projection:
    """A dense module that takes vectors of length ``width``."""
    reader = _required(folder)
    makes_scores = reader.get("module_output_name", None) == SCORES
    refuse_other_vectors(reader.changed(module_output_name=None) if makes_scores else reader)
    inside, outside = reader.integer("in_features"), reader.integer("out_features")
    name = str(reader.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if inside != width or outside > MAX_WIDTH:
        raise reader.error(f"in_features {inside} must be {width}, and out_features at most {MAX_WIDTH}")
    if name not in ACTIVATIONS:
        raise reader.error(
            f"activation_function {name!r:.80} is not supported, only {', '.join(ACTIVATIONS)}"
        )
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outside, inside)}
    if reader.boolean("bias", default=True):
        shapes["linear.bias"] = (outside,)
    added = ACTIVATIONS["Identity"] if reader.boolean("use_residual", default=False) else None
    if added is not None and inside != outside:
        shapes["residual.weight"] = (outside, inside)
    loaded = _load(folder, shapes)
    if "residual.weight" in loaded:
        added = functools.partial(linear, weight=loaded["residual.weight"])
    return Projection(
        weight=loaded["linear.weight"],
        bias=loaded.get("linear.bias"),
        activation=ACTIVATIONS[name],
        added=added,
        makes_scores=makes_scores,
    )


def read_norm(folder: Path, width: int) -> VectorNorm:
    """A module of layer normalization that takes vectors of length ``width``."""
    reader = _required(folder)
    if (size := reader.integer("dimension")) != width:
        raise reader.error(f"dimension {size} must be {width}")
    loaded = _load(folder, {"norm.weight": (width,), "norm.bias": (width,)})
    return VectorNorm(weight=loaded["norm.weight"], bias=loaded["norm.bias"])


def _required(folder: Path) -> ConfigReader:
    """A module's config.json, which must be there."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; {MODULES} has a module there")
    return ConfigReader(read_object(path), path)


def _load(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The module's tensors, which must have these shapes, in fp32."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no model.safetensors; pickled weights are not opened: save the model again with"
            " sentence-transformers"
        )
    tensors = SafetensorsFile(file)
    loaded = {}
    for tensor, shape in shapes.items():
        if tensor not in tensors.names() or tensors.describe(tensor)[1] != shape:
            raise CheckpointError(f"{file} must hold {tensor} of shape {list(shape)}")
        if (dtype := tensors.describe(tensor)[0]) not in FLOATING:
            raise CheckpointError(f"{file}: {tensor} has dtype {dtype}, not one of {', '.join(FLOATING)}")
        loaded[tensor] = tensors.read(tensor).float().clone()
    return loaded
