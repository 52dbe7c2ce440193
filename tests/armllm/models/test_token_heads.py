"""BGE-M3's sparse and multi-vector results are those of its authors' formulas, on states of transformers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tests.armllm.models.encoder_configs import prompts, random_config, save_reference

from armllm import LLM, PoolingParams
from armllm.cli import main
from armllm.errors import CheckpointError, RequestError

BEGIN, END = 0, 2
ENDS = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": 1}


def save_published(folder, architecture="XLMRobertaModel"):
    """As BAAI/bge-m3 is published: a pickle of the encoder, and one of each head."""
    config = random_config("XLMRobertaModel", 0) | ENDS
    model = save_reference(folder, config)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    size = config["hidden_size"]
    heads = torch.nn.Linear(size, 1), torch.nn.Linear(size, size)
    for head, name in zip(heads, ("sparse_linear", "colbert_linear"), strict=True):
        torch.save(head.half().state_dict(), folder / f"{name}.pt")
        head.float()
    return model, *heads


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The model and its heads in torch, and the folder that is made of the published one."""
    folder = tmp_path_factory.mktemp("published")
    parts = save_published(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    assert main(["convert", str(folder), "-o", str(folder / "../m3")]) == 0
    return folder.parent / "m3", parts


@torch.inference_mode()
def expected(parts, token_ids):
    """Dense, sparse and multi-vector results, as FlagEmbedding's ``BGEM3Model`` computes them."""
    model, sparse, colbert = parts
    states = model(torch.tensor([token_ids])).last_hidden_state[0]
    weights = torch.relu(sparse(states)).squeeze(-1)
    vectors = torch.nn.functional.normalize(colbert(states[1:]), dim=-1)
    return torch.nn.functional.normalize(states[0], dim=-1), weights, vectors


def inputs():
    return [[BEGIN, *prompt, END] for prompt in prompts(1, (1, 7, 30, 7, 64))] + [[BEGIN, END]]


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 80, "max_num_seqs": 2}])
def test_results_are_those_of_the_formulas(published, options):
    folder, parts = published
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True, **options)
    assert llm.llm_engine.get_supported_tasks() == (
        "embed",
        "token_embed",
        "token_classify",
        "embed&token_classify",
    )
    found = {
        task: llm.encode(inputs(), pooling_task=task, use_tqdm=False)
        for task in ("embed", "token_classify", "token_embed", "embed&token_classify")
    }
    for index, token_ids in enumerate(inputs()):
        dense, weights, vectors = expected(parts, token_ids)
        close = {"rtol": 0, "atol": 1e-4}
        ours = {task: outputs[index].outputs.data for task, outputs in found.items()}
        torch.testing.assert_close(ours["embed"], dense, **close)
        torch.testing.assert_close(ours["token_classify"], weights[1:-1], **close)
        torch.testing.assert_close(ours["token_embed"], vectors, **close)
        both = torch.cat([dense, weights[1:-1]])
        torch.testing.assert_close(ours["embed&token_classify"], both, **close)


def test_a_token_has_its_greatest_weight(published, monkeypatch):
    folder, parts = published
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True)

    class Special:
        @staticmethod
        def special_token_ids():
            return {BEGIN, 1, END, 3}

    monkeypatch.setattr(llm, "get_tokenizer", Special)
    for token_ids in ([BEGIN, 7, 8, 7, 3, 9, 7, END], [7, 8, 7, END], [BEGIN, 8, 8]):
        _, weights, _ = expected(parts, token_ids)
        want: dict[int, float] = {}
        for token_id, weight in zip(token_ids, weights.tolist(), strict=True):
            if token_id not in Special.special_token_ids() and weight > 0:
                want[token_id] = max(want.get(token_id, 0), weight)
        (found,) = llm.lexical_weights([token_ids], use_tqdm=False)
        assert found == pytest.approx(want, abs=1e-4)


def test_parameters_reach_the_tokens(published):
    folder, _ = published
    options = {"dtype": "float32", "skip_tokenizer_init": True}
    llm = LLM(folder, **options, quantization="int8")  # the heads stay as they are
    (token_ids,) = inputs()[2:3]
    short = PoolingParams(dimensions=4)
    (vectors,) = llm.encode([token_ids], short, pooling_task="token_embed", use_tqdm=False)
    assert vectors.outputs.data.shape == (len(token_ids) - 1, 4)
    assert vectors.outputs.data.norm(dim=-1).tolist() == pytest.approx([1] * (len(token_ids) - 1), abs=1e-5)
    raw = PoolingParams(use_activation=False)
    (weights,) = llm.encode([token_ids], raw, pooling_task="token_classify", use_tqdm=False)
    assert weights.outputs.data.min() < 0
    with pytest.raises(RequestError, match="pooling makes one vector of all tokens"):
        llm.encode([token_ids], PoolingParams(pooling="mean"), pooling_task="token_embed")
    with pytest.raises(RequestError, match=r"use encode\(pooling_task='token_embed'\)"):
        llm.embed([token_ids], PoolingParams(task="token_embed"))


def test_heads_go_with_safetensors_too(tmp_path):
    """As forks publish it. Without heads, vLLM's name says what is missing."""
    (tmp_path / "old").mkdir()
    _, sparse, _ = save_published(tmp_path / "old", "BgeM3EmbeddingModel")
    model = transformers.AutoModel.from_pretrained(tmp_path / "old")
    (tmp_path / "old/pytorch_model.bin").unlink()
    model.save_pretrained(tmp_path / "only")
    (tmp_path / "only/model.safetensors").rename(tmp_path / "old/model.safetensors")
    with pytest.raises(CheckpointError, match=r"sparse_linear\.weight is missing"):
        LLM(tmp_path / "old", skip_tokenizer_init=True)
    assert main(["convert", str(tmp_path / "old"), "-o", str(tmp_path / "new")]) == 0
    llm = LLM(tmp_path / "new", dtype="float32", skip_tokenizer_init=True)
    (found,) = llm.encode([[BEGIN, 9, 8, END]], pooling_task="token_classify", use_tqdm=False)
    with torch.inference_mode():
        states = model.eval()(torch.tensor([[BEGIN, 9, 8, END]])).last_hidden_state[0]
        want = torch.relu(sparse(states))[1:-1, 0]
    torch.testing.assert_close(found.outputs.data, want, rtol=0, atol=1e-4)


def test_other_models_have_states_or_classes_of_tokens(tmp_path):
    model = save_reference(tmp_path, random_config("BertModel", 0))
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    token_ids = prompts(0)[2]
    (found,) = llm.encode([token_ids], pooling_task="token_embed", use_tqdm=False)
    with torch.inference_mode():
        states = model(torch.tensor([token_ids])).last_hidden_state[0]
    want = torch.nn.functional.normalize(states, dim=-1)
    torch.testing.assert_close(found.outputs.data, want, rtol=0, atol=1e-4)
    with pytest.raises(RequestError, match="such as BGE-M3"):
        llm.encode([token_ids], pooling_task="embed&token_classify")
    classifier = tmp_path / "classes"
    model = save_reference(classifier, random_config("RobertaForSequenceClassification", 0))
    llm = LLM(classifier, dtype="float32", skip_tokenizer_init=True)
    (found,) = llm.encode([token_ids], pooling_task="token_classify", use_tqdm=False)
    (first,) = llm.classify([token_ids], use_tqdm=False)
    assert found.outputs.data[0].tolist() == pytest.approx(first.outputs.probs, abs=1e-6)
    assert len(found.outputs.data) == len(token_ids)
