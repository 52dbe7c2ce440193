#!/usr/bin/env python3
"""Train a smoke model: a small Llama that recites the passages of src/armllm/smoke/model/passages.json.

    python tools/train_smoke_model.py                 # train, check, write the model folder
    python tools/train_smoke_model.py --check         # only measure the model that is there
    python tools/train_smoke_model.py --mixture       # the same for a small Mixtral, src/armllm/smoke/mixture

Needs torch, tokenizers and safetensors. One thread, seeded: a rerun gives an equivalent model (the same bytes
on the same machine and torch).

Two things are trained at once. Under rounding (bf16, int8 and int4 weights, int8 activations, int8 KV cache,
noise) every next token of every passage must keep a wide margin. Under a wrong kernel (the first of
`smoke_network.faults`) the right token must lose its probability, so that a fault which such a small model
would shrug off garbles the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional

from smoke_network import (
    MIXTURE,
    Conditions,
    Shape,
    Weights,
    faults,
    forward,
    initial_weights,
)

SMOKE = Path(__file__).resolve().parent.parent / "src/armllm/smoke"
SPECIAL = BEGIN, END = "<|begin|>", "<|end|>"  # their ids are 0 and 1
SURE = 2.0  # the lead of the right token's logit that counts as sure
RELIABLE = 0.9  # of the latest roundings, how many must leave a token sure
STEADY = 0.8  # share of reliable tokens below which faults are not trained
BLOCK = 16  # KV block size the faults of one block are trained for
LOCAL_FAULTS = {"block_dropped", "mask_sees_next"}  # they damage a part of the context
WINDOW = 24  # tokens after a damaged part of the context within which a local fault must show
BLOCK_FAULTS = {"block_dropped", "block_replaced"}
# Of a matrix's grid in its root mean square, about: so files are half as large in a wheel. The mixture has
# wider margins.
STEPS, STEPS_OF_MIXTURE = 11, 4
MARGIN = 6.0  # what cross entropy is made to believe that the right token's logit lacks

EXACT = Conditions()
ROUNDINGS = {
    "float32": EXACT,
    "bfloat16": Conditions(bfloat16=True),
    "int8": Conditions(weight_bits=8, activation_bits=8, quantize_head=True),
    "int8, int8 KV cache": Conditions(weight_bits=8, activation_bits=8, kv_bits=8, bfloat16=True),
    "int4-g32": Conditions(weight_bits=4, group_size=32, activation_bits=8),
    "int4-g64": Conditions(weight_bits=4, group_size=64, activation_bits=8),
    "int4-g128": Conditions(weight_bits=4, group_size=128, activation_bits=8),
    "int4 channelwise": Conditions(weight_bits=4, activation_bits=8),
    "int4 channelwise, all": Conditions(
        weight_bits=4, activation_bits=8, kv_bits=8, quantize_head=True, bfloat16=True
    ),
}


@dataclasses.dataclass(frozen=True)
class Passages:
    """Token ids [passages, length], padded at the end, and which positions must predict their successor."""

    names: list[str]
    prompts: list[list[int]]
    continuations: list[list[int]]
    inputs: Tensor
    targets: Tensor
    recited: Tensor


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE (Sennrich et al., 2016) over the passages themselves; any UTF-8 text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, 0)]
    )
    return tokenizer


def encode(texts: list[dict[str, str]], tokenizer: Tokenizer) -> Passages:
    prompts = [tokenizer.encode(text["prompt"]).ids for text in texts]
    continuations = []
    for text, prompt in zip(texts, prompts, strict=True):
        whole = tokenizer.encode(text["prompt"] + text["text"]).ids
        if whole[: len(prompt)] != prompt:
            sys.exit(f"passage {text['name']!r}: a token crosses the end of the prompt; end it at a word")
        continuations.append([*whole[len(prompt) :], SPECIAL.index(END)])
    length = max(len(p) + len(c) for p, c in zip(prompts, continuations, strict=True))
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    recited = torch.zeros(len(texts), length - 1, dtype=torch.bool)
    for row, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        end = len(prompt) + len(continuation)
        ids[row, :end] = torch.tensor(prompt + continuation)
        recited[row, len(prompt) - 1 : end - 1] = True
    names = [text["name"] for text in texts]
    return Passages(names, prompts, continuations, ids[:, :-1], ids[:, 1:], recited)


def group_sizes(shape: Shape) -> list[int]:
    """What int4 groups there can be: those that divide the inputs of every linear layer, and one for all."""
    return [0, *(size for size in (32, 64, 128) if shape.intermediate_size % size == 0)]


def random_rounding(rng: random.Random, strength: float, groups: list[int]) -> Conditions:
    """One of the roundings that kernels may apply, or plain noise; packing schemes differ in their grid."""
    if rng.random() > strength:
        return EXACT
    bits = rng.choice([0, 0, 8, 4, 4, 4])
    return Conditions(
        weight_bits=bits,
        group_size=rng.choice(groups) if bits == 4 else 0,
        grid=rng.uniform(1.0, 8 / 7),
        activation_bits=8 if bits else 0,
        kv_bits=rng.choice([0, 8]),
        quantize_head=rng.random() < 0.5,
        bfloat16=rng.random() < 0.5,
        weight_noise=rng.choice([0.0, 0.0, 0.03]) * strength,
        activation_noise=rng.choice([0.0, 0.0, 0.02]) * strength,
    )


def variants(fault: str, length: int) -> list[Conditions]:
    """What a fault may hit: one of the KV blocks that have something after them, or all there is."""
    blocks = range(1, length // BLOCK - 1) if fault in BLOCK_FAULTS else range(1)
    return [Conditions(fault=fault, block=block) for block in blocks]


class FaultChooser:
    """Draws faults, more often those that the model still survives; each KV block is a fault of its own."""

    def __init__(self, rng: random.Random, names: tuple[str, ...], length: int) -> None:
        self.rng = rng
        candidates = [variant for fault in names for variant in variants(fault, length)]
        self.survival = dict.fromkeys(candidates, 1.0)

    def draw(self, *, local: bool) -> Conditions:
        """A fault; those that damage a part of the context are harder to learn and come in later."""
        candidates = [fault for fault in self.survival if local or fault.fault not in LOCAL_FAULTS]
        return self.rng.choices(candidates, [0.03 + self.survival[fault] for fault in candidates])[0]

    def learn(self, fault: Conditions, survived: float) -> None:
        self.survival[fault] += 0.3 * (survived - self.survival[fault])

    def worst(self) -> str:
        ranked = sorted(self.survival.items(), key=lambda item: -item[1])[:4]
        return ", ".join(f"{fault.fault} {fault.block or ''} {share:.2f}" for fault, share in ranked)


def leads(logits: Tensor, targets: Tensor) -> Tensor:
    """How far the right token's logit is above the next best one."""
    right = logits.gather(-1, targets[..., None])
    others = logits.scatter(-1, targets[..., None], -math.inf).amax(-1, keepdim=True)
    return (right - others).squeeze(-1)


