"""The files of sentence-transformers as a stranger may write them: read, or refused in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import save_file
from tests.armllm.checkpoint.test_fuzz import json_file, run, safetensors_header

from armllm.engine.sentence_modules import (
    ACTIVATIONS,
    check_texts,
    num_scores,
    read_modes,
    read_modules,
    read_score_classes,
    warn_of_prompt,
)
from armllm.errors import CheckpointError

HIDDEN = 8
MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
    {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"},
]
POOLING = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
DENSE = {"in_features": HIDDEN, "out_features": 4, "bias": True, "activation_function": "torch.nn.Tanh"}


def read(folder):
    return read_modules(folder, HIDDEN)


@pytest.fixture
def folder(tmp_path):
    sound = tmp_path / "sound"
    for name, values in (("1_Pooling", POOLING), ("2_Dense", DENSE)):
        (sound / name).mkdir(parents=True)
        (sound / name / "config.json").write_text(json.dumps(values))
    (sound / "modules.json").write_text(json.dumps(MODULES))
    save(sound, torch.float32)
    modes, (dense,) = read(sound)
    assert (modes, dense.out_features) == (("mean",), 4)
    return sound


def save(folder, dtype):
    tensors = {"linear.weight": torch.ones(4, HIDDEN), "linear.bias": torch.ones(4)}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(tensors, folder / "2_Dense" / "model.safetensors")


def pool(folder, vector):
    """What the projections make of a pooled vector."""
    for projection in read(folder)[1]:
        vector = projection(vector)
    return vector


def change(folder, module, **values):
    path = folder / module / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_vectors_stand_side_by_side_in_the_order_of_the_file(folder):
    for listed, modes in (
        (["lasttoken", "mean"], ("last", "mean")),
        (["max", "cls", "max"], ("max", "cls", "max")),
    ):
        change(folder, "1_Pooling", pooling_mode=listed)
        change(folder, "2_Dense", in_features=HIDDEN * len(modes))
        save_file(
            {"linear.weight": torch.ones(4, HIDDEN * len(modes)), "linear.bias": torch.ones(4)},
            folder / "2_Dense" / "model.safetensors",
        )
        assert read(folder)[0] == modes


@pytest.mark.parametrize("outside", [4, HIDDEN])
def test_dense_adds_what_it_gets_or_a_projection_of_it(folder, outside):
    generator = torch.Generator().manual_seed(0)
    shapes = {"linear.weight": (outside, HIDDEN), "linear.bias": (outside,)}
    if outside != HIDDEN:
        shapes["residual.weight"] = (outside, HIDDEN)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, folder / "2_Dense" / "model.safetensors")
    change(folder, "2_Dense", use_residual=True, out_features=outside)
    x = torch.randn(HIDDEN, generator=generator)
    added = x if outside == HIDDEN else tensors["residual.weight"] @ x
    wanted = torch.tanh(tensors["linear.weight"] @ x + tensors["linear.bias"]) + added
    torch.testing.assert_close(pool(folder, x), wanted)


def test_a_vector_gets_length_1_where_the_file_says_so(folder):
    """Normalize before Dense is not the same as behind it."""
    (folder / "modules.json").write_text(json.dumps([MODULES[0], MODULES[1], MODULES[3], MODULES[2]]))
    x = torch.arange(HIDDEN).float()
    wanted = torch.tanh(torch.ones(4, HIDDEN) @ (x / x.norm()) + 1)
    torch.testing.assert_close(pool(folder, x), wanted)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_torch_s(folder, name):
    change(folder, "2_Dense", activation_function=f"torch.nn.modules.activation.{name}")
    x = torch.linspace(-1, 0.5, HIDDEN)
    wanted = getattr(torch.nn, name)()(torch.ones(4, HIDDEN) @ x + 1)
    torch.testing.assert_close(pool(folder, x), wanted)


@pytest.mark.parametrize("after", ["Pooling", "Normalize", "Dense"])
def test_layer_norm_is_torch_s(folder, after):
    """Behind each other module; as sentence-transformers 6.2 saves it."""
    place = next(index for index, one in enumerate(MODULES) if one["type"].endswith(after))
    before = [MODULES[0], MODULES[1], *([] if after == "Pooling" else [MODULES[place]])]
    kind = "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm"
    (folder / "modules.json").write_text(json.dumps([*before, {"type": kind, "path": "4_LayerNorm"}]))
    x = torch.linspace(-1, 0.5, HIDDEN)
    size = 4 if after == "Dense" else HIDDEN
    refused(folder, "4_LayerNorm/config.json is missing")
    (folder / "4_LayerNorm").mkdir()
    (folder / "4_LayerNorm" / "config.json").write_text(json.dumps({"dimension": size + 1}))
    refused(folder, f"dimension {size + 1} must be {size}")
    (folder / "4_LayerNorm" / "config.json").write_text(json.dumps({"dimension": size}))
    norm = torch.nn.LayerNorm(size)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    tensors = {f"norm.{name}": value for name, value in norm.state_dict().items()}
    save_file(tensors, folder / "4_LayerNorm" / "model.safetensors")
    wanted = {"Pooling": x, "Normalize": x / x.norm(), "Dense": torch.tanh(torch.ones(4, HIDDEN) @ x + 1)}
    torch.testing.assert_close(pool(folder, x), norm(wanted[after]).detach())
    assert read(folder)[1][-1].out_features == size


def test_dropout_is_for_training(folder):
    dropout = {"type": "sentence_transformers.models.Dropout", "path": "4_Dropout"}
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], dropout, MODULES[2]]))
    assert len(read(folder)[1]) == 1


def test_scores_of_tokens_have_another_way(folder):
    """What sentence-transformers saves for a reranker that answers "yes" or "no"."""
    scores = {"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_L"}
    (folder / "modules.json").write_text(json.dumps([MODULES[0], scores]))
    refused(folder, "module 'LogitScore' is not supported.*hf_overrides with classifier_from_token")


def test_vectors_of_tokens_are_named(folder):
    """Catches a width of 0 that nobody wrote, of a model like ColBERT, and a later module that says more."""
    (folder / "modules.json").write_text(json.dumps([MODULES[0], MODULES[2]]))
    refused(folder, "module 'Dense' without Pooling before it is not supported")
    mask = {"type": "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask", "path": "2_Mask"}
    (folder / "modules.json").write_text(json.dumps([MODULES[0], MODULES[2], mask]))
    refused(folder, "module 'MultiVectorMask' is not supported")


def test_the_model_lies_in_the_folder_itself(folder):
    """Catches a config.json of something else above the folder that has the model."""
    first = {**MODULES[0], "path": "0_Transformer"}
    (folder / "modules.json").write_text(json.dumps([first, *MODULES[1:]]))
    refused(folder, "a Transformer in another folder is not supported")


def refused(folder, message):
    began = time.process_time()
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder)
    assert time.process_time() - began < 3
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "path",
    ["../other", "/etc", "a/../../b", "a\0b", "\ud800", "a" * 5000, "..\\x", "~", "\x1b[2J", 5, None, ["a"]],
    ids=lambda path: repr(path)[:12],
)
@pytest.mark.parametrize("kind", ["Pooling", "Dense"])
def test_a_path_that_leads_out_or_nowhere(folder, kind, path):
    modules = [{**one, "path": path} if one["type"].endswith(kind) else one for one in MODULES]
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(folder, "is not a folder below it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "must hold a list of modules"),
        ("[1]", "must hold a list of modules"),
        ('[{"type":["Dense"]}]', "must hold a list of modules"),
        ('[{"type":"\\u001b[2J"}]', r"module '\\x1b\[2J' is not supported"),
        ('[{"type":"os.system","path":"id"}]', "module 'os.system' is not supported"),
        (json.dumps([{"type": "custom_st.Transformer"}]), "module 'custom_st.Transformer' is not supported"),
        (json.dumps([*MODULES[:2], *MODULES[2:3] * 100_000]), "lists 100002 modules"),
        (json.dumps([MODULES[1], {"type": "Dense", "path": "4_Dense"}]), "4_Dense/config.json is missing"),
    ],
    ids=["object", "number", "list", "control", "a program", "of others", "many", "missing"],
)
def test_modules_that_are_none(folder, text, message):
    (folder / "modules.json").write_text(text)
    refused(folder, message)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("1_Pooling", {"pooling_mode": [{"a": 1}]}, "asks for {'a': 1}"),
        ("1_Pooling", {"pooling_mode": "x" * 10**6}, "asks for xxx"),
        ("1_Pooling", {"pooling_mode_mean_tokens": "yes"}, "asks for no pooling"),
        ("2_Dense", {"in_features": 2**40}, "in_features is larger than any model's"),
        ("2_Dense", {"out_features": 2**20 + 1}, "out_features at most 1048576"),
        ("2_Dense", {"out_features": 1_000_000}, r"must hold linear.weight of shape \[1000000, 8\]"),
        ("2_Dense", {"out_features": float("nan")}, "must be a positive integer"),
        ("2_Dense", {"activation_function": "os.system"}, "activation_function 'system' is not supported"),
        ("2_Dense", {"bias": "x"}, "bias must be true or false"),
        ("2_Dense", {"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings' is not"),
        ("2_Dense", {"module_output_name": "x"}, "module_output_name 'x' is not supported"),
        ("2_Dense", {"use_residual": True}, r"must hold residual.weight of shape \[4, 8\]"),
    ],
)
def test_settings_that_no_module_has(folder, name, values, message):
    path = folder / name / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    refused(folder, message)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"prompts": {"query": "query: ", "passage": ""}, "default_prompt_name": "query"}, ["query: "]),
        ({"prompts": {"query": "query: ", "passage": ""}, "default_prompt_name": "passage"}, []),
        ({"prompts": {"query": "query: "}, "default_prompt_name": None}, []),
        ({"prompts": ["query: "], "default_prompt_name": "query"}, []),
        ({"prompts": {"query": 1}, "default_prompt_name": ["query"]}, []),
        (None, []),
    ],
)
def test_a_prompt_by_default_is_never_left_out_in_silence(folder, caplog, settings, warned):
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    warn_of_prompt(folder)
    assert len(caplog.messages) == len(warned)
    assert all(prompt in message for prompt, message in zip(warned, caplog.messages, strict=True))


@pytest.mark.parametrize(
    ("mode", "warned"), [("mean", True), ("lasttoken", False), ("cls", True), (["cls", "lasttoken"], True)]
)
def test_tokens_of_a_prompt_are_not_pooled_in_silence(folder, caplog, mode, warned):
    """The pooling cls takes the first token behind such a prompt in sentence-transformers 6."""
    values = {"pooling_mode": mode, "include_prompt": False}
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps(values))
    read_modes(path)
    assert ("include_prompt is false" in caplog.text) is warned


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"modality_config": {"text": {}, "message": {"format": "flat"}}}, ["into the chat template"]),
        ({"modality_config": {"text": {}}, "processing_kwargs": {}}, []),
        ({"modality_config": ["message"], "module_output_name": None}, []),
    ],
)
def test_what_is_done_to_each_text_is_never_left_out_in_silence(folder, caplog, settings, warned):
    """What sentence-transformers 6.2 saves for a tokenizer with a chat template, or with options for it."""
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    check_texts(folder, has_classes=False)
    assert len(caplog.messages) == len(warned)
    assert all(part in message for part, message in zip(warned, caplog.messages, strict=True))


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (
            {"text": {"add_special_tokens": False}},
            "processing_kwargs.text: 'add_special_tokens' is not supported",
        ),
        ({"text": {"truncation": "only_first"}}, "processing_kwargs.text.truncation 'only_first' is not"),
        ({"text": {"max_length": "6"}}, "processing_kwargs.text.max_length must be a positive integer"),
        ({"common": {"max_length": 6}}, "processing_kwargs.common: 'max_length' is not supported"),
        ({"text": 6}, "processing_kwargs must be an object of objects"),
        ([6], "processing_kwargs must be an object of objects"),
    ],
)
def test_options_that_change_texts_are_refused(folder, passed, message):
    """Catches texts that are tokenized in another way than their authors'."""
    (folder / "sentence_bert_config.json").write_text(json.dumps({"processing_kwargs": passed}))
    with pytest.raises(CheckpointError, match=message):
        check_texts(folder, has_classes=False)


