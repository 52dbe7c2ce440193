"""The same model in transformers, as a judge, and what our engine makes of a prompt."""

from __future__ import annotations

import contextlib
import json
import random
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tests.armllm.models.random_configs import VOCAB_SIZE

from armllm import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from armllm import LLM

# Errors of a prompt's logits beside those of simulated roundings: 2.2 at most with AVX512-BF16, half of them
# below 0.8. A type with three bits less would make them eight times as large.
MOST_OF_ROUNDINGS = 3


def save_reference(folder: Path, config: dict[str, Any], seed: int) -> Any:
    """A transformers model with random weights, saved in ``folder`` as its users get it."""
    torch.manual_seed(seed)
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    # as the hub has it, not as this version of transformers rewrites it
    (folder / "config.json").write_text(json.dumps(config))
    return model


def randomize(model: Any, model_type: str) -> None:
    """Weights that leave no part without effect; a norm's is 1 at rest, or 0 where 1 is added."""
    around_zero = model_type.startswith(("gemma", "nemotron", "qwen3_next", "qwen3_5", "vaultgemma"))
    around_zero = around_zero and not model_type.startswith(("gemma3n", "gemma4", "nemotron_h"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in name.lower():  # also BERT's LayerNorm, or the states of all tokens are the same
                rest = 0.0 if around_zero and "linear_attn" not in name else 1.0
                parameter.uniform_(rest - 0.5, rest + 0.5)
            elif "embed" in name:
                parameter.normal_(std=0.3)
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.normal_(std=0.3)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.7, 1.3)


def expected_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """fp32 logits of every step, each computed as for a prompt of its own where frequencies may switch."""
    ids = torch.tensor([[*prompt, *tokens]])
    rope = getattr(model.config, "rope_parameters", None) or {}
    with torch.inference_mode():
        if rope.get("rope_type") != "longrope":
            return model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        steps = [
            model(ids[:, : len(prompt) + step], use_cache=False).logits[0, -1] for step in range(len(tokens))
        ]
    return torch.stack(steps).float()


def rounding_noise(model: Any, prompt: list[int], tokens: list[int], dtype: torch.dtype) -> float:
    """How far roundings to ``dtype`` move the logits, as a share of their norm: from four draws.

    The result of every module is off by up to half an epsilon, at random. What a model makes of a rounding
    differs by a factor of five, as attention over many keys and norms of small branches enlarge it layer
    after layer. Rotations are left exact, as in ours.
    """
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        exact = model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
        with rounded_modules(model, dtype):
            noisy = model(ids.repeat(4, 1), use_cache=False).logits[:, len(prompt) - 1 : -1]
    return float((noisy - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@contextlib.contextmanager
def rounded_modules(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Results of the modules of ``model`` are off by roundings, other ones in each call."""
    generator = torch.Generator().manual_seed(0)

    def off(_module: Any, _inputs: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            return output * (
                1 + torch.finfo(dtype).eps * (torch.rand(output.shape, generator=generator) - 0.5)
            )
        return tuple(off(None, None, part) for part in output) if type(output) is tuple else output

    modules = [module for name, module in model.named_modules() if name and "rotary" not in name]
    hooks = [module.register_forward_hook(off) for module in modules]
    yield
    for hook in hooks:
        hook.remove()


def random_prompts(lengths: Iterable[int], seed: int) -> list[list[int]]:
    """Token ids, none of them special."""
    rng = random.Random(seed)  # noqa: S311 - test data
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in lengths]


class Spy:
    """Greedy tokens of an engine and the logits that they were chosen from."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._seen: list[torch.Tensor] = []
        run = llm.llm_engine.runner.run

        def spy(*arguments: Any) -> torch.Tensor:
            logits = run(*arguments)
            self._seen.append(logits.clone())
            return logits

        llm.llm_engine.runner.run = spy  # type: ignore[method-assign]

    def generate(self, prompt: list[int], num_tokens: int, **options: Any) -> tuple[list[int], torch.Tensor]:
        """Tokens and fp32 logits ``[num_tokens, vocab_size]``; ``options`` are those of `LLM.generate`."""
        self._seen.clear()
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        (output,) = self.llm.generate(list(prompt), params, use_tqdm=False, **options)
        return list(output.outputs[0].token_ids), torch.cat(self._seen)


def check_logits(
    llm: Spy,
    model: Any,
    prompts: Iterable[list[int]],
    num_tokens: int,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Logits of a `Spy` are a model's within 1e-4; tokens are the best where the next is not as good."""
    for prompt in prompts:
        tokens, logits = llm.generate(prompt, num_tokens, **options)
        expected = expected_logits(model, prompt, tokens)
        torch.testing.assert_close(
            logits, expected, rtol=0, atol=1e-4, msg=lambda text: f"{config or ''}\n{text}"
        )
        best = expected.topk(2).values
        clear = best[:, 0] - best[:, 1] > 2e-4
        assert torch.equal(torch.tensor(tokens)[clear], expected.argmax(-1)[clear])
