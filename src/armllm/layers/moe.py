"""Mixture of experts (Shazeer et al. 2017): a router sends each token through a few of many MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from armllm import kernels
from armllm.layers import cpu
from armllm.layers.activation import gated, gated_kernel, plain
from armllm.layers.linear import (
    KernelLinear,
    Linear,
    QuantizedLinear,
    dense,
    load_linear,
)
from armllm.layers.lora import building_with
from armllm.layers.ranks import Cut, Gather, current_ranks
from armllm.quant.round_to_nearest import rounded
from armllm.quant.rounding import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from armllm.checkpoint.weights import Weights
    from armllm.kernels.moe import GatedActivation
    from armllm.layers.routing import Routes

    Activation = GatedActivation | kernels.ClampedSwiGLU
    Biases = tuple[Tensor, Tensor]
    Matrix = Tensor | kernels.PanelWeight | Linear


# Gates above ups, and downs, of all experts: as transformers 5 holds them, and as Granite's files do.
STACKED = (
    ("experts.gate_up_proj", "experts.down_proj"),
    ("input_linear.weight", "output_linear.weight"),
)


class Experts(Protocol):
    """The MLPs of one layer, however their weights are stored."""

    def __call__(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        """Weighted sum of each token's experts.

        ``x[T, hidden_size]`` to the same shape and dtype; ``expert_ids`` int64 ``[T, K]``, different ones
        in a row, ``expert_weights`` fp32 ``[T, K]``.
        """


class FusedExperts:
    """All experts in one call of a kernel; their weights are stored alike."""

    def __init__(
        self, experts: kernels.Experts, activation: Activation, gather: Gather | None = None
    ) -> None:
        self.experts = experts
        self.activation = activation
        self.gather = gather
        ops = {8: kernels.moe_w8a8, 4: kernels.moe_w4a8}
        floating = {
            torch.bfloat16: kernels.moe_bf16,
            torch.float16: kernels.moe_f16,
            torch.float32: kernels.moe_f32,
        }
        self.op = floating[experts.dtype] if experts.dtype is not None else ops[experts.bits]

    def __call__(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], self.experts.columns, dtype=x.dtype)
        self.op(out, x, expert_ids, expert_weights, self.experts, activation=self.activation)
        return out if self.gather is None else self.gather(out)


class SeparateExperts:
    """Tokens sorted by expert, one product per expert that is used: for weights stored in different ways."""

    def __init__(
        self,
        gate_up: list[Linear],
        down: list[Linear],
        biases: Biases | None = None,
        *,
        activation: Callable[[Tensor], Tensor],
        gathers: Gathers | None = None,
    ) -> None:
        self.gate_up = gate_up
        self.down = down
        self.biases = biases
        self.activation = activation
        self.gathers = gathers

    def __call__(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        num_tokens, per_token = expert_ids.shape
        order = expert_ids.flatten().argsort(stable=True)
        counts = expert_ids.flatten().bincount(minlength=len(self.down)).tolist()
        gathered = x[order // per_token]
        results = torch.empty_like(gathered)
        first = 0
        for expert, count in enumerate(counts):
            if count:
                part = slice(first, first + count)
                results[part] = self._run(expert, gathered[part])
                first += count
        scattered = torch.empty(num_tokens, per_token, x.shape[-1], dtype=x.dtype)
        scattered.view(-1, x.shape[-1])[order] = results
        # rounded once, however many experts are added
        return (scattered.float() * expert_weights.unsqueeze(-1)).sum(dim=1).to(x.dtype)

    def _run(self, expert: int, x: Tensor) -> Tensor:
        gate_up = self.gate_up[expert](x)
        if self.biases is not None:
            gate_up += self.biases[0][expert].to(x.dtype)
        activated = self.activation(gate_up)
        if self.gathers is not None:
            activated = self.gathers.between(activated)
        result = self.down[expert](activated)
        if self.biases is not None:
            result += self.biases[1][expert].to(x.dtype)
        return result if self.gathers is None else self.gathers.after(result)


NAMES = ("gate_proj", "up_proj", "down_proj")


def load_experts(
    weights: Weights,
    num_experts: int,
    hidden_size: int,
    size: int,
    *,
    activation: str,
    names: tuple[str, str, str] = NAMES,
) -> Experts:
    """Experts from ``experts.N.<name>.weight``, or from one of the pairs of `STACKED` tensors.

    Those, ``[E, 2 size, hidden_size]`` and ``[E, hidden_size, size]``, stay mapped, unless they are rounded
    while loading or the kernels want panels. Each of several ranks takes its rows of every expert.
    """
    experts = weights.scope("experts")
    stacked = next((pair for pair in STACKED if weights.has(pair[0])), None)
    if stacked is not None:
        gate_up = _unstacked(
            weights, stacked[0], num_experts, (2 * size, hidden_size), own_rows(GATES_AND_UPS)
        )
        down = _unstacked(weights, stacked[1], num_experts, (hidden_size, size), own_rows())
    else:
        gate_up, down = load_matrices(experts, num_experts, hidden_size, size, names)
    return combined(gate_up, down, sizes=(hidden_size, size), activation=activation)


def load_plain_experts(
    weights: Weights, num_experts: int, hidden_size: int, size: int, *, activation: str
) -> SeparateExperts:
    """Experts without gates, each ``down(activation(up(x)))``: no kernel has all of them in one call.

    From ``experts.N.<name>.weight``, or stacked from ``experts.<name>``.
    """
    experts = weights.scope("experts")
    up_name, down_name = NAMES[1:]
    if are_separate(experts):
        up, down = load_matrices(experts, num_experts, hidden_size, size, NAMES[1:])
    else:
        up = _unstacked(experts, up_name, num_experts, (size, hidden_size), own_rows())
        down = _unstacked(experts, down_name, num_experts, (hidden_size, size), own_rows())
    return SeparateExperts(
        [_product(matrix) for matrix in up],
        [_product(matrix) for matrix in down],
        activation=plain(activation),
        gathers=Gathers.of((hidden_size, size)),
    )


def are_separate(experts: Weights) -> bool:
    """Whether each expert has tensors of its own below ``N.``, as GGUF files and quantizers have them."""
    return experts.scope("0", optional=True) is not experts


def load_matrices(
    experts: Weights,
    num_experts: int,
    hidden_size: int,
    size: int,
    names: tuple[str, ...] = NAMES,
    *,
    bias: bool | None = False,
) -> tuple[Sequence[Matrix], Sequence[Matrix]]:
    """Gates and ups of each expert, and its second matrix, from ``N.<name>.weight``.

    ``names``: without the first one there are no gates. ``bias`` is that of `load_linear`.
    """
    *first_names, down_name = names
    parts = dict.fromkeys(first_names, size)
    scopes = [experts.scope(str(expert)) for expert in range(num_experts)]
    gate_up = [_matrix(scope, parts, hidden_size, bias) for scope in scopes]
    return gate_up, [_matrix(scope, {down_name: hidden_size}, size, bias) for scope in scopes]


class Gathers(NamedTuple):
    """What several ranks gather: the columns between an expert's two products, and those of its result."""

    between: Gather
    after: Gather

    @staticmethod
    def of(sizes: tuple[int, int]) -> Gathers | None:
        """Those of ``sizes[0]`` columns of a result and ``sizes[1]`` between; None where no other rank is."""
        ranks = current_ranks()
        if ranks is None:
            return None
        after, between = (Cut(ranks).gatherer([size]) for size in sizes)
        return Gathers(between, after)