def test_scores_of_a_dense_module_are_the_end(folder):
    """Catches a vector that was made of scores, and scores that are taken for a vector."""
    assert num_scores(read(folder)[1]) is None
    change(folder, "2_Dense", module_output_name="scores")
    refused(folder, "module 'Normalize' behind scores is not supported")
    (folder / "modules.json").write_text(json.dumps(MODULES[:3]))
    assert num_scores(read(folder)[1]) == 4


@pytest.mark.parametrize(
    ("settings", "count", "activation"),
    [
        (None, 1, "sigmoid"),
        (None, 3, "none"),
        ({"activation_fn": None}, 1, "sigmoid"),
        ({"activation_fn": "torch.nn.modules.activation.Softmax"}, 3, "softmax"),
        ({"activation_fn": "torch.nn.modules.linear.Identity"}, 1, "none"),
    ],
)
def test_scores_have_the_activation_of_sentence_transformers(folder, settings, count, activation):
    path = folder / "config_sentence_transformers.json"
    if settings is not None:
        path.write_text(json.dumps(settings))
    found = read_score_classes(folder, count)
    assert (len(found.labels), found.activation) == (count, activation)
    path.write_text(json.dumps({"activation_fn": "torch.nn.modules.activation.Tanh"}))
    with pytest.raises(CheckpointError, match=r"activation 'torch.nn.modules.activation.Tanh' of"):
        read_score_classes(folder, count)


