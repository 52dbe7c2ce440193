"""Common code of formats whose matrices are integers with scales."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from armllm import kernels
from armllm.checkpoint.matrix import IntegerWeight, PackedMatrix, stack
from armllm.quant.rounding import fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.weights import LoadingWeights


class IntegerFormat(abc.ABC):
    """A `WeightFormat` whose matrices are read one by one, and joined where they are alike."""

    @abc.abstractmethod
    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix ``[out_features, in_features]``; CheckpointError says what is wrong with its data."""

    def load(
        self, weights: LoadingWeights, parts: Mapping[str, int], in_features: int, scheme: Scheme
    ) -> list[tuple[list[str], IntegerWeight]]:
        """The matrices of ``parts`` (name to out_features), joined where they can be, each with its names."""
        runs: list[tuple[list[str], list[IntegerWeight]]] = []
        for name, rows in parts.items():
            weight = self.read(weights, name, (rows, in_features), scheme)
            if weights.own is not None and len(weight.q) == rows:  # else it was read so
                weight = weight.rows(weights.own.take)
            weight = fitted(weights, weight)
            if runs and runs[-1][1][0].joins(weight):
                runs[-1][0].append(name)
                runs[-1][1].append(weight)
            else:
                runs.append(([name], [weight]))
        return [(names, stack(found)) for names, found in runs]


def fitted(weights: LoadingWeights, weight: IntegerWeight) -> IntegerWeight:
    """The weight in a form that the kernels have; what that costs is noted."""
    weight, error = fit(weight)
    if error is not None:
        weights.rounding_errors.append(error)
    return weight


def pack(weight: IntegerWeight, target: str | None = None) -> PackedMatrix:
    """Pack for the kernels of ``target``, or for those in use."""
    packed = kernels.pack_weight(
        weight.q,
        weight.scales,
        weight.zeros,
        bits=weight.bits,
        values=weight.values,
        target=target,
        offsets=weight.offsets,
    )
    return PackedMatrix(
        weight=packed,
        columns=weight.columns,
        input_scale=weight.input_scale,
        input_zero=weight.input_zero,
    )
