"""Checkpoints made to harm are refused in a sentence, before they take time or memory."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct

import pytest
from tests.armllm.checkpoint.gguf_files import KINDS, write_gguf
from tests.armllm.checkpoint.opening import open_checkpoint

from armllm.checkpoint import gguf_header, json_file, safetensors_file, tokenizer_limits
from armllm.checkpoint.gguf_file import GGUFFile
from armllm.errors import CheckpointError
from armllm.smoke.passages import MODEL


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(MODEL, tmp_path / "model")


def refused(path, *parts):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 900
    for part in (str(path), *parts):
        assert part in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_or_a_device_in_place_of_a_file(folder, name):
    """To open a pipe waits for ever, and to read /dev/zero takes all memory."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, name)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    refused(folder, name)


def test_a_file_of_gguf_with_more_parts_than_there_are_files(tmp_path):
    """To list them takes all memory; and a part may be a pipe."""
    for count in (1 << 40, 2):
        values = {b"split.count": count, b"split.no": 0}
        header = b"".join(
            struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 10, value) for key, value in values.items()
        )
        path = tmp_path / f"model-00001-of-{count:05d}.gguf"
        path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values)) + header)
        os.mkfifo(tmp_path / f"model-00002-of-{count:05d}.gguf")
        with pytest.raises(CheckpointError, match=r"has 1,099,511,627,776 parts; no more|is no regular file"):
            GGUFFile(path)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def write_header(path, header, length=None):
    """A safetensors file of a header alone."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)


@pytest.mark.parametrize("token_id", [768, -1, 10**40, [0, 768]])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_end_token_outside_of_the_vocabulary(folder, name, token_id):
    """min_tokens would write into a row of logits that ends before it."""
    path = folder / name
    path.write_text(path.read_text() if path.exists() else "{}")
    change(path, eos_token_id=token_id)
    refused(folder, name, "is no token: the vocabulary has 768")


@pytest.mark.parametrize("depth", [40, 900, 100_000])
@pytest.mark.parametrize("brackets", ["[]", ("{'a':".replace("'", '"'), "}")])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_nested_json(folder, name, brackets, depth):
    (folder / name).write_text('{"rope_scaling": ' + brackets[0] * depth + "1" + brackets[1] * depth + "}")
    refused(folder, name, "nested deeper than 32 levels")


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_nested_tokenizer(folder, depth):
    text = '{"type":"Sequence","normalizers":[' * depth + "]}" * depth
    change(folder / "tokenizer.json", normalizer=None)
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(whole.replace('"normalizer": null', f'"normalizer": {text}'))
    refused(folder, "tokenizer.json is not a tokenizer that")


@pytest.mark.parametrize("depth", [100, 1_000_000])
def test_a_nested_header_of_safetensors(folder, depth):
    write_header(folder / "model.safetensors", b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    refused(folder, "can't be read as safetensors")


def test_names_do_not_reach_a_terminal_as_commands(folder):
    """A tensor's name could clear the screen, or write a line that looks like ours."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    extra = {"\x1b[2J\n\u202e\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    write_header(path, json.loads(content[8 : 8 + length]) | extra)
    with path.open("ab") as file:
        file.write(content[8 + length :])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).isprintable()


def test_a_header_that_is_too_long_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(safetensors_file, "MAX_HEADER", 100)
    refused(folder, "its header has 3,072 bytes; one of more than 100 is not read")


def test_a_tensor_of_many_dimensions(folder):
    stored = {"dtype": "F32", "shape": [1] * 500_000, "data_offsets": [0, 4]}
    write_header(folder / "model.safetensors", {"a": stored})
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(4))
    refused(folder, "tensor a has 500000 dimensions; no more than 8 are taken")


