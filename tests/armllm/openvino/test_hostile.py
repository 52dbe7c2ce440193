"""An IR made to harm, or damaged, is refused in a sentence, in place of what OpenVINO raises."""

from __future__ import annotations

import json
import os
import re
import shutil

import openvino
import pytest
import torch
from tests.armllm.checkpoint.test_fuzz import COUNT, USUAL, json_file, run
from tests.armllm.openvino.test_runner import IR, OPTIONS

from armllm import LLM
from armllm.errors import CheckpointError
from armllm.openvino import graph
from armllm.openvino.graph import Graph, Precision
from armllm.smoke.passages import MODEL

XML, BIN = "openvino_model.xml", "openvino_model.bin"
SOUND = (IR / XML).read_text()
HEAD = '<?xml version="1.0"?>'
ENTITIES = "".join(f'<!ENTITY e{index} "{f"&e{index - 1};" * 10}">' for index in range(1, 20))
NUMBERS = ["0", "-1", "1", "3", "65", "?", "", "x", "1e400", str(2**31 - 1), str(2**63), "9" * 30, "1," * 9]
NUMBER = re.compile(r'"(-?\d+|[?,\d]+)"|>(-?\d+)<')
NAME = re.compile(r'(type|element_type|precision|version|name|names)="[^"]+"')
LAYER = re.compile(r"<layer .*?</layer>|<edge .*?/>", re.DOTALL)


def read(folder):
    read_graph = Graph(folder, Precision(dtype=torch.float32, cache=torch.float32), 1)
    read_graph.allocate(4)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(IR, tmp_path / "model")


def refused(folder, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        LLM(str(folder), num_gpu_blocks_override=4, **OPTIONS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "OpenVINO does not take it"),
        ("<a>" * 500_000, "tags mismatch"),
        ("node {\n op: '\x1b[2J' }", "OpenVINO does not take it"),  # of TensorFlow, which would be read, too
        (SOUND.replace('offset="0" size="4"', 'offset="0" size="4000000000000"', 1), "bin file"),
        (SOUND.replace('offset="0" size="4"', f'offset="{2**64 - 4}" size="8"', 1), "does not take it"),
        (
            SOUND.replace("position_ids", "pixel_values"),
            "models for pictures, and those with recurrent layers",
        ),
        (SOUND.replace('names="input_ids"', f'names="{"../" * 10**5}\x1b[2J"'), "does not take it"),
    ],
    ids=[
        "empty",
        "deep",
        "another format",
        "beyond the file",
        "an offset that wraps",
        "of a picture",
        "a path as a name",
    ],
)
def test_a_graph_that_is_none(folder, text, message, capfd):
    (folder / XML).write_text(text)
    refused(folder, message)
    assert "\x1b" not in "".join(capfd.readouterr())


def test_a_cache_that_no_input_chooses(folder):
    model = openvino.Core().read_model(IR / XML)
    beams = next(one for one in model.get_parameters() if one.get_friendly_name() == "beam_idx")
    for port in list(beams.output(0).get_target_inputs()):
        gather = port.get_node()
        gather.output(0).replace(gather.input_value(0))
    model.remove_parameter(beams)
    openvino.save_model(model, folder / XML)
    refused(folder, "no input beam_idx, .* .* or leave out --backend for an encoder")


def test_a_model_of_several_graphs(folder):
    """Its config.json would be blamed, or optimum-intel would be asked to convert the folder."""
    for name in (XML, BIN):
        (folder / name).rename(folder / name.replace("model", "language_model"))
    refused(folder, "has openvino_language_model.xml in place of .*: models of several graphs")


@pytest.mark.parametrize(
    "entity", [f'<!ENTITY e0 "{"a" * 50}">{ENTITIES}', '<!ENTITY e19 SYSTEM "/dev/zero">']
)
def test_entities_stay_as_they_are(folder, entity):
    """Ten times ten times and so on would be more than any memory, and a file is another's."""
    changed = SOUND.replace(HEAD, f"{HEAD}<!DOCTYPE net [{entity}]>").replace('"Model0"', '"&e19;"')
    (folder / XML).write_text(changed)
    read(folder)


@pytest.mark.parametrize("name", [XML, BIN])
def test_what_is_no_file(folder, name):
    (folder / name).unlink()
    if name == BIN:
        refused(folder, "openvino_model.bin is missing")
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(shutil.copy(folder / BIN, folder / "other.onnx"))
        refused(folder, "OpenVINO does not take it")
        return
    refused(folder, "is no regular file")


def test_a_long_file_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(graph, "LONGEST_XML", 1000)
    refused(folder, "one of more than 1,000 is not read")


def damage(folder, rng):
    """Numbers, names, layers and edges of the graph, or bytes of its weights."""
    text, data = (folder / XML).read_text(), bytearray((folder / BIN).read_bytes())
    for _ in range(rng.choice([1, 1, 2, 4])):
        how = rng.randrange(5)
        if how == 0:
            place = rng.choice(list(NUMBER.finditer(text)))
            start, end = next(span for span in (place.span(1), place.span(2)) if span[0] >= 0)
            text = text[:start] + rng.choice(NUMBERS) + text[end:]
        elif how in (1, 2):
            places = list((NAME if how == 1 else LAYER).finditer(text))
            place, other = rng.choice(places), rng.choice(places).group()
            text = text[: place.start()] + rng.choice(["", other, other * 2]) + text[place.end() :]
        elif how == 3:
            start = rng.randrange(len(text))
            text = text[:start] + rng.choice(["<", "\0", "]]>", "&a;", '"']) + text[start + 1 :]
        else:
            start = rng.randrange(len(data) + 1)
            data[start:] = rng.choice([b"", rng.randbytes(8) + data[start + 8 :]])
    (folder / XML).write_text(text)
    (folder / BIN).write_bytes(data)


def test_changed_graphs(tmp_path):
    run("openvino", IR, tmp_path / "changed", damage, read, count=12 if COUNT == USUAL else COUNT)


def with_texts(folder):
    """The IR with a tokenizer of its size, and settings of how to sample."""
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    model, size = tokenizer["model"], json.loads((IR / "config.json").read_text())["vocab_size"]
    model["vocab"] = {text: index for text, index in model["vocab"].items() if index < size}
    model["merges"] = [
        merge for merge in model["merges"] if {*merge, "".join(merge)} <= model["vocab"].keys()
    ]
    shutil.copytree(IR, folder)
    shutil.copy(MODEL / "tokenizer_config.json", folder)
    sampling = {
        "eos_token_id": [1, 2],
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    return folder


def start(folder):
    """Read all that a start reads, and write a text."""
    llm = LLM(str(folder), backend="openvino", dtype="float32", num_gpu_blocks_override=4)
    llm.generate("The quick", use_tqdm=False)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_changed_files_beside_a_graph(tmp_path, name):
    sound = with_texts(tmp_path / "sound")
    start(sound)
    run(f"openvino {name}", sound, tmp_path / "changed", json_file(name), start, count=COUNT // 4)