def test_a_model_gives_states_of_tokens(folder):
    """Catches the mean of all tokens where the file says that BERT's pooler makes the vector."""
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"module_output_name": "sentence_embedding"}))
    with pytest.raises(CheckpointError, match="module_output_name 'sentence_embedding' is not supported"):
        check_texts(folder, has_classes=False)
    path.write_text(json.dumps({"module_output_name": "scores"}))
    check_texts(folder, has_classes=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_weights_of_another_type(folder, dtype):
    save(folder, dtype)
    refused(folder, "has dtype")


def test_what_is_no_file(folder):
    (folder / "2_Dense" / "model.safetensors").unlink()
    refused(folder, r"has no model.safetensors")
    os.mkfifo(folder / "2_Dense" / "model.safetensors")
    refused(folder, r"has no model.safetensors")
    shutil.rmtree(folder / "2_Dense")
    (folder / "2_Dense").symlink_to("/dev")
    refused(folder, "config.json is missing")


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "2_Dense/config.json"])
def test_changed_settings(folder, tmp_path, name):
    run(f"sentence {name}", folder, tmp_path / "changed", json_file(name), read)


def test_changed_weights(folder, tmp_path):
    change = safetensors_header("2_Dense/model.safetensors")
    run("sentence weights", folder, tmp_path / "changed", change, read)
