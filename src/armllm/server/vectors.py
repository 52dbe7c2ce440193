"""Vectors in the answers of /v1/embeddings and /pooling: numbers, base64 or bytes, of vLLM's types."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import Response

from armllm.server.errors import ApiError
from armllm.server.limits import MANY_TEXTS, away_if

if TYPE_CHECKING:
    import numpy.typing as npt

    from armllm.server.protocol.tokens import AboutVectors, EmbeddingRequest, Vector

MOST_DESCRIBED = 256  # vectors in a header: clients and proxies read 64 KiB of headers at most
MOST_NUMBERS = 1 << 24  # of an answer: one text of 8192 tokens has half as many in BGE-M3
# Bits of exponent and mantissa, and how many codes of one sign: the last is 448, or infinity.
_FP8 = {"fp8_e4m3": (4, 3, 0x7F), "fp8_e5m2": (5, 2, 0x7D)}


def check_count(body: EmbeddingRequest, count: int) -> None:
    """Refuse more vectors than the header can describe that comes with bytes."""
    if body.encoding_format == "bytes" and count > MOST_DESCRIBED:
        raise ApiError(
            f"a header describes up to {MOST_DESCRIBED} vectors, not {count}: use bytes_only or fewer texts",
            param="encoding_format",
        )


def check_size(tokens: int, width: int) -> None:
    """Refuse vectors of so many tokens that the answer would fill the server's memory."""
    if tokens * width > MOST_NUMBERS:
        raise ApiError(
            f"the vectors of {tokens} tokens have {tokens * width} numbers, and an answer up to"
            f" {MOST_NUMBERS}: send fewer texts, or shorter ones",
            param="input",
        )


async def as_json(body: EmbeddingRequest, vectors: list[Vector]) -> list[Any]:
    """Vectors as JSON has them: numbers or base64."""
    if body.encoding_format != "base64":
        return [*vectors]
    return [base64.b64encode(one).decode() for one in await _as_bytes(body, vectors)]


async def as_response(body: EmbeddingRequest, vectors: list[Vector], about: AboutVectors) -> Response:
    """Vectors one after the other; for ``bytes`` the header ``metadata`` says where each one is."""
    pieces = await _as_bytes(body, vectors)
    headers = {}
    if body.encoding_format == "bytes":
        ends = np.cumsum([len(piece) for piece in pieces]).tolist()
        items = [
            {
                "index": index,
                "embed_dtype": body.embed_dtype or "float32",
                "endianness": body.endianness or "native",
                "start": end - len(pieces[index]),
                "end": end,
                "shape": [*np.shape(vectors[index])],
            }
            for index, end in enumerate(ends)
        ]
        headers["metadata"] = json.dumps({**about, "data": items})
    return Response(b"".join(pieces), media_type="application/octet-stream", headers=headers)


async def _as_bytes(body: EmbeddingRequest, vectors: list[Vector]) -> list[bytes]:
    dtype, big = body.embed_dtype or "float32", body.endianness == "big"

    def work() -> list[bytes]:
        found = (cast(np.asarray(vector, np.float32), dtype) for vector in vectors)
        return [(one.byteswap() if big else one).tobytes() for one in found]

    pieces: list[bytes] = await away_if(len(vectors) > MANY_TEXTS, work)
    return pieces


def cast(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Values rounded to a type as torch rounds them; one that numpy does not have comes as its bits."""
    if dtype in _FP8:
        return _fp8(values, *_FP8[dtype])
    if dtype == "float16":
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            return values.astype(np.float16)
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        rounded: npt.NDArray[np.uint32] = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
        rounded[np.isnan(values)] = 0x7FC0
        return rounded.astype(np.uint16)
    return values


def _fp8(
    values: npt.NDArray[np.float32], exponent_bits: int, mantissa_bits: int, num_codes: int
) -> npt.NDArray[np.uint8]:
    """The codes of the nearest numbers; of two that are equally near, the even code."""
    codes = np.arange(num_codes)
    exponents, mantissas = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fractions = mantissas / (1 << mantissa_bits) + (exponents > 0)
    numbers = np.ldexp(fractions, np.maximum(exponents, 1) - (1 << (exponent_bits - 1)) + 1)
    middles = (numbers[1:] + numbers[:-1]) / 2
    sizes = np.abs(values.astype(np.float64))
    lower = np.searchsorted(middles, sizes)
    nearest = lower + (np.isin(sizes, middles) & (lower & 1 == 1))
    nearest = np.where(np.isnan(values), 0x7F, nearest)
    return (nearest | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