def test_large_files_are_not_read(folder, monkeypatch):
    monkeypatch.setattr(json_file, "MAX_BYTES", 100)
    refused(folder, "config.json has", "bytes; one of more than 100 is not read")
    monkeypatch.undo()
    monkeypatch.setattr(tokenizer_limits, "MAX_BYTES", 100)
    refused(folder, "tokenizer.json has", "bytes; one of more than 100 is not read")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 2**31 - 1}, "hidden_size is 2147483647: no model has more"),
        ({"head_dim": 2**31 - 2}, "head_dim is 2147483646: no model has more"),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2**31 - 1},
            "experts per layer: no model",
        ),
        ({"vocab_size": 2**31 - 1}, "config.json wants [2147483647,"),
        ({"intermediate_size": 2**31 - 1, "num_hidden_layers": 10_000}, "(and 999 more problems)"),
        ({"hidden_act": "x" * 10**6}, "hidden_act 'xxxx"),
    ],
)
def test_sizes_of_no_model(folder, values, message):
    """What is made for each of them, or said of them, would take all memory before a tensor is missed."""
    change(folder / "config.json", **values)
    refused(folder, message)


def tokenizer_with(folder, **parts):
    change(folder / "tokenizer.json", **parts)


def test_a_long_token(folder):
    """It would be one token of an answer."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    token = next(reversed(model["vocab"]))
    model["vocab"]["x" * 600_000] = model["vocab"].pop(token)
    model["merges"] = []
    tokenizer_with(folder, model=model)
    refused(folder, "has a token of 600,000 characters; one of more than 1,024 is not taken")


@pytest.mark.parametrize("ids", [[768], [2**32 - 1]])
def test_a_post_processor_that_adds_tokens_that_are_not(folder, ids):
    token = {"id": "<|begin|>", "ids": ids, "tokens": ["<|begin|>"]}
    around = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": around, "pair": around}
    tokenizer_with(folder, post_processor=template | {"special_tokens": {"<|begin|>": token}})
    refused(folder, f"post_processor adds token {ids[0]}, which is not in its vocabulary")
    token["ids"], token["tokens"] = [0] * 1000, ["<|begin|>"] * 1000
    tokenizer_with(folder, post_processor=template | {"special_tokens": {"<|begin|>": token}})
    refused(folder, "puts 1,000 tokens around a prompt; no more than 64 are taken")


@pytest.mark.parametrize("within", [False, True])
def test_a_post_processor_of_an_undefined_token(folder, capfd, within):
    """The library would panic, and write a trace to the terminal."""
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    step = {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": {}}
    if within:
        step = {"type": "Sequence", "processors": [step]}
    tokenizer_with(folder, post_processor=step)
    refused(folder, "its post_processor puts '<s>' around a prompt, which its special_tokens lack")
    assert "panicked" not in capfd.readouterr().err


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


CHARSMAP = base64.b64encode(struct.pack("<I", 1024) + bytes(1024) + b"a" * 200 + b"\0").decode()


@pytest.mark.parametrize(
    "steps",
    [
        [replace("aaaaaaaaaa", String="a")] * 20,
        [replace("aa", Regex="a")] * 20,
        [replace("ab" * 100, String="")],
        [{"type": "Prepend", "prepend": "a" * 1000}],
        [{"type": "ByteLevel"}] * 10,
        [{"type": "Sequence", "normalizers": [replace("aaaa", String="a")]}] * 8,
        [{"type": "Precompiled", "precompiled_charsmap": CHARSMAP}],
    ],
    ids=["chain", "expression", "nothing", "prepend", "bytes", "sequences", "table"],
)
def test_a_text_that_grows(folder, steps):
    """Ten letters for one, twenty times, are more than any memory holds."""
    tokenizer_with(folder, normalizer={"type": "Sequence", "normalizers": steps})
    refused(folder, "its normalizer may make", "characters of one; no more than 128 are taken")


def test_an_answer_that_grows(folder):
    steps = [replace("aaaaaaaaaa", String="a")] * 20
    tokenizer_with(folder, decoder={"type": "Sequence", "decoders": steps})
    refused(folder, "its decoder may make 1,000,000,000 characters of one")


def test_usual_normalizers_are_taken(folder):
    """SentencePiece's, as Llama, Gemma and T5 have it."""
    table = struct.pack("<I", 1024) + bytes(1024) + b"fi\0"
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
        {"type": "Prepend", "prepend": "\u2581"},
        replace("\u2581", String=" "),
        replace("\u2581", Regex=" {2,}"),
        {"type": "NFKC"},
    ]
    tokenizer_with(folder, normalizer={"type": "Sequence", "normalizers": steps})
    open_checkpoint(folder)