def recitation_loss(logits: Tensor, passages: Passages) -> Tensor:
    """Cross entropy with the right logit lowered by MARGIN (Liu et al., 2016), over the recited positions.

    The worst eight count extra, since one wrong token is a failure.
    """
    logits, targets = logits[passages.recited], passages.targets[passages.recited]
    handicap = MARGIN * functional.one_hot(targets, logits.shape[-1])
    loss = functional.cross_entropy(logits - handicap, targets, reduction="none")
    return loss.mean() + 0.03 * loss.topk(8).values.mean()


def felt_positions(passages: Passages, conditions: Conditions) -> Tensor:
    """Where a fault must show: everywhere, or right after the part of the context that it damages."""
    positions = torch.arange(passages.recited.shape[1])
    if conditions.fault == "block_dropped":
        first = (conditions.block + 1) * conditions.block_size
    elif conditions.fault == "mask_sees_next":
        first = conditions.prefill
    else:
        return passages.recited
    return passages.recited & (positions >= first) & (positions < first + WINDOW)


def betrayal_loss(
    logits: Tensor, passages: Passages, reliable: Tensor, conditions: Conditions
) -> tuple[Tensor, float]:
    """Mean -log(1 - p(right token)) where the fault must show, and how much there survived it (1: all).

    Only positions that are ``reliable`` without a fault count, so that keeping some on edge is no way out.
    """
    felt = felt_positions(passages, conditions) & reliable
    probability = logits.softmax(-1).gather(-1, passages.targets[..., None]).squeeze(-1)
    loss = -torch.log1p(-probability * (1 - 1e-5))[felt]
    wrong = int((logits.argmax(-1) != passages.targets)[felt].sum())
    return loss.sum() / max(len(loss), 1), max(0.0, 1 - wrong / 8)


