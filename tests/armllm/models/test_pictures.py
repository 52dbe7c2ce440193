"""Qwen2.5-VL with pictures is as in transformers, and only equal pictures share blocks of the cache."""

from __future__ import annotations

import gc
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tests.armllm.adapters import ALL, ATTENTION, merge, write_adapter
from tests.armllm.models.picture_models import (
    END,
    PAD,
    START,
    config_of,
    data_url,
    picture,
    processor,
    save,
    save_tokenizer,
)
from tests.armllm.models.reference import MOST_OF_ROUNDINGS, rounded_modules

from armllm import LLM, LoRARequest, SamplingParams
from armllm.cli import main
from armllm.errors import BusyError, CheckpointError, RequestError
from armllm.models import read_model_config
from armllm.pictures import PictureReader

OPTIONS = {"dtype": "float32", "skip_tokenizer_init": True}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


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


def ask(llm, pictures=PICTURES, prompt=PROMPT, params=GREEDY, adapter=None):
    given = {"prompt_token_ids": prompt, "multi_modal_data": {"image": list(pictures)}}
    (output,) = llm.generate(given, params, use_tqdm=False, lora_request=adapter)
    llm.llm_engine.check_integrity()
    return output


def ask_with_logits(llm, adapter=None):
    """The greedy tokens, and the logits that they were chosen from."""
    seen, run = [], llm.llm_engine.runner.run
    llm.llm_engine.runner.run = lambda *arguments: seen.append(run(*arguments).clone()) or seen[-1]
    output = ask(llm, adapter=adapter)
    llm.llm_engine.runner.run = run
    return output, torch.cat(seen)


