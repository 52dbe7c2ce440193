"""Which layers see all tokens and which a sliding window of them (Beltagy et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.checkpoint.config import ConfigReader

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def same_everywhere(reader: ConfigReader, num_layers: int, window: int | None) -> tuple[int | None, ...]:
    """One window, or none, for all layers: families without layer_types, which may only repeat that."""
    kinds = read_layer_types(reader, num_layers, [FULL if window is None else SLIDING] * num_layers)
    if (SLIDING in kinds) != (window is not None) or len(set(kinds)) > 1:
        raise reader.error("layer_types other than one kind for all layers is not supported here")
    return (window,) * num_layers


def by_layer(reader: ConfigReader, kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window for layers of kind sliding_attention; ``kinds`` from `read_layer_types`."""
    if window is None and SLIDING in kinds:
        raise reader.error("layer_types has sliding_attention, but there is no sliding_window (in use)")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def read_pattern(reader: ConfigReader, num_layers: int, default: int) -> list[str]:
    """layer_types, or a layer that sees all tokens after every few with a window."""
    pattern = reader.integer("sliding_window_pattern", default)
    if not reader.has("layer_types"):  # transformers writes both and reads only these
        reader.only("_sliding_window_pattern", pattern)
    reader.has("_sliding_window_pattern")
    return read_layer_types(
        reader, num_layers, [SLIDING if (index + 1) % pattern else FULL for index in range(num_layers)]
    )


def read_layer_types(
    reader: ConfigReader, num_layers: int, default: list[str], known: tuple[str, ...] = (FULL, SLIDING)
) -> list[str]:
    """layer_types, one of the ``known`` kinds per layer."""
    kinds = reader.get("layer_types", default)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise reader.error(f"layer_types must be a list of {num_layers} kinds, one per layer")
    for kind in kinds:
        if kind not in known:
            names = f"{', '.join(known[:-1])} and {known[-1]}"
            raise reader.error(f"layer_types {kind!r} is not supported, only {names}")
    return kinds
