"""Small Qwen2.5-VL models with random weights, and pictures for them."""

from __future__ import annotations

import base64
import io
import json
import random

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from tests.armllm.models.random_configs import VOCAB_SIZE

PAD, START, END = 390, 392, 393
SIZES = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 4096}
TEMPLATE = """{%- for message in messages %}{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{% if part.type == 'image' %}<|image_pad|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""


def text_config(rng):
    heads, head_dim = rng.choice([(2, 16), (4, 16), (4, 24)])
    halves = head_dim // 2
    rope = {"rope_theta": 10000.0, "mrope_section": [halves - 6, 2, 4]}
    rope |= rng.choice([{"type": "mrope"}, {"rope_type": "yarn", "factor": 4.0}])
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": heads * head_dim,
        "intermediate_size": 48,
        "num_hidden_layers": rng.choice([1, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([1, 2]),
        "max_position_embeddings": 512,
        "rms_norm_eps": rng.choice([1e-6, 1e-3]),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "rope_scaling": rope,
        "use_sliding_window": (sliding := rng.random() < 0.5),
        "sliding_window": 60,
        "max_window_layers": 1 if sliding else 80,
    }


def config_of(seed):
    """A small config.json, flat as on the hub or nested."""
    rng = random.Random(seed)  # noqa: S311 - test data
    text = text_config(rng)
    depth = rng.choice([2, 4])
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": PAD,
        "video_token_id": PAD + 1,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "tie_word_embeddings": rng.random() < 0.5,
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": depth,
            "hidden_size": rng.choice([32, 48]),
            "intermediate_size": 40,
            "num_heads": 2,
            "hidden_act": rng.choice(["silu", "gelu"]),
            "out_hidden_size": text["hidden_size"],
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": rng.choice([8, 16, 32]),
            "fullatt_block_indexes": sorted(rng.sample(range(depth), depth // 2)),
        },
    }
    return config | (text if seed % 2 else {"text_config": text | {"model_type": "qwen2_5_vl_text"}})


def save(folder, seed=0):
    """A transformers model with random weights, saved in ``folder`` with its image processor's settings."""
    config = config_of(seed)
    torch.manual_seed(seed)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    settings = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.Qwen2_5_VLForConditionalGeneration(settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_q" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias") or "embed_tokens" in name:
                parameter.normal_(std=0.3)
            else:
                parameter.normal_(std=1.2 * parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Qwen2VLImageProcessor"} | SIZES)
    )
    return model


def picture(seed, height, width):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def processor():
    """That of transformers for these models."""
    module = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl
    return module.Qwen2VLImageProcessorPil(**SIZES)


def save_tokenizer(folder):
    """One of words, whose template marks the place of each picture."""
    token_ids = {f"w{index}": index for index in range(VOCAB_SIZE)}
    token_ids["<|image_pad|>"] = token_ids.pop(f"w{PAD}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(token_ids, unk_token="w2"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|image_pad|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def data_url(image):
    """The picture as a PNG."""
    stored = io.BytesIO()
    image.save(stored, "PNG")
    return "data:image/png;base64," + base64.b64encode(stored.getvalue()).decode()
