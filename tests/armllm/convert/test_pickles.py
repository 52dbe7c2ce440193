"""`.bin` files become safetensors with the same logits; whatever is more than tensors is refused."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file

from armllm.cli import main
from armllm.convert.pickles import PICKLE, PICKLE_INDEX


@pytest.fixture
def folder(make_checkpoint, tmp_path):
    """A checkpoint with its weights as a pickle, two names of one tensor among them."""
    target = shutil.copytree(make_checkpoint().folder, tmp_path / "old")
    state = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    torch.save({**state, "tied.weight": state["model.embed_tokens.weight"]}, target / PICKLE)
    return target


def test_weights_are_the_same_and_the_rest_is_copied(folder, make_checkpoint, tmp_path, capsys):
    assert main(["run", str(folder), "x"]) == 1
    assert f"`armllm convert {folder} -o FOLDER`" in capsys.readouterr().err
    assert main(["convert", str(folder), "-o", str(tmp_path / "new"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    original = load_file(make_checkpoint().folder / "model.safetensors")
    written = load_file(tmp_path / "new/model.safetensors")
    torch.testing.assert_close(written.pop("tied.weight"), original["model.embed_tokens.weight"])
    torch.testing.assert_close(written, original, rtol=0, atol=0)
    assert document["tensors"] == len(original) + 1
    assert (tmp_path / "new/tokenizer.json").is_file()
    assert not list((tmp_path / "new").glob("*.bin"))


def test_shards_keep_an_index(folder, tmp_path):
    state = torch.load(folder / PICKLE, weights_only=True)
    del state["tied.weight"]
    (folder / PICKLE).unlink()
    names = sorted(state)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / PICKLE_INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert main(["convert", str(folder), "-o", str(tmp_path / "new")]) == 0
    assert main(["info", str(tmp_path / "new")]) == 0
    assert not (tmp_path / "new" / PICKLE_INDEX).exists()


class Attack:
    def __reduce__(self):
        return (print, ("this must never be printed",))


def test_what_is_wrong_is_said_and_nothing_runs(folder, tmp_path, capsys):
    def convert(source=folder):
        assert main(["convert", str(source), "-o", str(tmp_path / "new")]) in {1, 2}
        shown = capsys.readouterr()
        assert "never be printed" not in shown.out
        assert not (tmp_path / "new").exists()
        return shown.err

    torch.save({"a": Attack()}, folder / PICKLE)
    assert "holds more than tensors" in convert()
    (folder / PICKLE).write_bytes(pickle.dumps(Attack()))
    assert "holds more than tensors" in convert()
    torch.save({"a": 1}, folder / PICKLE)
    assert "must hold tensors by their names" in convert()
    (folder / PICKLE).write_bytes(b"PK\x03\x04 no archive")
    assert "can't be read" in convert()
    (folder / PICKLE).unlink()
    assert "nothing to convert" in convert()
    (folder / PICKLE_INDEX).write_text(json.dumps({"weight_map": {"a": "../x.bin"}}))
    assert "which is no .bin file" in convert()
    (tmp_path / "there").mkdir()
    assert main(["convert", str(folder), "-o", str(tmp_path / "there")]) == 2
