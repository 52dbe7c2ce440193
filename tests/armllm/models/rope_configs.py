"""Settings of rotary embeddings, drawn at random: each way to stretch them, in every spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

Config = dict[str, Any]


def rope(rng: random.Random, head_dim: int) -> Config:
    """All ways to stretch, in the old spelling or in the new one."""
    original = rng.choice([16, 40, 64])
    share = rng.choice([1.5, 4.0, 8])
    halves = head_dim // 2
    kind, values = rng.choice(
        [
            ("default", {}),
            ("linear", {"factor": share}),
            ("dynamic", {"factor": share}),
            ("llama3", llama3(rng, original)),
            ("yarn", {"factor": share, "original_max_position_embeddings": original, **yarn(rng)}),
            ("longrope", longrope(rng, halves, original)),
        ]
    )
    theta = rng.choice([10000.0, 500000, 100.0])
    if rng.random() < 0.5:
        return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **values}}
    name = rng.choice(["type", "rope_type"])
    return {"rope_theta": theta, "rope_scaling": {name: kind, **values} if values else None}


def llama3(rng: random.Random, original: int) -> Config:
    return {
        "factor": rng.choice([2.0, 8.0]),
        "low_freq_factor": rng.choice([0.5, 1.0]),
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def yarn(rng: random.Random) -> Config:
    return rng.choice(
        [
            {},
            {"attention_factor": 1.3},
            {"beta_fast": 16, "beta_slow": 2},
            {"mscale": 1.0, "mscale_all_dim": 0.7},
            {"mscale": 0.707},
            {"truncate": False},
        ]
    )


def longrope(rng: random.Random, halves: int, original: int) -> Config:
    values = {
        "short_factor": [round(rng.uniform(1, 1.2), 3) for _ in range(halves)],
        "long_factor": [round(rng.uniform(1, 4), 3) for _ in range(halves)],
        "original_max_position_embeddings": original,
    }
    return values | rng.choice([{}, {"factor": 3.0}, {"attention_factor": 1.1}])


def head_dim_of(config: Config) -> int:
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def with_rope(rng: random.Random, config: Config) -> Config:
    return config | rope(rng, head_dim_of(config))


def partial_rope(rng: random.Random, config: Config, default: float, shares: list[float]) -> Config:
    """In either spelling; a missing share is the family's."""
    share = rng.choice([None, *shares])
    turned = int(head_dim_of(config) * (share or default))
    extra = rope(rng, turned)
    if share is None:
        return extra
    if extra.get("rope_parameters") and rng.random() < 0.5:
        extra["rope_parameters"]["partial_rotary_factor"] = share
        return extra
    return extra | {"partial_rotary_factor": share}
