"""A served encoder: embeddings, scores, classes and what it refuses."""

from __future__ import annotations

import base64
import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from tests.armllm.models.encoder_configs import prompts, random_config, save_reference

from armllm import LLM, PoolingParams
from armllm.errors import CheckpointError

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
PIECES += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
TEXTS = ["a quick fox", "dogs sleep", "b"]


def save(folder, architecture, **values):
    """A model whose tokenizer is a vocab.txt."""
    model = save_reference(folder, random_config(architecture, 0) | values)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return model


@pytest.fixture(scope="module")
def served(serving, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    save(folder, "BertModel")
    with serving({}, folder=str(folder)) as server:
        yield server
        server.assert_idle()


def test_embeddings_in_all_forms(served):
    body = {"input": TEXTS}
    vectors = [one["embedding"] for one in served.post("/v1/embeddings", body).json()["data"]]
    for vector in vectors:
        assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)
    coded = served.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()["data"]
    for one, vector in zip(coded, vectors, strict=True):
        data = base64.b64decode(one["embedding"])
        assert struct.unpack(f"<{len(data) // 4}f", data) == pytest.approx(vector, abs=1e-6)
    (short,) = served.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 4}).json()["data"]
    head = torch.tensor(vectors[0][:4])
    assert short["embedding"] == pytest.approx((head / head.norm()).tolist(), abs=1e-5)


def test_vectors_of_tokens_in_all_forms(served, monkeypatch):
    body = {"input": TEXTS, "task": "token_embed"}
    items = served.post("/pooling", body).json()["data"]
    token_ids = [served.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    assert [len(one["data"]) for one in items] == [len(ids) for ids in token_ids]
    for one in items:
        for vector in one["data"]:
            assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)
    coded = served.post("/pooling", {**body, "encoding_format": "base64"}).json()["data"]
    for one, other in zip(items, coded, strict=True):
        numbers = [x for vector in one["data"] for x in vector]
        data = base64.b64decode(other["data"])
        assert struct.unpack(f"<{len(data) // 4}f", data) == pytest.approx(numbers, abs=1e-6)
    shapes = json.loads(served.post("/pooling", {**body, "encoding_format": "bytes"}).headers["metadata"])
    assert [one["shape"] for one in shapes["data"]] == [
        [len(one["data"]), len(one["data"][0])] for one in items
    ]
    monkeypatch.setattr("armllm.server.vectors.MOST_NUMBERS", 100)
    answer = served.post("/pooling", body)
    assert answer.status_code == 400
    assert "send fewer texts" in answer.json()["error"]["message"]


@pytest.mark.parametrize("most", [80, -1])
def test_a_text_is_cut_at_its_end(served, most):
    long = "a " * 200
    answer = served.post("/v1/embeddings", {"input": long})
    assert answer.status_code == 400
    assert "max_model_len 80" in answer.json()["error"]["message"]
    cut = served.post("/v1/embeddings", {"input": long, "truncate_prompt_tokens": most}).json()
    whole = served.post("/v1/embeddings", {"input": "a " * 78}).json()
    assert cut["usage"] == whole["usage"] == {"prompt_tokens": 80, "total_tokens": 80}
    assert cut["data"] == whole["data"]


def test_an_encoder_does_not_generate_or_classify(served):
    answer = served.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 400
    assert "generates no text" in answer.json()["error"]["message"]
    assert "classification head" in served.post("/classify", {"input": "a"}).json()["error"]["message"]


def test_a_cross_encoder_reads_pairs(serving, tmp_path):
    model = save(tmp_path, "BertForSequenceClassification", id2label={"0": "near"})
    llm = LLM(tmp_path, dtype="float32")
    expected = []
    for text in TEXTS:
        ids, segment = llm.get_tokenizer().encode_pair(TEXTS[0], text)
        types = torch.tensor([[int(place >= segment) for place in range(len(ids))]])
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), token_type_ids=types).logits
        expected.append(float(logits.sigmoid()))
    assert [one.outputs.score for one in llm.score(TEXTS[0], TEXTS, use_tqdm=False)] == pytest.approx(
        expected, abs=1e-5
    )
    with serving({}, folder=str(tmp_path)) as server:
        scores = server.post("/score", {"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
        assert [one["score"] for one in scores] == pytest.approx(expected, abs=1e-5)
        ranked = server.post("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS}).json()["results"]
        order = sorted(range(3), key=lambda index: -expected[index])
        assert [one["index"] for one in ranked] == order
        answer = server.post("/score", {"text_1": [5, 6], "text_2": "a"})
        assert "token ids can't be paired" in answer.json()["error"]["message"]


def test_classes_have_their_labels(serving, tmp_path):
    names = {"0": "bad", "1": "good", "2": "unclear"}
    save(tmp_path, "DistilBertForSequenceClassification", id2label=names)
    with serving({}, folder=str(tmp_path)) as server:
        found = server.post("/classify", {"input": TEXTS}).json()["data"]
        expected = LLM(tmp_path, dtype="float32").classify(TEXTS, use_tqdm=False)
        for one, output in zip(found, expected, strict=True):
            assert one["probs"] == pytest.approx(output.outputs.probs, abs=1e-6)
            assert one["label"] == names[str(one["probs"].index(max(one["probs"])))]
        answer = server.post("/score", {"text_1": "a", "text_2": "b"})
        assert "needs a model with one class" in answer.json()["error"]["message"]


def test_modules_of_sentence_transformers_follow_one_another(tmp_path):
    """Two ways to pool side by side, then a dense layer, then fewer dimensions."""
    config = random_config("BertModel", 0)
    model, size = save_reference(tmp_path, config), config["hidden_size"]
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, values in {
        "1_Pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        "2_Dense": {"in_features": 2 * size, "out_features": 5, "bias": True},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
    weight, bias = torch.randn(5, 2 * size), torch.randn(5)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors")
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    ids = prompts(0)[2]
    (ours,) = llm.embed(ids, PoolingParams(normalize=False, dimensions=3), use_tqdm=False)
    with torch.inference_mode():
        states = model(torch.tensor([ids])).last_hidden_state[0]
        wanted = (torch.cat([states[0], states.mean(0)]) @ weight.T + bias).tanh()[:3]
    torch.testing.assert_close(torch.tensor(ours.outputs.embedding), wanted, rtol=0, atol=1e-4)
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="module 'LSTM' is not supported"):
        LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
