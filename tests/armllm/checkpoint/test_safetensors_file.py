"""safetensors files are mapped whatever their size and layout, and refused with what helps."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from armllm.checkpoint.mapping import map_file
from armllm.checkpoint.safetensors_file import DTYPES, SafetensorsFile
from armllm.errors import CheckpointError


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    """transformers puts up to 50 GB into one file; a hole stands for them here."""
    size = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    header = json.dumps({"a": {"dtype": "F16", "shape": [2, size // 4], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    opened = SafetensorsFile(path)
    assert opened.describe("a") == ("F16", (2, size // 4))
    assert opened.read("a")[1, -1] == 0


def test_a_mapped_file_is_not_written_to(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    mapped = map_file(path)
    mapped[0] = 0
    assert path.read_bytes() == b"abc"


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_every_dtype_and_layout_is_read_as_the_library_does(tmp_path, padding):
    numbers = torch.arange(6).reshape(2, 3)
    tensors = {name: numbers.to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"none": torch.empty(0, 4), "scalar": torch.tensor(2.5)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    path.write_bytes(
        struct.pack("<Q", length + padding) + whole[8 : 8 + length] + b" " * padding + whole[8 + length :]
    )
    opened, expected = SafetensorsFile(path), load_file(path)
    assert set(opened.names()) == set(expected)
    for name, tensor in expected.items():
        read = opened.read(name)
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read.double(), tensor.double())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", "run git lfs pull"),
        (b"", "it may be truncated"),
        (struct.pack("<Q", 2) + b"{}" + b"beyond", "it may be truncated"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, content, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        SafetensorsFile(path)


def test_a_type_that_no_weight_has_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2, dtype=torch.uint32)}, path)
    with pytest.raises(CheckpointError, match="tensor a has the type U32, not read"):
        SafetensorsFile(path).read("a")
