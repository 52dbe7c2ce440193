"""Whatever is changed in a checkpoint's files, the answer is a checkpoint or one of the project's own errors.

ARMLLM_FUZZ is the number of changed files per kind; a long run says which took longest and the most memory.
ARMLLM_SEED makes others.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import resource
import shutil
import struct
import time

import pytest
from tests.armllm.adapters import write_adapter
from tests.armllm.checkpoint.gguf_files import KINDS, write_gguf
from tests.armllm.checkpoint.opening import TEXT, open_checkpoint
from tests.armllm.checkpoint.test_adapter import Modules
from tests.armllm.checkpoint.test_adapter import read as read_adapter

from armllm.errors import ArmllmError
from armllm.smoke.passages import MIXTURE, MODEL
from armllm.tokenizer import Tokenizer

USUAL = 50
SECONDS, MEGABYTES = 10, 1024  # of CPU time, and of memory
COUNT = int(os.environ.get("ARMLLM_FUZZ", USUAL))
SEED = os.environ.get("ARMLLM_SEED", "")
SAME_SIZE = (
    ("F64", "I64", "U64"), ("F32", "I32", "U32"), ("F16", "BF16", "I16", "U16"),
    ("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL"),
)  # fmt: skip
ODD = [
    None, True, 0, -1, 1, 3, 0.5, 1e400, 2**31, 2**63, 10**30, "", "x", "a" * 5000, "\ud800", [], [[]], {},
    {"a": 1}, [1] * 5000, "F32", "Replace", "Sequence", "\u2581", [0, 0], [0, 2**40], [2**20, 2**20, 2**20],
]  # fmt: skip


def nested(depth):
    value = {}
    for _ in range(depth):
        value = [value]
    return value


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:200]:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(document, rng):
    """The document with up to three values replaced, removed, moved or repeated."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 2, 3])):
        known = list(places(document))
        if not known:
            return document
        *path, key = rng.choice(known)
        target = document
        for step in path:
            target = target[step]
        how = rng.randrange(6)
        if how == 0:
            del target[key]
        elif how == 1:
            target[key] = [copy.deepcopy(target[key])] * rng.choice([1, 2, 30])
        elif how == 2:
            target[key] = nested(rng.choice([3, 40, 400]))
        elif how == 3 and isinstance(target, dict):
            target[rng.choice([str(key) + "x", "type", "", "a" * 3000])] = target.pop(key)
        elif how == 4 and isinstance(target[key], (int, float)):
            target[key] = target[key] * rng.choice([-1, 2, 1000, 2**32]) + rng.choice([0, 1])
        else:
            target[key] = copy.deepcopy(rng.choice(ODD))
    return document