GATES_AND_UPS = 2  # blocks of gate_up, of each of which a rank has its rows


def own_rows(blocks: int = 1) -> Callable[[Tensor], Tensor]:
    """What takes this rank's rows of an expert's matrix; all of them where no other rank is."""
    ranks = current_ranks()
    return (lambda whole: whole) if ranks is None else Cut(ranks, blocks).take


def combined(
    gate_up: Sequence[Matrix],
    down: Sequence[Matrix],
    biases: Biases | None = None,
    *,
    sizes: tuple[int, int],
    activation: str | kernels.ClampedSwiGLU,
) -> Experts:
    """All experts, in one call of a kernel if that can be; a matrix or a product with one for each of them.

    ``sizes``: hidden_size, and the columns between the products. ``biases``: fp32 ``[E, 2 size]`` and
    ``[E, hidden_size]``. All have this rank's rows only (`own_rows`), biases their columns.
    """
    function = gated_kernel(activation)
    stored = _alike([*gate_up, *down])
    gathers = Gathers.of(sizes)
    if function is not None and stored is not None:
        count = len(gate_up)
        joined = kernels.join_experts(
            stored[:count],
            stored[count:],
            gate_up_bias=None if biases is None else biases[0],
            down_bias=None if biases is None else biases[1],
            gatherer=None if gathers is None else gathers.between.gatherer,
        )
        return FusedExperts(joined, cast("Activation", function), None if gathers is None else gathers.after)
    return SeparateExperts(
        [_product(matrix) for matrix in gate_up],
        [_product(matrix) for matrix in down],
        biases,
        activation=gated(activation),
        gathers=gathers,
    )


