"""Loading leaves no second copy of the weights in memory, neither mapped nor on the heap."""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from armllm import LLM
from armllm.checkpoint.folder import Checkpoint
from armllm.checkpoint.mapping import map_file, release_tensor

MIB = 1 << 20
# the most resident while a matrix is read, beside what was before the checkpoint was opened
PROGRAM = """
import sys, torch
from armllm import LLM
from armllm.checkpoint.folder import Checkpoint
def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) * 1024
LLM(sys.argv[2], dtype="bfloat16", num_gpu_blocks_override=8, skip_tokenizer_init=True)  # all code is loaded
before, peak, read = resident(), 0, Checkpoint.read
def spy(self, name):
    global peak
    peak = max(peak, resident())
    return read(self, name)
Checkpoint.read = spy
llm = LLM(sys.argv[1], dtype="bfloat16", num_gpu_blocks_override=8, skip_tokenizer_init=True)
print(max(peak, resident()) - before, llm.llm_engine.runner.load_report.weight_bytes)
"""


@pytest.fixture(scope="module")
def checkpoints(make_checkpoint, tmp_path_factory):
    """A folder each of a larger and of a small model, in bf16."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 512}
    folders = []
    for name, options in (("larger", sizes), ("small", {})):
        checkpoint = make_checkpoint(**options)
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(checkpoint.folder / "config.json", folder)
        weights = load_file(checkpoint.folder / "model.safetensors")
        save_file({name: tensor.bfloat16() for name, tensor in weights.items()}, folder / "model.safetensors")
        folders.append(folder)
    return folders


def test_loading_peaks_at_the_weights_and_a_tensor(checkpoints):
    """Mapped pages beside packed copies would take twice the weights."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, checkpoints)], capture_output=True, text=True, check=True
    )
    taken, weights = map(int, done.stdout.split())
    assert weights > 60 * MIB
    assert taken < weights + 16 * MIB


def test_only_pages_within_a_mapped_file_are_given_back(tmp_path):
    """What lies on the heap would be zeros after that."""
    stored = torch.arange(1 << 16, dtype=torch.int32)
    save_file({"a": stored, "b": stored + 1}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    first = checkpoint.read("a")
    checkpoint.read("b")
    assert first.equal(stored)
    [span] = checkpoint.spans()
    assert span[0] <= first.data_ptr() < span[1]
    copy = first.clone()
    release_tensor(copy, span)
    assert copy.equal(stored)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a kernel without huge pages"
)
@pytest.mark.parametrize("setting", ["1", "0"])
def test_mapped_files_ask_for_huge_pages_as_tensors_do(tmp_path, monkeypatch, setting):
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", setting)
    file = tmp_path / "weights"
    file.write_bytes(bytes(1 << 16))
    with map_file(file):
        entries = Path("/proc/self/smaps").read_text(encoding="utf-8").split(str(file))
    flags = next(line for line in entries[1].splitlines() if line.startswith("VmFlags:")).split()
    assert ("hg" in flags) is (setting == "1" and mmap.PAGESIZE == 4096)


def test_changes_in_another_mapping_of_the_file_are_kept(make_checkpoint):
    """As of a model that transformers has loaded, and that an adapter was merged into. They were lost."""
    folder = make_checkpoint().folder
    with (folder / "model.safetensors").open("rb") as file:
        other = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    other[-mmap.PAGESIZE :] = bytes([7]) * mmap.PAGESIZE
    LLM(folder, dtype="float32", num_gpu_blocks_override=8, skip_tokenizer_init=True)
    assert other[-mmap.PAGESIZE :] == bytes([7]) * mmap.PAGESIZE


def test_files_behind_links_are_found(tmp_path):
    """The hub's cache is made of links."""
    (tmp_path / "blob").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"a": torch.ones(1 << 16)}, tmp_path / "blob" / "0123")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blob" / "0123")
    checkpoint = Checkpoint(tmp_path / "snapshot")
    tensor = checkpoint.read("a")
    [(start, end)] = checkpoint.spans()
    assert start < tensor.data_ptr() < end