class Reference:
    """The logits of transformers for `PROMPT` and what was generated behind it."""

    def __init__(self, model):
        self.model = model
        self.made = processor()(list(PICTURES), return_tensors="pt")
        counts = iter(self.made["image_grid_thw"].prod(-1) // 4)
        self.ids = [one for token in PROMPT for one in [token] * (int(next(counts)) if token == PAD else 1)]

    @torch.inference_mode()
    def logits(self, tokens):
        whole = torch.tensor([[*self.ids, *tokens]])
        found = self.model(whole, mm_token_type_ids=(whole == PAD).int(), **self.made).logits
        return found[0, len(self.ids) - 1 : -1]

    def noise(self, tokens, dtype):
        """How far four draws of roundings to ``dtype`` move the logits, as in `reference.rounding_noise`."""
        exact = self.logits(tokens)
        with rounded_modules(self.model, dtype):
            noisy = torch.stack([self.logits(tokens) for _ in range(4)])
        return float((noisy - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("seed", range(5))
def test_fp32_logits_are_those_of_transformers(tmp_path, reader, seed):
    reference = Reference(save(tmp_path, seed))
    output, logits = ask_with_logits(load(tmp_path, reader))
    tokens = output.outputs[0].token_ids
    assert output.prompt_token_ids == reference.ids
    expected = reference.logits(tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert expected.argmax(-1).tolist() == list(tokens)


# Of the text part alone: PEFT takes a list of names for the encoder's matrices, too.
TEXT_PART = {
    "all matrices": r".*language_model.*\.(" + "|".join(ALL) + ")",
    "attention, as names": list(ATTENTION),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("targets", TEXT_PART)
def test_adapters_beside_pictures_are_as_in_merged_weights(tmp_path, reader, seed, targets):
    """Catches states of pictures that miss the adapter's keys, and a base that shares blocks with it."""
    model = save(tmp_path / "base", seed)
    part = torch.nn.ModuleDict({"language_model": model.model.language_model})
    adapter = write_adapter(
        tmp_path / "adapter",
        torch.nn.ModuleDict({"model": part}),
        ALL if targets == "all matrices" else ATTENTION,
        target_modules=TEXT_PART[targets],
    )
    llm = load(tmp_path / "base", reader, enable_lora=True)
    request = LoRARequest("one", 1, str(adapter))
    for one, reference in ((request, Reference(merge(model, adapter))), (None, Reference(model))) * 2:
        output, logits = ask_with_logits(llm, one)
        tokens = output.outputs[0].token_ids
        expected = reference.logits(tokens)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert expected.argmax(-1).tolist() == list(tokens)


@pytest.mark.parametrize("target", ["attn.qkv", "mlp.gate_proj"])
def test_adapters_of_the_encoder_are_refused_by_name(tmp_path, reader, target):
    """Catches such an adapter that is taken without its change."""
    model = save(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", model, (target.rpartition(".")[2],))
    llm = load(tmp_path / "base", reader, enable_lora=True)
    tensor = re.escape(f"model.visual.blocks.0.{target}.lora_A.weight")
    with pytest.raises(CheckpointError, match=f"{tensor} changes the encoder of pictures"):
        ask(llm, adapter=LoRARequest("one", 1, str(adapter)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_as_near_as_their_roundings(tmp_path, reader, dtype):
    """Against fp32 arithmetic on the same rounded weights, encoder included."""
    model = save(tmp_path, 2)
    output, logits = ask_with_logits(load(tmp_path, reader, dtype=dtype))
    tokens = output.outputs[0].token_ids
    reference = Reference(model.to(dtype).float())
    expected = reference.logits(tokens)
    error = (logits - expected).norm() / expected.norm()
    assert error < MOST_OF_ROUNDINGS * reference.noise(tokens, dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        ["quantize", "--scheme", "int8"],
        ["quantize", "--scheme", "int8", "--calibrate", "TEXT"],
        ["pack", "--quantization", "int8"],
    ],
)
def test_weights_of_8_bits_stay_near_and_the_encoder_as_it_is(tmp_path, reader, arguments):
    (tmp_path / "model").mkdir()
    save(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    text = tmp_path / "text"
    text.write_text(" ".join(f"w{index % 380 + 3}" for index in range(2000)))
    command, *options = [str(text) if one == "TEXT" else one for one in arguments]
    assert main([command, str(tmp_path / "model"), *options, "-o", str(tmp_path / "made")]) == 0
    _, exact = ask_with_logits(whole := load(tmp_path / "model", reader))
    _, logits = ask_with_logits(made := load(tmp_path / "made", reader))
    assert 0 < (logits[0] - exact[0]).norm() / exact[0].norm() < 0.1
    pixels = torch.from_numpy(reader.read(PICTURES[0]).pixels)
    states = [llm.llm_engine.runner.model.embed_picture(pixels, 10, 18) for llm in (whole, made)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_without_a_processor_there_is_text(tmp_path):
    """As for a folder to which somebody copied the weights alone."""
    save(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    llm = LLM(tmp_path, **OPTIONS)
    assert llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match=r"pictures need preprocessor_config\.json"):
        ask(llm)


def test_settings_are_read_from_the_file_of_newer_releases(tmp_path, reader):
    """Transformers 5 writes those of all parts of a processor into one file."""
    save(tmp_path)
    expected = ask(load(tmp_path, reader)).outputs[0].token_ids
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    llm = LLM(tmp_path, **OPTIONS)
    assert ask(llm).outputs[0].token_ids == expected
    (tmp_path / "processor_config.json").write_text('{"image_processor": 3}')
    with pytest.raises(CheckpointError, match="image_processor must be an object"):
        LLM(tmp_path, **OPTIONS)


@pytest.mark.parametrize("by", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_processes_take_text_only(tmp_path, by):
    save(tmp_path, 3)  # with two heads of keys, and layers enough
    llm = LLM(tmp_path, **OPTIONS, **{by: 2})
    try:
        with pytest.raises(RequestError, match="several processes compute the model here"):
            ask(llm)
        (output,) = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    finally:
        llm.llm_engine.followers.close()
    (alone,) = LLM(tmp_path, **OPTIONS).generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == alone.outputs[0].token_ids


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


def test_pictures_that_wait_take_a_limited_memory(tmp_path, reader, monkeypatch):
    """Pixels count until they are computed, or the request is gone."""
    save(tmp_path)
    llm = load(tmp_path, reader)
    ask(llm)
    gc.collect()
    assert reader._bytes == 0
    patches = reader.read(PICTURES[0])
    assert reader._bytes == patches.pixels.nbytes
    monkeypatch.setattr("armllm.pictures.MOST_WAITING", 1)
    with pytest.raises(BusyError, match="too many pictures wait"):
        ask(llm)
    del patches
    assert reader._bytes == 0
    assert ask(llm, PICTURES[:1], [PAD])


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
        ({"prompt_token_ids": [PAD], "multi_modal_data": {"image": b"GIF89a"}}, "none of JPEG, PNG"),
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


def test_chat_takes_pictures_as_data_urls_and_from_pillow(tmp_path, reader):
    save(tmp_path)
    save_tokenizer(tmp_path)
    llm = load(tmp_path, reader, skip_tokenizer_init=False)
    url = data_url(PICTURES[0])
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
    with pytest.raises(RequestError, match="'image' is not supported"):  # a place without a picture
        llm.chat([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(RequestError, match="'video_url' is not supported"):
        llm.chat([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}])
