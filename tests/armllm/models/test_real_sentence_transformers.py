"""Models that sentence-transformers itself makes and saves: embeddings are those of its `encode`."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tests.armllm.environments import python_with, run
from tests.armllm.models.encoder_configs import random_config
from tests.armllm.models.random_configs import random_config as random_decoder
from tests.armllm.models.reference import randomize

from armllm import LLM

pytestmark = [pytest.mark.slow, pytest.mark.network]
SENTENCE_TRANSFORMERS = "sentence-transformers==6.2.0"
TEXTS = ["The quick fox.", "def step(self)", "Grüße aus Köln, 東京 " * 4, "a"]
PROMPT = "dog:\n"
# Of each folder with model/ and modules.json: saved/, as it saves it, and its embeddings of the texts.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Dropout, Normalize, Pooling, Transformer

kinds = {kind.__name__: kind for kind in (Dense, Dropout, Normalize, Pooling)}
texts, prompt = json.loads(sys.argv[1]), sys.argv[2]
for folder in map(Path, sys.argv[3:]):
    torch.manual_seed(3)
    modules = [Transformer(str(folder / "model"))]
    width = modules[0].get_embedding_dimension()
    for kind, options in json.loads((folder / "options.json").read_text()):
        if kind == "Pooling":
            modules.append(Pooling(width, **options))
            width = modules[-1].get_embedding_dimension()
        elif kind == "Dense":
            function = getattr(torch.nn, options["activation_function"])()
            modules.append(Dense(width, **options | {"activation_function": function}))
            width = modules[-1].out_features
        else:
            modules.append(kinds[kind](**options))
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": prompt}).eval()
    model.save(str(folder / "saved"))
    model = SentenceTransformer(str(folder / "saved"), device="cpu").eval()
    found = [model.encode(texts), model.encode(texts, prompt_name="query")]
    torch.save([torch.tensor(rows) for rows in found], folder / "expected.pt")
"""
NORMALIZE = ["Normalize", {}]


def pooling(*modes, **options):
    return ["Pooling", {"pooling_mode": modes[0] if len(modes) == 1 else list(modes), **options}]


def dense(size, activation, **options):
    return ["Dense", {"out_features": size, "activation_function": activation, **options}]


DISTILBERT = random_config("DistilBertModel", 0)
QWEN3 = random_decoder("Qwen3ForCausalLM", 2) | {"architectures": ["Qwen3Model"]}
LEFT_OUT = "cls, without the prompt"
CASES = {
    "cls": (random_config("BertModel", 0), [pooling("cls"), NORMALIZE]),
    "mean": (random_config("XLMRobertaModel", 0), [pooling("mean")]),
    "max": (DISTILBERT, [pooling("max"), NORMALIZE]),
    "mean and length": (random_config("BertModel", 1), [pooling("mean_sqrt_len_tokens")]),
    "weighted mean": (QWEN3, [pooling("weightedmean"), NORMALIZE]),
    "last token": (QWEN3, [pooling("lasttoken"), NORMALIZE]),
    "last token, without the prompt": (QWEN3, [pooling("lasttoken", include_prompt=False)]),
    LEFT_OUT: (random_config("BertModel", 0), [pooling("cls", include_prompt=False)]),
    "three side by side": (random_config("ModernBertModel", 0), [pooling("lasttoken", "max", "mean")]),
    "Dense": (
        random_config("NomicBertModel", 0),
        [pooling("mean"), dense(12, "Tanh"), dense(9, "Mish")],
    ),
    "two Dense, Dropout": (
        random_config("BertModel", 2),
        [pooling("cls", "mean"), dense(20, "GELU"), ["Dropout", {}], dense(8, "Identity", bias=False)],
    ),
    "Dense behind Normalize": (random_config("BertModel", 0), [pooling("mean"), NORMALIZE, dense(9, "ReLU")]),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with(tmp_path_factory.mktemp("st") / "venv", SENTENCE_TRANSFORMERS)


@pytest.fixture(scope="module")
def made(python, tmp_path_factory, tokenizer_folder):
    """By case, a folder of the model as sentence-transformers saves it, and its embeddings."""
    root, folders = tmp_path_factory.mktemp("cases"), {}
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    tokenizer.add_special_tokens({"pad_token": "</s>"})
    for number, (name, (drawn, modules)) in enumerate(CASES.items()):
        folders[name] = root / str(number)
        torch.manual_seed(0)
        config = drawn | {"vocab_size": len(tokenizer), "max_position_embeddings": 256}
        settings = transformers.AutoConfig.for_model(**config)
        model = getattr(transformers, config["architectures"][0])(settings).eval()
        randomize(model, config["model_type"])
        model.save_pretrained(folders[name] / "model")
        tokenizer.save_pretrained(folders[name] / "model")
        (folders[name] / "options.json").write_text(json.dumps(modules))
    run([python, "-c", PROGRAM, json.dumps(TEXTS), PROMPT, *folders.values()])
    return folders


def embeddings(folder, prompt, expected):
    """Ours, and those of sentence-transformers of length 1."""
    outputs = LLM(folder / "saved", dtype="float32").embed([prompt + text for text in TEXTS], use_tqdm=False)
    found = torch.tensor([output.outputs.embedding for output in outputs])
    return found, torch.nn.functional.normalize(expected, dim=-1)


@pytest.mark.parametrize("name", CASES)
def test_embeddings_are_those_of_sentence_transformers(made, name):
    """Within 1e-5 of the cosine, with a prompt and without; what differs is what a warning names."""
    plain, prompted = torch.load(made[name] / "expected.pt")
    for prompt, expected in (("", plain), (PROMPT, prompted)):
        found, wanted = embeddings(made[name], prompt, expected)
        assert found.shape == wanted.shape
        near = (found * wanted).sum(-1) > 1 - 1e-5
        assert near.all() if name != LEFT_OUT or not prompt else not near.any()
