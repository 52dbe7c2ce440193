"""Rotary parameters in config.json, in the spellings of all versions of transformers.

Old: rope_theta and rope_scaling. New: both in rope_parameters. Where both stand, rope_scaling wins, as in
transformers, and so does original_max_position_embeddings outside over the one inside.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.layers.rotary import RopeParameters
from armllm.models.windows import FULL, SLIDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.errors import CheckpointError

TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
ORIGINAL = "original_max_position_embeddings"


def read_rope(
    reader: ConfigReader,
    common: Mapping[str, Any],
    *,
    default_theta: float = 10000.0,
    default_partial: float | None = None,
    aliases: dict[str, str] | None = None,
    default_original: int | None = None,
    interleaved: bool = False,
    missing: dict[str, Any] | None = None,
    ignored: tuple[str, ...] = (),
) -> RopeParameters:
    """One set for all layers. ``default_partial``: how much of a head turns; None: all must.

    ``common``: has head_dim and max_position_embeddings. ``aliases``: further names of rope types.
    ``default_original``: what the family takes for a missing original_max_position_embeddings, which is else
    max_position_embeddings. ``missing``: what it takes for neither
    rope_parameters nor rope_scaling. ``ignored``: keys that mean nothing for text.
    """
    source = "rope_scaling" if reader.get("rope_scaling", None) else "rope_parameters"
    values = reader.get(source, missing or {})
    reader.get("rope_parameters", None)
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key not in ignored}
    outside = {
        "rope_theta": reader.get("rope_theta", default_theta),
        "partial_rotary_factor": reader.get("partial_rotary_factor", default_partial or 1.0),
        ORIGINAL: reader.get(ORIGINAL, default_original),
    }
    rope = _read(
        reader,
        source,
        values,
        outside,
        head_dim=common["head_dim"],
        positions=common["max_position_embeddings"],
        partial=default_partial is not None,
        aliases=aliases,
    )
    return dataclasses.replace(rope, interleaved=interleaved)


def read_one(
    reader: ConfigReader, source: str, values: Any, *, theta: float, head_dim: int, positions: int
) -> RopeParameters:
    """The set ``values`` for one kind of layers under the key ``source``."""
    outside = {"rope_theta": theta, "partial_rotary_factor": 1.0, ORIGINAL: None}
    return _read(reader, source, values, outside, head_dim=head_dim, positions=positions)


def ropes_by_kind(
    reader: ConfigReader,
    common: dict[str, Any],
    defaults: dict[str, dict[str, Any]],
    full_head_dim: int | None = None,
) -> tuple[RopeParameters, RopeParameters]:
    """Rotary parameters of the layers that see all tokens, and of those with a window.

    ``full_head_dim``: of the former; None: as in ``common``.
    """
    both = reader.get("rope_parameters", defaults)
    if (
        not isinstance(both, dict)
        or set(both) - set(defaults)
        or not all(isinstance(v, dict) for v in both.values())
    ):
        raise reader.error(f"rope_parameters must hold the objects {FULL} and {SLIDING}, not {both!r}")
    found = []
    for kind, head_dim in ((FULL, full_head_dim or common["head_dim"]), (SLIDING, common["head_dim"])):
        rope = read_one(
            reader,
            f"rope_parameters.{kind}",
            both.get(kind, defaults[kind]),
            theta=1e4,
            head_dim=head_dim,
            positions=common["max_position_embeddings"],
        )
        if rope.switch_length is not None:
            raise reader.error("rope_type 'longrope' is not supported with a rotary set per kind of layers")
        found.append(rope)
    return found[0], found[1]


def stretched_length(rope: RopeParameters, positions: int) -> int:
    """Tokens that a model is good for: where positions are divided, max_position_embeddings times as many.

    Qwen's and others' instructions add a yarn block to config.json and leave max_position_embeddings.
    """
    if rope.rope_type == "linear":
        return int(positions * max(1.0, rope.factor))
    if rope.rope_type == "yarn":
        return max(positions, int(rope.original_max_position_embeddings * rope.factor))
    return positions


def _read(
    reader: ConfigReader,
    source: str,
    section: Any,
    outside: dict[str, Any],
    *,
    head_dim: int,
    positions: int,
    partial: bool = False,
    aliases: dict[str, str] | None = None,
) -> RopeParameters:
    """``outside``: three keys beside ``section``, which counts first, but for the original length."""
    if not isinstance(section, dict):
        raise reader.error(f"{source} must be an object, not {section!r}")
    values = {key: value for key, value in section.items() if value is not None}
    inner = ConfigReader(values, reader.path, f"{reader.prefix}{source}.")
    rope_type = inner.get("rope_type", values.get("type", "default"))
    inner.asked.add("type")
    rope_type = (aliases or {}).get(str(rope_type), rope_type)
    if rope_type not in TYPES:
        raise reader.error(f"rope_type {rope_type!r} is not supported, only {', '.join(TYPES)}")
    values.setdefault("rope_theta", outside["rope_theta"])
    values.setdefault("partial_rotary_factor", outside["partial_rotary_factor"])
    share = inner.number("partial_rotary_factor")
    # the others of the pairs that are in the proportion have frequency 0
    rotary_dim = head_dim if rope_type == "proportional" else int(head_dim * share)
    if rotary_dim != head_dim and not partial:
        raise reader.error("partial_rotary_factor other than 1.0 is not supported for this architecture")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        what = (
            f"head_dim {head_dim} is odd"
            if rotary_dim == head_dim
            else (f"partial_rotary_factor turns {rotary_dim} of {head_dim} elements")
        )
        raise reader.error(f"{what}; rotary embedding needs pairs within a head")
    if outside[ORIGINAL] is not None:
        values[ORIGINAL] = outside[ORIGINAL]
    fields: dict[str, Any] = {
        "rope_type": rope_type,
        "rotary_dim": rotary_dim,
        "theta": inner.number("rope_theta"),
        ORIGINAL: inner.integer(ORIGINAL, positions),
    }
    fields |= _stretching(inner, fields, positions)
    unknown = sorted(values.keys() - inner.asked)
    if unknown:
        raise inner.error(f"{unknown[0]} is not supported for rope_type {rope_type!r}")
    rope = RopeParameters(**fields)
    _check(inner, rope)
    return rope


def _stretching(inner: ConfigReader, fields: dict[str, Any], positions: int) -> dict[str, Any]:
    """What the type has beside ``fields``."""
    rope_type, original = fields["rope_type"], fields[ORIGINAL]
    if rope_type == "default":
        return {}
    if rope_type == "proportional":
        share = inner.number("partial_rotary_factor")
        if share > 1:
            raise inner.error(f"partial_rotary_factor {share} is above 1")
        return {"factor": inner.number("factor", 1.0), "share": share}
    if rope_type == "longrope":
        return _longrope(inner, fields["rotary_dim"], original, positions)
    if rope_type == "yarn":
        return _yarn(inner, original, positions)
    names = ("factor", "low_freq_factor", "high_freq_factor") if rope_type == "llama3" else ("factor",)
    return {name: inner.number(name) for name in names}


def _longrope(inner: ConfigReader, rotary_dim: int, original: int, positions: int) -> dict[str, Any]:
    factor = inner.number("factor", positions / original)
    computed = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    fields = {
        "factor": factor,
        "short_factor": inner.numbers("short_factor", rotary_dim // 2),
        "long_factor": inner.numbers("long_factor", rotary_dim // 2),
        "attention_factor": inner.number("attention_factor", computed),
    }
    if inner.get("short_mscale", None) is not None:  # Phi-3.5-MoE's, one for each length
        fields["attention_factor"] = inner.number("short_mscale")
        fields["long_attention_factor"] = inner.number("long_mscale")
    return fields


def _yarn(inner: ConfigReader, original: int, positions: int) -> dict[str, Any]:
    factor = inner.number("factor", positions / original if positions > original else None)
    inner.asked.add("finetuned")  # the paper's own checkpoints tell so how they were made
    # how much less sharp attention gets when the context is stretched (Peng et al. 2023, section 3.4);
    # DeepSeek's mscale and mscale_all_dim split it into two
    numerator, denominator = (inner.get(name, 0) for name in ("mscale", "mscale_all_dim"))
    if numerator and denominator:
        numerator, denominator = inner.number("mscale"), inner.number("mscale_all_dim")
    else:
        numerator, denominator = 1.0, 0.0
    log = math.log(factor) if factor > 1 else 0.0
    computed = (0.1 * numerator * log + 1) / (0.1 * denominator * log + 1)
    return {
        "factor": factor,
        "attention_factor": inner.number("attention_factor", computed),
        "beta_fast": inner.number("beta_fast", 32.0),
        "beta_slow": inner.number("beta_slow", 1.0),
        "truncate": inner.boolean("truncate", default=True),
    }


def _check(inner: ConfigReader, rope: RopeParameters) -> None:
    problem: CheckpointError | None = None
    if rope.high_freq_factor < rope.low_freq_factor:
        problem = inner.error("high_freq_factor must not be below low_freq_factor")
    if rope.rope_type == "yarn" and rope.beta_fast < rope.beta_slow:
        problem = inner.error("beta_fast must not be below beta_slow")
    if rope.rope_type == "yarn" and rope.theta == 1:
        problem = inner.error("rope_theta 1 leaves yarn nothing to divide")
    if problem is not None:
        raise problem
