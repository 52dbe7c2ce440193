"""Random configurations of encoders, their models by transformers, and inputs."""

from __future__ import annotations

import json
import random

import torch
import transformers
from tests.armllm.models.reference import randomize

from armllm import LLM
from armllm.models import ENCODERS as ALL_ENCODERS

ENCODERS = {name: family for name, family in ALL_ENCODERS.items() if family.model_type != "new"}  # gte's
VOCAB_SIZE = 90
POSITIONS = 80
LENGTHS = (1, 7, 30, 7, 64, 2, 30)
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
ACTIVATIONS = ["gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh"]


def bert(rng):
    heads = rng.choice([2, 3, 4])
    return {
        "hidden_size": heads * rng.choice([8, 12]),
        "num_attention_heads": heads,
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "intermediate_size": rng.choice([24, 33]),
        "hidden_act": rng.choice([*ACTIVATIONS, "gelu_fast", "quick_gelu"]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5, 1e-2]),
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }


def roberta(rng):
    return bert(rng) | {"type_vocab_size": rng.choice([1, 2]), "pad_token_id": rng.choice([0, 1, 5])}


def distilbert(rng):
    heads = rng.choice([2, 3, 4])
    return {
        "dim": heads * rng.choice([8, 12]),
        "n_heads": heads,
        "n_layers": rng.choice([1, 2, 3]),
        "hidden_dim": rng.choice([24, 33]),
        "activation": rng.choice(["gelu", "relu"]),
        "sinusoidal_pos_embds": rng.random() < 0.5,
        "pad_token_id": 0,
    }


def modernbert(rng):
    config = bert(rng)
    for name in ("hidden_act", "layer_norm_eps", "type_vocab_size"):
        del config[name]
    layers = config["num_hidden_layers"] = rng.choice([2, 4])
    kinds = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    thetas = {"global_rope_theta": 500.0, "local_rope_theta": 100.0}
    nested = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        }
    }
    return (
        config
        | {
            "hidden_activation": rng.choice(["gelu", "silu"]),
            "norm_eps": rng.choice([1e-5, 1e-2]),
            "local_attention": rng.choice([4, 9, 128]),
            "classifier_pooling": rng.choice(["cls", "mean"]),
            "classifier_activation": rng.choice(ACTIVATIONS),
            "cls_token_id": 1,
            "sep_token_id": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        | {
            name: rng.random() < 0.5
            for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
        }
        | rng.choice([{}, thetas, nested])
        | rng.choice([{"layer_types": kinds}, {"global_attn_every_n_layers": 2}])
    )


def nomic_bert(rng):
    config = bert(rng) | {"hidden_act": rng.choice(["silu", "gelu"]), "type_vocab_size": rng.choice([1, 2])}
    thetas = [{}, {"rope_theta": 300.0}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}]
    return config | rng.choice(thetas)


def gte(rng):
    return nomic_bert(rng) | {"type_vocab_size": rng.choice([0, 1])}


CONFIGS = {
    "bert": bert,
    "camembert": roberta,
    "distilbert": distilbert,
    "gte": gte,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
}


def random_config(architecture, seed):
    rng = random.Random(f"{architecture} {seed}")  # noqa: S311 - test data
    model_type = ENCODERS[architecture].model_type
    labels = {f"{index}": f"kind {index}" for index in range(rng.choice([1, 2, 5]))}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": POSITIONS,
        "id2label": labels,
        **CONFIGS[model_type](rng),
    }


def save_reference(folder, config):
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(**config)
    model = getattr(transformers, config["architectures"][0])(settings).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def prompts(seed, lengths=LENGTHS):
    rng = random.Random(seed)  # noqa: S311 - test data
    return [[rng.randrange(6, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def load(folder, **options):
    return LLM(folder, skip_tokenizer_init=True, **{"dtype": "float32"} | options)