def damaged(data, rng, first, last):
    """Bytes between two places replaced, numbers of 8 bytes too, removed or put in."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 10])):
        place, how = rng.randrange(first, max(first + 1, min(last, len(data)))), rng.randrange(5)
        if how == 0:
            number = rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
            data[place : place + 8] = struct.pack("<Q", number)
        elif how == 1:
            del data[place : place + rng.choice([1, 4, 8, 100])]
        elif how == 2:
            data[place:place] = rng.choice([b"\0" * 8, b"[" * 500, data[first : first + 50]])
        else:
            data[place : place + 1] = bytes([rng.choice([0, 1, 9, 255, rng.randrange(256)])])
    return bytes(data)


def json_file(name):
    def mutate(folder, rng):
        path = folder / name
        if rng.random() < 0.2:
            path.write_bytes(damaged(path.read_bytes(), rng, 0, 4000))
        else:
            path.write_text(json.dumps(changed(json.loads(path.read_text()), rng)))

    return mutate


def safetensors_header(name):
    def mutate(folder, rng):
        path = folder / name
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        if rng.random() < 0.3:
            path.write_bytes(damaged(data, rng, 0, end))
            return
        entries, tensors = json.loads(data[8:end]), data[end:]
        if rng.random() < 0.5:
            entries = changed(entries, rng)
        else:  # sound, so that what comes after the header is reached
            entries, tensors = reworded(entries, rng), noise(tensors, rng)
        header = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + tensors)

    return mutate


def reworded(entries, rng):
    """Another header that is sound: tensors in another order or place, with types of the same size."""
    names = [name for name in entries if name != "__metadata__"]
    entries = {name: entries[name] for name in rng.sample(list(entries), len(entries))}
    for _ in range(rng.choice([0, 1, 3])):
        one = entries[rng.choice(names)]
        size = one["data_offsets"][1] - one["data_offsets"][0]
        same = [e for e in map(entries.get, names) if e["data_offsets"][1] - e["data_offsets"][0] == size]
        other = rng.choice(same)
        how = rng.randrange(4)
        if how == 0:
            one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
        elif how == 1:
            one["shape"] = rng.choice([one["shape"][::-1], [1, *one["shape"]], [math.prod(one["shape"])]])
        elif how == 2:
            types = next(group for group in SAME_SIZE if one["dtype"] in group)
            one["dtype"] = rng.choice(types)
        else:
            entries["__metadata__"] = {"format": rng.choice(["pt", "np", "\x1b[2J", "x" * 5000])}
    return entries


def noise(data, rng):
    """Numbers in the middle of tensors become NaN, infinite, large or something else."""
    data = bytearray(data)
    for _ in range(rng.choice([0, 1, 30])):
        place = rng.randrange(max(1, len(data)))
        odd = rng.choice(
            [b"\xff" * 4, b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x00\x7c", rng.randbytes(64)]
        )
        end = place + len(odd)
        data[place:end] = odd[: max(0, len(data) - place)]
    return bytes(data)


def gguf_header(path, rng):
    path.write_bytes(damaged(path.read_bytes(), rng, 0, 2500))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def gguf_file(llama_file):
    path, arch, model = llama_file

    def fill(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a", "b", "ab"])
        writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, -2.0, -3.0])
        writer.add_token_types([2, 1, 1, 1])
        writer.add_eos_token_id(3)

    write_gguf(path, arch, model, KINDS.F32, fill)
    return path


def run(kind, sound, place, mutate, read=open_checkpoint, *, count=COUNT):
    """``read`` ``count`` changed copies of ``sound``, a folder or a file, at ``place``."""
    slowest, before = (0.0, -1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened = 0
    for number in range(count):
        rng = random.Random(f"{SEED}{kind} {number}")  # noqa: S311 - test data
        if sound.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(sound, place)
        else:
            shutil.copyfile(sound, place)
        mutate(place, rng)
        began = time.process_time()
        try:
            read(place)
        except ArmllmError as error:
            message = str(error)
        except BaseException as error:
            raise AssertionError(f"{kind} {number}: {error!r:.500}") from error
        else:
            message = ""
            opened += 1
        assert "\n" not in message, (kind, number)
        assert len(message) < 1500, (kind, number)
        slowest = max(slowest, (time.process_time() - began, number))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert slowest[0] < SECONDS, (kind, slowest)
    assert grown < MEGABYTES, kind
    if COUNT > USUAL:
        print(f"\n{kind}: {opened} of {count} opened, slowest {slowest[0]:.2f} s, {grown} MB more")


@pytest.mark.parametrize("model", [MODEL, MIXTURE], ids=["model", "mixture"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_changed_json_files(folder, model, name):
    run(f"{name} {model.name}", model, folder, json_file(name))


def test_changed_headers_of_safetensors(folder):
    run("safetensors", MODEL, folder, safetensors_header("model.safetensors"))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_changed_adapters(tmp_path, name):
    sound = write_adapter(tmp_path / "sound", Modules(), ("q_proj", "up_proj"))
    mutate = json_file(name) if name.endswith(".json") else safetensors_header(name)
    run(name, sound, tmp_path / "changed", mutate, read_adapter)


def test_changed_headers_of_gguf(gguf_file, tmp_path):
    run("gguf", gguf_file, tmp_path / "changed.gguf", gguf_header)


def lines_of(name):
    """Changes a file of lines: bytes, lines that come twice, are missing, or are long."""

    def mutate(folder, rng):
        path = folder / name
        if rng.random() < 0.4:
            path.write_bytes(damaged(path.read_bytes(), rng, 0, 3000))
            return
        lines = path.read_bytes().split(b"\n")
        for _ in range(rng.choice([1, 3, 20])):
            place = rng.randrange(len(lines))
            odd = [b"", b" ", lines[0], lines[place] * 2, b"a" * 700_000, b"\xff", b"##", b"a b c", b"\0"]
            lines[place : place + rng.choice([0, 1, 30])] = [rng.choice(odd)]
        path.write_bytes(b"\n".join(lines))

    return mutate


def read_tokenizer(folder):
    tokenizer = Tokenizer(folder)
    tokenizer.decode(tokenizer.encode(TEXT))


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json"])
def test_changed_tokenizers_of_older_forms(tmp_path, name):
    (sound := tmp_path / "sound").mkdir()
    settings = {"do_lower_case": True, "unk_token": "[UNK]", "errors": "replace", "add_prefix_space": False}
    if name == "vocab.txt":
        pieces = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            "the",
            "quick",
            "##er",
            *map(chr, range(33, 127)),
        ]
        (sound / name).write_text("\n".join(pieces) + "\n")
    else:
        model = json.loads((MODEL / "tokenizer.json").read_text())["model"]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (sound / "vocab.json").write_text(json.dumps(model["vocab"]))
        (sound / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
        settings = {"tokenizer_class": "GPT2Tokenizer", "errors": "replace", "add_prefix_space": False}
    (sound / "tokenizer_config.json").write_text(json.dumps(settings))
    read_tokenizer(sound)
    mutate = json_file(name) if name.endswith(".json") else lines_of(name)
    run(f"older {name}", sound, tmp_path / "changed", mutate, read_tokenizer)
