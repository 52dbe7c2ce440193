"""Vectors as bytes: torch's rounding of each type, in either order of bytes, read as vLLM's clients do."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

from armllm.server.vectors import MOST_DESCRIBED, cast

TEXTS = ["A wheel left the workshop", "Bread needs flour", "Hello"]
TYPES = {
    "float32": (torch.float32, np.uint32),
    "float16": (torch.float16, np.uint16),
    "bfloat16": (torch.bfloat16, np.uint16),
    "fp8_e4m3": (torch.float8_e4m3fn, np.uint8),
    "fp8_e5m2": (torch.float8_e5m2, np.uint8),
}


def bits(tensor, kind):
    return (
        tensor.contiguous()
        .view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind().itemsize])
        .numpy()
        .view(kind)
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_rounded_as_torch_rounds_them(dtype):
    """Numbers of all sizes, and those in the middle between two of the small type."""
    target, kind = TYPES[dtype]
    every = torch.arange(256, dtype=torch.uint8)
    grid = torch.cat([every.view(torch.float8_e4m3fn).float(), every.view(torch.float8_e5m2).float()])
    grid = grid[grid.isfinite()].sort().values
    random = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    values = torch.cat(
        [grid, (grid[1:] + grid[:-1]) / 2, random, random * 1e-3, random * 1e-7, random * 1e38]
    )
    # older torch makes NaN of what is too large for e4m3, newer torch and this server the largest number
    values = values.clamp(-448, 448) if dtype == "fp8_e4m3" else values
    assert np.array_equal(cast(values.numpy(), dtype).view(kind), bits(values.to(target), kind))
    stored = cast(np.float32([np.nan]), dtype).view(np.dtype(f"u{target.itemsize}"))
    assert torch.from_numpy(stored.copy()).view(target).float().isnan()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("endianness", ["native", "big"])
@pytest.mark.parametrize("dtype", TYPES)
def test_bytes_are_where_the_header_says(served, path, endianness, dtype):
    target, kind = TYPES[dtype]
    stored = np.dtype(kind).newbyteorder(">" if endianness == "big" else "<")
    name = "embedding" if path == "/v1/embeddings" else "data"
    plain = served.post(path, {"input": TEXTS}).json()

    def check(piece, index):
        """Other sums of the engine may differ in the last bits, which may round to the next number."""
        values = torch.from_numpy(np.frombuffer(piece, stored).astype(kind)).view(target).float()
        exact = torch.tensor(plain["data"][index][name])
        torch.testing.assert_close(values, exact, rtol=2 * torch.finfo(target).eps, atol=0.01)

    form = {"input": TEXTS, "embed_dtype": dtype, "endianness": endianness}
    answer = served.post(path, {**form, "encoding_format": "bytes"})
    assert answer.headers["content-type"] == "application/octet-stream"
    about = json.loads(answer.headers["metadata"])
    assert (about["model"], about["usage"]) == ("smoke", plain["usage"])
    for index, item in enumerate(about["data"]):
        check(answer.content[item["start"] : item["end"]], index)
        assert (item["index"], item["shape"]) == (index, [len(plain["data"][index][name])])
        assert (item["embed_dtype"], item["endianness"]) == (dtype, endianness)
    assert about["data"][-1]["end"] == len(answer.content)
    only = served.post(path, {**form, "encoding_format": "bytes_only"})
    assert "metadata" not in only.headers
    coded = served.post(path, {**form, "encoding_format": "base64"}).json()["data"]
    size = len(answer.content) // len(TEXTS)
    for index, one in enumerate(coded):
        check(base64.b64decode(one[name]), index)
        check(only.content[index * size : (index + 1) * size], index)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"embed_dtype": "float16"}, "need encoding_format base64, bytes or bytes_only"),
        (
            {"endianness": "big", "encoding_format": "float"},
            "need encoding_format base64, bytes or bytes_only",
        ),
        ({"embed_dtype": "int8"}, "embed_dtype: "),
        ({"encoding_format": "hex"}, "encoding_format: "),
        ({"encoding_format": "bytes", "input": ["a"] * (MOST_DESCRIBED + 1)}, "use bytes_only"),
    ],
)
def test_a_form_without_meaning_is_refused(served, fields, words):
    answer = served.post("/v1/embeddings", {"input": "a", **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert served.post(
        "/v1/embeddings", {"input": "a", "embed_dtype": "float32", "endianness": "little"}
    ).is_success