def _matrix(weights: Weights, parts: Mapping[str, int], inputs: int, bias: bool | None) -> Matrix:
    """The matrix of all ``parts``, or where it is quantized or watched a product with it."""
    form = weights.quantization
    floating = form is None or all(form.scheme(weights, name, inputs) is None for name in parts)
    if not floating or weights.watch is not None:
        with building_with(None):  # experts get other rows than the step's
            return load_linear(weights, parts, inputs, bias=bias, gathered=False)
    names = [f"{name}.weight" for name in parts]
    ranks = current_ranks()
    if ranks is not None:
        weights = weights.cut(Cut(ranks))
    elif len(names) == 1:
        return placed(weights.take(names[0], *parts.values(), inputs))
    return placed(weights.concatenate(names, [(rows, inputs) for rows in parts.values()]))


def _each(weights: Weights, name: str, *shape: int) -> Iterable[Tensor]:
    """The matrices of a tensor, each converted when it is its turn."""
    stored = weights.stored([name], [shape])
    if stored is None:
        return weights.take(name, *shape)
    return (matrix.to(weights.dtype) for tensor in stored[1] for matrix in tensor)


def placed(matrix: Tensor) -> Matrix:
    """Put it into panels where those are faster: then only one expert at a time is in memory twice."""
    panels = cpu.has_fast_panels(matrix.dtype) and not cpu.has_fast_kernel(matrix.dtype)
    return kernels.pack_panels(matrix) if panels and matrix.device.type == "cpu" else matrix


def _unstacked(
    weights: Weights,
    name: str,
    num_experts: int,
    shape: tuple[int, int],
    own: Callable[[Tensor], Tensor],
) -> Sequence[Matrix]:
    """A matrix, or a product with one, per expert from one tensor ``[num_experts, *shape]``.

    ``own``: `own_rows` of a matrix.
    """
    form = weights.quantization
    scheme = form.scheme(weights, name, shape[1]) if form is not None else None
    if scheme is None:
        return [placed(own(one)) for one in _each(weights, name, num_experts, *shape)]
    return [
        QuantizedLinear(fit(rounded(weights, name, own(one), scheme))[0])
        for one in weights.slices(name, num_experts, shape, scheme)
    ]


def transposed_experts(
    experts: Weights,
    name: str,
    count: int,
    shape: tuple[int, int],
    *,
    own: Callable[[Tensor], Tensor],
    arrange: Callable[[Tensor], Tensor] = Tensor.contiguous,
) -> Sequence[Matrix]:
    """A matrix of this shape, or a product with one, per expert of a tensor ``[count, inputs, rows]``.

    ``arrange``: puts the rows of a matrix in another order, and its elements one after the other. ``own``:
    `own_rows` of the result.
    """
    form, stored = experts.quantization, shape[::-1]
    scheme = form.scheme(experts, name, shape[1]) if form is not None else None
    if scheme is None:
        return [placed(own(arrange(one.t()))) for one in _each(experts, name, count, *stored)]
    return [
        QuantizedLinear(fit(rounded(experts, name, own(arrange(one.t())), scheme))[0])
        for one in experts.slices(name, count, stored, scheme, transposed=True)
    ]


def _product(matrix: Matrix) -> Linear:
    if isinstance(matrix, kernels.PanelWeight):
        return KernelLinear(matrix, None)
    return dense(matrix) if isinstance(matrix, Tensor) else matrix


def _alike(
    matrices: Sequence[Matrix],
) -> Sequence[Tensor | kernels.PanelWeight | kernels.PackedWeight] | None:
    """What the kernels join: tensors or panels only, or packed weights of one form; None for anything else.

    None too for what has no data.

    The kernels have no columns in another order (act-order) and no scales of inputs from the checkpoint.
    """
    tensors = [matrix for matrix in matrices if isinstance(matrix, Tensor)]
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        return None
    if matrices and len(tensors) == len(matrices):
        return tensors
    panels = [matrix for matrix in matrices if isinstance(matrix, kernels.PanelWeight)]
    if matrices and len(panels) == len(matrices):
        return panels
    packed = [
        matrix.weight
        for matrix in matrices
        if isinstance(matrix, QuantizedLinear) and matrix.columns is None and matrix.input_scale is None
    ]
    if not packed or len(packed) < len(matrices) or len({weight.bits for weight in packed}) > 1:
        return None
    half = len(packed) // 2
    for weights in (packed[:half], packed[half:]):
        if len({(w.group_size, w.zero_points, w.scales, w.values) for w in weights}) > 1:
            return None
    return list(packed)


class MoE:
    """Router and experts."""

    def __init__(self, router: Routes, experts: Experts) -> None:
        self.router = router
        self.experts = experts

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.experts(x, *self.router(x))
