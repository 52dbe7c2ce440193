"""Let the engine generate the texts of a case, and compare them word for word."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import torch

from armllm import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from armllm.outputs import RequestOutput
    from armllm.smoke.cases import Case, Recitation
    from armllm.tokenizer import Tokenizer

CONTEXT = 6  # tokens shown on each side of a difference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a text first differs: request and token, from 0; the texts begin a few tokens earlier."""

    request: int
    passage: str
    token: int
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"request {self.request} ({self.passage}), token {self.token}"
        return f"{where}: expected {self.expected!r}, got {self.got!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What became of a case in one dtype, its weights rounded or not.

    ``model`` is the name of the model's folder, ``tokens`` are generated ones, ``seconds`` exclude loading.
    """

    model: str
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    case: str
    ok: bool
    requests: int
    threads: int
    tokens: int
    seconds: float
    load_seconds: float
    preemptions: int
    first_difference: Difference | None = None
    error: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def problem(self) -> str:
        """What went wrong, in a sentence; empty when nothing did."""
        return self.error or str(self.first_difference or "")

    def as_dict(self) -> dict[str, Any]:
        """Return the run as a JSON value."""
        rounded = {
            name: round(getattr(self, name), 3) for name in ("seconds", "load_seconds", "tokens_per_second")
        }
        return {**dataclasses.asdict(self), **rounded}


def run(case: Case, dtype: str, folder: Path, quantization: str | None = None) -> Run:
    """Run ``case`` with the model in ``folder``, its weights rounded by ``quantization``.

    An engine that raises has failed; the run says how.
    """
    started = time.perf_counter()
    loaded = finished = None
    outputs: list[RequestOutput] = []
    difference, error, preemptions = None, None, 0
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads or threads)
    try:
        llm = LLM(str(folder), dtype=dtype, quantization=quantization, **case.options)
        loaded = time.perf_counter()
        outputs = llm.generate(
            [recitation.prompt for recitation in case.recitations],
            [
                SamplingParams(temperature=0.0, max_tokens=len(recitation.expected))
                for recitation in case.recitations
            ],
            use_tqdm=False,
        )
        finished = time.perf_counter()
        preemptions = llm.llm_engine.scheduler.num_preemptions
        difference = first_difference(case, outputs, llm.get_tokenizer())
    except Exception as problem:  # noqa: BLE001 - whatever stops the engine is the verdict, in one line
        error = f"{type(problem).__name__}: {problem}"
    finally:
        torch.set_num_threads(threads)
    finished = finished or time.perf_counter()
    loaded = loaded or finished
    return Run(
        model=folder.name,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=case.options.get("kv_cache_dtype", "auto"),
        case=case.name,
        ok=difference is None and error is None,
        requests=len(case.recitations),
        threads=case.threads or threads,
        tokens=sum(len(output.outputs[0].token_ids) for output in outputs),
        seconds=finished - loaded,
        load_seconds=loaded - started,
        preemptions=preemptions,
        first_difference=difference,
        error=error,
    )


def first_difference(case: Case, outputs: list[RequestOutput], tokenizer: Tokenizer) -> Difference | None:
    """Compare tokens, text and the reason of the end of every request; None if all are as expected."""
    if len(outputs) != len(case.recitations):
        raise RuntimeError(f"{len(case.recitations)} prompts but {len(outputs)} outputs")
    for index, (recitation, output) in enumerate(zip(case.recitations, outputs, strict=True)):
        found = _difference(recitation, output, tokenizer)
        if found is not None:
            token, expected, got = found
            return Difference(
                request=index, passage=recitation.passage.name, token=token, expected=expected, got=got
            )
    return None


def _difference(
    recitation: Recitation, output: RequestOutput, tokenizer: Tokenizer
) -> tuple[int, str, str] | None:
    expected, completion = list(recitation.expected), output.outputs[0]
    got = list(completion.token_ids)
    if got != expected:
        same = next(
            (i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None
        )
        token = min(len(got), len(expected)) if same is None else same
        shown = slice(max(0, token - CONTEXT), token + CONTEXT)
        right, wrong = (tokenizer.decode(ids[shown], skip_special_tokens=False) for ids in (expected, got))
        return token, right, wrong
    if recitation.num_given == 0 and completion.text != recitation.passage.text:
        pairs = enumerate(zip(completion.text, recitation.passage.text, strict=False))
        start = max(0, next((i for i, (a, b) in pairs if a != b), len(completion.text)) - 20)
        shown = slice(start, start + 40)
        return len(got), recitation.passage.text[shown], completion.text[shown]
    if completion.finish_reason != "stop":
        return len(got), "finish_reason stop", f"finish_reason {completion.finish_reason}"
    return None
