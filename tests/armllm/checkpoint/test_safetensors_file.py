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


def test_a_link_to_itself_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.symlink_to(path.name)
    with pytest.raises(CheckpointError, match="can't be read: Too many levels of symbolic links"):
        SafetensorsFile(path)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": ENTRY, "b": ENTRY},
        {"a": ENTRY, "b": ENTRY | {"data_offsets": [4, 12]}},
        {"a": ENTRY | {"data_offsets": [8, 16]}},
        {"a": ENTRY | {"data_offsets": [-8, 0]}},
        {"a": ENTRY | {"data_offsets": [8, 0]}},
        {"a": ENTRY | {"data_offsets": [2**63, 2**63 + 8]}},
        {"a": ENTRY | {"shape": [2**32, 2**32, 0]}},
        '{"a": {"dtype": "F64", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        '{"a": ' + json.dumps(ENTRY) + ', "\\u0061": ' + json.dumps(ENTRY | {"data_offsets": [0, 16]}) + "}",
    ],
    ids=["same", "overlap", "beyond", "negative", "reversed", "huge", "overflow", "twice", "escaped"],
)
@pytest.mark.parametrize("length", [None, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_tensors_is_refused(tmp_path, header, length):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length or len(text)) + text + bytes(8))
    with pytest.raises(CheckpointError, match="can't be read as safetensors"):
        SafetensorsFile(path)


def test_of_a_tensor_that_a_header_names_twice_the_library_and_we_take_the_last(tmp_path):
    """It would catch offsets that the library has not checked."""
    other = ENTRY | {"shape": [9], "data_offsets": [0, 36]}
    text = f'{{"a": {json.dumps(other)}, "a": {json.dumps(ENTRY)}}}'.encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert SafetensorsFile(path).read("a").tolist() == [0, 0]


def test_a_type_that_no_weight_has_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2, dtype=torch.uint32)}, path)
    with pytest.raises(CheckpointError, match="tensor a has the type U32, not read"):
        SafetensorsFile(path).read("a")
