"""Token ids are those of transformers, begin and end tokens included."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest
import tokenizers
import transformers

from armllm.errors import RequestError
from armllm.tokenizer import LONG_TEXT, Tokenizer

TEXTS = ["Hello there", " two  spaces ", "", "Grüße 東京 😀", "<s>already</s> marked", "line\nbreak\ttab"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False, "add_eos_token": True},
        {"add_eos_token": False},
        {"add_bos_token": True, "bos_token": None},
        {"add_bos_token": True, "bos_token": {"__type": "AddedToken", "content": "</s>"}},
    ],
)
@pytest.mark.parametrize("template", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ids_equal_those_of_transformers(tokenizer_folder, tmp_path, settings, template):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    if not template:
        tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
        tokenizer_json["post_processor"] = None
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert (
            ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        )
        ids = ours.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.eos_token_id == theirs.eos_token_id


def test_padding_and_truncation_in_the_file_do_not_reach_prompts(tokenizer_folder, tmp_path):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(folder).encode("a longer text") == Tokenizer(tokenizer_folder).encode("a longer text")


def test_long_texts_have_the_same_ids_as_their_tokenizer_gives(tokenizer_folder):
    """They go another way, which does not halt the other threads."""
    ours = Tokenizer(tokenizer_folder)
    text = "Grüße 東京 😀 and so on. " * 200
    assert len(text) > LONG_TEXT
    for special in (True, False):
        expected = ours._tokenizer.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special_tokens=special) == expected
    assert ours.longest_token == max(len(token) for token in ours._tokenizer.get_vocab())
    with pytest.raises(RequestError, match="can't be tokenized"):
        ours.encode("\ud800" * (LONG_TEXT + 1))


def test_texts_have_the_same_ids_together(tokenizer_folder, monkeypatch):
    monkeypatch.setattr("armllm.tokenizer.TEXTS", 4)
    tokenizer = Tokenizer(tokenizer_folder)
    assert list(tokenizer.encode_each(TEXTS)) == [tokenizer.encode(text) for text in TEXTS]


def test_a_server_tokenizes_on_one_core(tokenizer_folder):
    """Catches texts of a client that take the cores on which the engine computes."""
    code = (
        "import os, sys, pathlib\n"
        "from armllm import environment\n"
        "environment.tokenize_on_one_core()\n"
        "from armllm.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer(pathlib.Path(sys.argv[1]))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "list(tokenizer.encode_each(['some words'] * 100))\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-c", code, str(tokenizer_folder)]
    assert subprocess.check_output(command, env=environment, text=True) == "0\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_lose_the_tokens_that_transformers_cuts(tokenizer_folder, tmp_path, side):
    """Catches an odd token of a pair that goes to the wrong text, and the end where the begin is to go."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": side}))
    ours, theirs = Tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["a", "four words are here", "a much longer text of many words and tokens"]
    for text, most in itertools.product([*texts, "word 1 " * 300], (2, 5, 9, 40)):
        wanted = theirs(text, truncation=True, max_length=most)["input_ids"]
        assert ours.encode_beginning(text, most) == wanted, (text, most)
    for first, second in itertools.product(texts, texts):
        for most in range(2, 40):
            wanted = theirs(first, second, truncation="longest_first", max_length=most)["input_ids"]
            assert ours.encode_pair(first, second, truncate_to=most)[0] == wanted, (first, second, most)


def test_a_long_pair_is_cut_without_its_pieces(tokenizer_folder):
    """Catches gigabytes and minutes for a short request: `tokenizers` pairs all pieces of both texts."""
    ours = Tokenizer(tokenizer_folder)
    first, second = "a tree " * 20_000, "a wheel " * 20_000
    token_ids, _ = ours.encode_pair(first, second, truncate_to=9)
    short = ours.encode_pair(first[:140], second[:160], truncate_to=9)[0]
    assert token_ids == short
    assert len(token_ids) == 9


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_is_cut_before_it_is_tokenized(tokenizer_folder, monkeypatch, side):
    """Catches a query of a megabyte that is tokenized for each of two thousand documents."""
    ours = Tokenizer(tokenizer_folder)
    ours.cut_side = side
    texts = " ".join(map(str, range(20_000))), " ".join(map(str, range(20_000, 0, -1)))
    with monkeypatch.context() as patch:
        patch.setattr(ours, "_near", lambda text, _: text)
        (whole,) = ours.encode_pairs([texts], truncate_to=90)
    seen, near = [], ours._near

    def record(text, most):
        seen.append(near(text, most))
        return seen[-1]

    monkeypatch.setattr(ours, "_near", record)
    assert [*ours.encode_pairs([texts], truncate_to=90)] == [whole]
    assert len(seen) == 2
    assert max(map(len, seen)) < len(texts[0]) / 5


def test_a_pair_without_a_layout_is_refused(tmp_path):
    """Catches texts that are left out, where the tokenizer has no token for what shows their places."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "y": 1}))
    tokenizer.normalizer = tokenizers.normalizers.Replace("a", "")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RequestError, match="a pair of texts can't be cut: the tokenizer has no"):
        Tokenizer(tmp_path).encode_pair("x y x", "y", truncate_to=2)


@pytest.mark.parametrize(
    ("settings", "has_segments"),
    [
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),  # transformers 5
        (
            {"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]},
            True,
        ),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}, False),
    ],
)
def test_a_second_text_has_a_segment_where_transformers_gives_it_one(
    tokenizer_folder, tmp_path, settings, has_segments
):
    """Catches scores of pairs that differ, as each token of the second text has another embedding."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    parts = [{"Sequence": {"id": one, "type_id": number}} for number, one in enumerate("AB")]
    tokenizer_json["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts[:1],
        "pair": parts,
        "special_tokens": {},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(folder)
    expected = len(tokenizer.encode("one")) if has_segments else None
    assert tokenizer.encode_pair("one", "two")[1] == expected


def test_sentence_transformers_makes_a_text_lower_case_first(tokenizer_folder, tmp_path):
    """As BGE's files ask for; what the tokenizer itself normalizes comes behind."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": False}))
    as_written = Tokenizer(folder)
    (folder / "sentence_bert_config.json").unlink()
    # the name in its first versions
    (folder / "sentence_distilbert_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert Tokenizer(folder).encode("The FOX") == as_written.encode("the fox") != as_written.encode("The FOX")
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    tokenizer_json["normalizer"] = {"type": "Prepend", "prepend": "X"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    assert Tokenizer(folder).encode("The FOX") == as_written.encode("Xthe fox")
    lower = {"type": "Sequence", "normalizers": [tokenizer_json["normalizer"], {"type": "Lowercase"}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json | {"normalizer": lower}))
    assert Tokenizer(folder).encode("The FOX") == as_written.encode("xthe fox")