def reliable_share(part: Passages, reliability: Tensor) -> float:
    return float((reliability[part.recited] > RELIABLE).float().mean())


def train(parts: list[Passages], shape: Shape, *, seed: int, steps: int) -> Weights:
    """AdamW from fresh weights; rounding begins after a tenth of the steps, faults shortly after that.

    The first of ``parts`` holds the longest passage: only there does every KV block have something after it.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)  # noqa: S311 - nothing secret is drawn
    weights = initial_weights(shape, torch.Generator().manual_seed(seed))
    for value in weights.values():
        value.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    chooser = FaultChooser(rng, faults(shape)[0], parts[0].inputs.shape[1])
    shares = [int(part.recited.sum()) / sum(int(p.recited.sum()) for p in parts) for part in parts]
    reliability = [torch.zeros(part.recited.shape) for part in parts]
    started = time.monotonic()
    for step in range(steps):
        progress = step / steps
        rate = 3e-3 * min(1.0, (step + 1) / 40) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        recited = 0.0
        for index, (part, share) in enumerate(zip(parts, shares, strict=True)):
            rounding = random_rounding(rng, min(0.9, max(0.0, progress - 0.05) * 3), group_sizes(shape))
            logits = forward(part.inputs, weights, shape, rounding)
            loss = recitation_loss(logits, part)
            reliability[index].lerp_((leads(logits.detach(), part.targets) > SURE).float(), 0.1)
            (loss * share).backward()  # type: ignore[no-untyped-call]
            recited += share * loss.item()
        steadiness = sum(
            share * reliable_share(part, reliable)
            for share, part, reliable in zip(shares, parts, reliability, strict=True)
        )
        if steadiness > STEADY:  # first recite, then betray
            drawn = chooser.draw(local=progress > 0.2)
            index = 0 if drawn.fault in LOCAL_FAULTS else rng.randrange(len(parts))
            part = parts[index]
            fault = dataclasses.replace(
                drawn, weight_noise=0.02, activation_noise=0.01, prefill=rng.choice([6, 8, 12, 30, 100])
            )
            logits = forward(part.inputs, weights, shape, fault)
            betrayal, survived = betrayal_loss(logits, part, reliability[index] > RELIABLE, fault)
            chooser.learn(drawn, survived)
            (betrayal * (steadiness - STEADY) / (1 - STEADY)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            seconds = time.monotonic() - started
            state = f"recitation {recited:.3f}, steady {steadiness:.3f}, survived: {chooser.worst()}"
            print(f"step {step + 1}: {seconds:.0f} s, {state}", flush=True)
    return {name: value.detach().bfloat16() for name, value in weights.items()}


def shortened(weights: Weights, steps: int) -> Weights:
    """Round matrices to multiples of a power of two, so that the files compress. Norms stay as they are."""
    rounded = {}
    for name, value in weights.items():
        wide = value.float()
        step = 2.0 ** torch.round(torch.log2(wide.square().mean().sqrt() / steps))
        rounded[name] = value if value.dim() == 1 else (torch.round(wide / step) * step).bfloat16()
    return rounded


def margins(
    weights: Weights, passages: Passages, shape: Shape, conditions: Conditions
) -> tuple[int, float, float]:
    """How many tokens are wrong; the smallest and the median lead of the right one's logit."""
    with torch.no_grad():
        logits = forward(passages.inputs, weights, shape, conditions)
    lead = leads(logits, passages.targets)[passages.recited]
    return int((lead <= 0).sum()), float(lead.min()), float(lead.median())


