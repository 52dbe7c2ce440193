"""Qwen2.5-VL with pictures is as in transformers, and only equal pictures share blocks of the cache."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.armllm.models.random_configs import VOCAB_SIZE

from armllm import LLM, SamplingParams
from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config
from armllm.pictures import PictureReader

PAD, START, END = 390, 392, 393
SIZES = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 4096}
OPTIONS = {"dtype": "float32", "skip_tokenizer_init": True}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


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


PICTURES = (picture(0, 40, 72), picture(1, 33, 20))
PROMPT = [5, 6, 7, START, PAD, END, 9, 10, START, PAD, END, 11, 12]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """One process for all models here: it takes seconds to start."""
    folder = tmp_path_factory.mktemp("reader")
    save(folder)
    return PictureReader(folder, read_model_config(folder)[1].pictures)


def load(folder, reader, **options):
    llm = LLM(folder, **(OPTIONS | options))
    llm.llm_engine.processor.reader = reader
    return llm


def ask(llm, pictures=PICTURES, prompt=PROMPT, params=GREEDY):
    given = {"prompt_token_ids": prompt, "multi_modal_data": {"image": list(pictures)}}
    (output,) = llm.generate(given, params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return output


def processor():
    module = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl
    return module.Qwen2VLImageProcessorPil(**SIZES)


@pytest.mark.parametrize("seed", range(5))
def test_fp32_logits_are_those_of_transformers(tmp_path, reader, seed):
    model = save(tmp_path, seed)
    llm = load(tmp_path, reader)
    seen, run = [], llm.llm_engine.runner.run
    llm.llm_engine.runner.run = lambda *arguments: seen.append(run(*arguments).clone()) or seen[-1]
    output = ask(llm)
    tokens = output.outputs[0].token_ids
    made = processor()(list(PICTURES), return_tensors="pt")
    counts = iter(made["image_grid_thw"].prod(-1) // 4)
    ids = [one for token in PROMPT for one in [token] * (int(next(counts)) if token == PAD else 1)]
    assert output.prompt_token_ids == ids
    whole = torch.tensor([[*ids, *tokens]])
    with torch.inference_mode():
        expected = model(whole, mm_token_type_ids=(whole == PAD).int(), **made).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(seen), expected, rtol=0, atol=1e-4)
    assert expected.argmax(-1).tolist() == list(tokens)


def test_chunks_recorded_steps_batches_and_preemption_change_no_token(tmp_path, reader):
    """A small chunk ends within a picture; with few blocks sequences give theirs back."""
    save(tmp_path, 1)
    llm = load(tmp_path, reader, enable_prefix_caching=False)
    prompts = [(PICTURES, PROMPT), (PICTURES[:1], [3, PAD, 4]), (PICTURES[1:], [START, PAD]), ((), [3, 4, 5])]
    alone = [ask(llm, *one).outputs[0].token_ids for one in prompts]
    for options in ({"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 12, "max_model_len": 120}):
        other = load(tmp_path, reader, block_size=16, **options)
        given = [
            {"prompt_token_ids": prompt, "multi_modal_data": {"image": list(pictures)}}
            for pictures, prompt in prompts * 2
        ]
        outputs = other.generate(given, GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == alone * 2
        other.llm_engine.check_integrity()
    assert other.llm_engine.stats().num_preemptions


def test_only_equal_pictures_share_blocks(tmp_path, reader):
    """Their tokens are the same; one pixel makes a difference, and another format of the file does not."""
    save(tmp_path)
    llm = load(tmp_path, reader, block_size=16)
    first = ask(llm)
    again = ask(llm)
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.num_cached_tokens == (len(again.prompt_token_ids) - 1) // 16 * 16
    changed = PICTURES[1].copy()
    changed.putpixel((0, 0), (1, 2, 3))
    other = ask(llm, (PICTURES[0], changed))
    assert other.num_cached_tokens == other.prompt_token_ids.index(PAD, 50) // 16 * 16
    plain = load(tmp_path, reader, enable_prefix_caching=False)
    assert other.outputs[0].token_ids == ask(plain, (PICTURES[0], changed)).outputs[0].token_ids
    stored = io.BytesIO()
    PICTURES[0].save(stored, "PNG")
    assert ask(llm, (stored.getvalue(), PICTURES[1])).num_cached_tokens == again.num_cached_tokens
    assert ask(llm, (np.asarray(PICTURES[0]), PICTURES[1])).num_cached_tokens == again.num_cached_tokens
    swapped = ask(llm, PICTURES[::-1])
    assert swapped.num_cached_tokens == 0


def test_a_picture_is_computed_once_and_not_at_all_where_it_is_cached(tmp_path, reader):
    save(tmp_path)
    llm = load(tmp_path, reader, max_num_batched_tokens=16)
    model = llm.llm_engine.runner.model
    calls, embed = [], model.embed_picture
    model.embed_picture = lambda *arguments: calls.append(1) or embed(*arguments)
    for _ in range(2):
        ask(llm, prompt=[*PROMPT, *range(20, 40)])
        assert len(calls) == 2


def test_text_alone_is_that_of_the_text_model(tmp_path, reader):
    model = save(tmp_path, 3)
    (output,) = load(tmp_path, reader).generate([[5, 6, 7, 8, 9]], GREEDY, use_tqdm=False)
    expected = model.generate(
        torch.tensor([[5, 6, 7, 8, 9]]), max_new_tokens=6, min_new_tokens=6, do_sample=False
    )
    assert expected[0, 5:].tolist() == list(output.outputs[0].token_ids)


def test_pictures_are_for_the_generation_of_text(tmp_path, reader):
    save(tmp_path)
    llm = load(tmp_path, reader)
    given = {"prompt_token_ids": [PAD], "multi_modal_data": {"image": PICTURES[0]}}
    with pytest.raises(RequestError, match="generation of text"):
        llm.embed(given, use_tqdm=False)


def bomb():
    """A PNG of a few bytes with 400 million pixels."""
    data = io.BytesIO()
    Image.new("1", (20000, 20000)).save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_token_ids": [5, PAD], "multi_modal_data": {"image": []}}, None),
        ({"prompt_token_ids": [5], "multi_modal_data": {"image": PICTURES[0]}}, "0 places for pictures"),
        (
            {"prompt_token_ids": [PAD, PAD], "multi_modal_data": {"image": PICTURES[0]}},
            "2 places for pictures",
        ),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": b"GIF89a"}}, "a picture can't be read"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": bomb()}}, "20000 x 20000 pixels; at most"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": "cat.png"}}, "must be a PIL image"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": picture(0, 2, 600)}}, "aspect ratio"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": bytes(21 << 20)}}, "at most 20971520"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"video": [1]}}, "'video' is not supported"),
        ({"prompt_token_ids": [PAD], "multi_modal_data": 3}, "must be a dict such as"),
        (
            {"prompt_token_ids": [PAD] * 3, "multi_modal_data": {"image": PICTURES[:1] * 3}},
            "allows at most 2",
        ),
        ({"multi_modal_data": {"image": PICTURES[0]}}, "a prompt dict has the keys"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(tmp_path_factory, reader, given, message):
    folder = tmp_path_factory.getbasetemp() / "refusing"
    if not folder.exists():
        save(folder)
    llm = load(folder, reader, limit_mm_per_prompt={"image": 2})
    if message is None:
        assert llm.generate(given, GREEDY, use_tqdm=False)
        return
    with pytest.raises(RequestError, match=message):
        llm.generate(given, GREEDY, use_tqdm=False)
    assert llm.generate([[5, 6]], GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("vision_config", {"window_size": 4}, "window_size must be at least"),
        ("vision_config", {"out_hidden_size": 17}, "out_hidden_size 17 is not supported"),
        ("vision_config", {"num_heads": 5}, "must be 5 heads of a multiple of 8"),
        ("vision_config", {"in_chans": 4}, "in_chans 4 is not supported"),
        ("vision_config", {"fullatt_block_indexes": 3}, "must be a list of layers"),
        ("vision_config", {"hidden_act": "tanh"}, "hidden_act 'tanh' is not supported"),
        (
            "text_config",
            {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}},
            "mrope_section must be",
        ),
        ("text_config", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
    ],
)
def test_odd_configurations_are_refused_by_name(tmp_path, part, changes, message):
    config = config_of(0)
    config[part] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        read_model_config(tmp_path)


def test_settings_of_another_processor_are_refused(tmp_path):
    save(tmp_path)
    config = read_model_config(tmp_path)[1].pictures
    path = tmp_path / "preprocessor_config.json"
    for settings, message in (
        ({"image_processor_type": "CLIPImageProcessor"}, "'CLIPImageProcessor' is not supported"),
        ({"patch_size": 14}, "patch_size is 14, and 4 in config.json"),
        ({"max_pixels": 1 << 40}, "are not supported"),
    ):
        path.write_text(json.dumps(settings))
        with pytest.raises(CheckpointError, match=message):
            PictureReader(tmp_path, config)


TEMPLATE = """{%- for message in messages %}{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{% if part.type == 'image' %}<|image_pad|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""


def test_chat_takes_pictures_as_data_urls_and_from_pillow(tmp_path, reader):
    """With a tokenizer of words, whose template marks the place of each picture."""
    import base64  # noqa: PLC0415

    import tokenizers  # noqa: PLC0415

    save(tmp_path)
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    words["<|image_pad|>"] = words.pop(f"w{PAD}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|image_pad|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    llm = load(tmp_path, reader, skip_tokenizer_init=False)
    stored = io.BytesIO()
    PICTURES[0].save(stored, "PNG")
    url = "data:image/png;base64," + base64.b64encode(stored.getvalue()).decode()
    text = {"type": "text", "text": "w5 w6 "}
    outputs = [
        llm.chat([{"role": "user", "content": [text, part]}], GREEDY, use_tqdm=False)[0]
        for part in (
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_pil", "image_pil": PICTURES[0]},
        )
    ]
    assert outputs[0].prompt_token_ids[:3] == [5, 6, PAD]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert outputs[0].outputs[0].token_ids == ask(llm, PICTURES[:1], [5, 6, PAD]).outputs[0].token_ids
    for url, message in (
        ("https://example.org/cat.png", "is not a data URL"),
        ("data:text/plain;base64,aaaa", "begins as data:image/png"),
        ("data:image/png;base64,a b", "not base64"),
        (None, "must be an object"),
    ):
        with pytest.raises(RequestError, match=message):
            llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    with pytest.raises(RequestError, match="'video_url' is not supported"):
        llm.chat([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}])
