"""Quantised matrices from a checkpoint into the kernels' form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.checkpoint.integer_weight import IntegerWeight, stack
from armllm.quant.packed import Packed, PackedMatrix, pack
from armllm.quant.rounding import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.weights import Weights


def load_packed(
    weights: Weights, parts: Mapping[str, int], in_features: int, scheme: Scheme
) -> list[tuple[list[str], PackedMatrix]]:
    """The matrices of ``parts`` as the kernels take them, joined where they can be, each with its names."""
    if isinstance(weights.quantization, Packed):
        return weights.quantization.packed(weights, parts)
    return [(names, pack(weight)) for names, weight in read_integers(weights, parts, in_features, scheme)]


def read_integers(
    weights: Weights, parts: Mapping[str, int], in_features: int, scheme: Scheme
) -> list[tuple[list[str], IntegerWeight]]:
    """The matrices of ``parts`` (name to out_features), joined where they can be, each with its names."""
    form = weights.quantization
    if form is None:
        raise ValueError("the checkpoint is not quantised")
    runs: list[tuple[list[str], list[IntegerWeight]]] = []
    for name, rows in parts.items():
        weights.note_scheme(name, (rows, in_features), scheme)
        weight = fitted(weights, form.read(weights, name, (rows, in_features), scheme))
        if runs and runs[-1][1][0].joins(weight):
            runs[-1][0].append(name)
            runs[-1][1].append(weight)
        else:
            runs.append(([name], [weight]))
    return [(names, stack(found)) for names, found in runs]


def check_idle_biases(weights: Weights, names: Iterable[str]) -> None:
    """Refuse a bias that is not zero in a model without biases; AutoGPTQ once wrote zeros everywhere."""
    for name in names:
        if weights.has(f"{name}.bias") and weights.read(f"{name}.bias").any():
            raise weights.error(f"{name}.bias", "is not zero, and by config.json the model has no such bias")


def fitted(weights: Weights, weight: IntegerWeight) -> IntegerWeight:
    """The weight in a form that the kernels have; what that costs is noted."""
    weight, error = fit(weight)
    if error is not None:
        weights.note_rounding(error)
    return weight