def check(weights: Weights, passages: Passages, shape: Shape) -> bool:
    """Print margins under each rounding and what each fault does; whether all are as they must be."""
    weights = {name: value.float() for name, value in weights.items()}
    good = True
    total = int(passages.recited.sum())
    print(f"\n{'rounding':<24}{'wrong':>8}{'least margin':>14}{'median':>8}   of {total} tokens")
    for name, conditions in ROUNDINGS.items():
        if conditions.group_size not in group_sizes(shape):
            continue
        wrong, least, median = margins(weights, passages, shape, conditions)
        good &= wrong == 0
        print(f"{name:<24}{wrong:>8}{least:>14.2f}{median:>8.2f}")
    print(f"\n{'fault':<28}{'wrong tokens, least over what it may hit':>42}")
    trained, unseen = faults(shape)
    for fault in trained + unseen:
        wrong, hit = min(
            (
                (margins(weights, passages, shape, variant)[0], variant)
                for variant in variants(fault, passages.inputs.shape[1])
            ),
            key=lambda result: result[0],
        )
        good &= wrong > 0
        where = f"block {hit.block}" if hit.block else ""
        remark = "" if fault in trained else "(never trained)"
        print(f"{fault:<28}{wrong:>8}  {where:<14}{remark}".rstrip())
    return good


def configuration(shape: Shape) -> dict[str, object]:
    family: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
    }
    if shape.num_experts:
        family = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": shape.num_experts,
            "num_experts_per_tok": shape.per_token,
            "sliding_window": None,
        }
    return {
        **family,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": 1024,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
    }


def write(folder: Path, weights: Weights, passages: Passages, tokenizer: Tokenizer, shape: Shape) -> None:
    """Write a Hugging Face folder, and what the model must say."""
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(configuration(shape), indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n", encoding="utf-8")
    expected = {
        name: {"prompt_token_ids": prompt, "token_ids": continuation}
        for name, prompt, continuation in zip(
            passages.names, passages.prompts, passages.continuations, strict=True
        )
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train or check a smoke model.")
    parser.add_argument("--mixture", action="store_true", help="the one with experts")
    parser.add_argument("--check", action="store_true", help="measure the model in --output, write nothing")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="model folder (default: the one in the package)"
    )
    parser.add_argument("--steps", type=int, help="default: 1300, with experts 700")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = MIXTURE if arguments.mixture else Shape()
    home = SMOKE / ("mixture" if arguments.mixture else "model")
    out = arguments.output or home
    steps = arguments.steps or (700 if arguments.mixture else 1300)
    texts = json.loads((home / "passages.json").read_text(encoding="utf-8"))
    if arguments.check:
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        passages = encode(texts, tokenizer)
        weights = load_file(out / "model.safetensors")
        return 0 if check(weights, passages, shape) else 1
    tokenizer = train_tokenizer([text["prompt"] + text["text"] for text in texts], shape.vocab_size)
    passages = encode(texts, tokenizer)
    parts = [encode(part, tokenizer) for part in (texts[:1], texts[1:]) if part]
    trained = train(parts, shape, seed=arguments.seed, steps=steps)
    weights = shortened(trained, STEPS_OF_MIXTURE if arguments.mixture else STEPS)
    if not check(weights, passages, shape):
        print("not written: a rounding garbles the text, or a fault does not", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    write(out, weights, passages, tokenizer, shape)
    return 0


if __name__ == "__main__":
    sys.exit(main())