@pytest.mark.parametrize(
    "charsmap",
    [
        "!",
        "AAAA",
        "AAAAAA==",
        "/////w==",
        "AAAAAB==",
        base64.b64encode(b"\4\0\0\0" + bytes(4) + b"\xff\0").decode(),
    ],
    ids=["base64", "short", "empty", "trie", "bits", "utf-8"],
)
def test_a_damaged_table_of_replacements(folder, capfd, charsmap):
    """The library would panic, and write a trace to the terminal."""
    tokenizer_with(folder, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})
    refused(folder, "the precompiled_charsmap of its normalizer is damaged")
    assert "panicked" not in capfd.readouterr().err


def gguf_with(llama_file, key, value):
    """A GGUF file with a tokenizer, one of whose values is replaced by another."""
    path, arch, model = llama_file
    values = {
        "model": "llama", "tokens": ["<unk>", "a", "b", "ab"], "scores": [0.0, -1.0, -2.0, -3.0],
        "token_type": [2, 1, 1, 1], "unknown_token_id": 0,
    } | {key: value}  # fmt: skip
    add = {str: "add_string", int: "add_uint32", list: "add_array"}

    def fill(writer):
        for name, one in values.items():
            getattr(writer, add[type(one)])(f"tokenizer.ggml.{name}", one)

    write_gguf(path, arch, model, KINDS.F32, fill)
    return path


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("token_type", 5, "token_type must be a list of one type per token, not 5"),
        ("token_type", [1, 1], "token_type must be a list of one type per token"),
        ("token_type", [1, 1, 1, 7], "token_type has 7, which is none of llama.cpp's types"),
        ("tokens", [1, 2, 3, 4], "tokens must be a list of texts"),
        ("tokens", ["<unk>", "a", "b", "x" * 600_000], "tokens has one of 600,000 characters"),
        ("scores", [1, 2, 3, 4], "scores must be a list of numbers"),
        ("merges", 5, "merges must be a list of texts"),
        ("unknown_token_id", 4, "unknown_token_id is 4, and there are 4 tokens"),
        ("eos_token_id", 384_000, "eos_token_id 384000 is no token"),
    ],
)
def test_a_tokenizer_in_gguf_of_odd_lists(llama_file, key, value, message):
    refused(gguf_with(llama_file, key, value), message)


def test_unused_tokens_are_taken(llama_file):
    """What llama.cpp's converter fills a vocabulary up with."""
    open_checkpoint(gguf_with(llama_file, "token_type", [2, 1, 1, 5]))


def string(text):
    return struct.pack("<Q", len(text)) + text


def header(num_tensors, values, tensors=b""):
    entries = b"".join(string(key) + value for key, value in values)
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(values)) + entries + tensors


NESTED = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(0, [(b"a", NESTED)]), "a value is an array of arrays"),
        (
            header(0, [(b"a", struct.pack("<IIQ", 9, 8, 1 << 60))]),
            "a value is an array of 1152921504606846976",
        ),
        (
            header(0, [(b"a", struct.pack("<IIQ", 9, 0, 1 << 23) + bytes(1 << 23))]),
            "an array of 8388608 items",
        ),
        (header(1 << 60, []), "it announces 1152921504606846976 tensors"),
        (
            header(
                1, [], string(b"t") + struct.pack("<I", 500_000) + struct.pack("<Q", 1) * 500_000 + bytes(12)
            ),
            "tensor t has 500000 dimensions, and GGUF's have 4",
        ),
    ],
    ids=["nested", "endless", "long", "tensors", "dimensions"],
)
def test_a_header_of_gguf_that_grows(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(content + bytes(64))
    refused(path, message)


def test_a_long_header_of_gguf_is_not_read(llama_file, monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_HEADER", 500)
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    refused(path, "its header has more than 500 bytes")


def test_limits_leave_room_for_real_files():
    """The largest known: Gemma 3's tokenizer, an index of 91,000 tensors."""
    assert tokenizer_limits.MAX_BYTES > 34_000_000
    assert json_file.MAX_BYTES > 10_000_000
    assert safetensors_file.MAX_HEADER > 15_000_000
    assert gguf_header.MAX_ITEMS > 1_000_000
