"""From sequences to what the user sees of them, by the kind of output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError
from armllm.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    RequestStateStats,
    ScoringOutput,
    ScoringRequestOutput,
)
from armllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from armllm.engine.sequence import Request, Sequence
    from armllm.lora.request import LoRARequest


def report(request: Request, pooled: Any = None) -> RequestOutput | None:
    """The request's next output, or None if nothing is due; its content counts as reported.

    ``pooled``: what was computed of its prompt's states.
    """
    sequences = request.sequences
    first, finished = sequences[0], request.finished
    kind = first.params.output_kind
    if kind is RequestOutputKind.FINAL_ONLY:
        if not finished:
            return None
    else:
        advanced = [sequence for sequence in sequences if sequence.num_reported_tokens < _num_said(sequence)]
        if not advanced and not finished:
            return None
        if kind is RequestOutputKind.DELTA:
            sequences = advanced
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[
            _completion(sequence, request.lora_request, delta=kind is RequestOutputKind.DELTA)
            for sequence in sequences
        ],
        finished=finished,
        num_cached_tokens=first.num_cached_tokens or 0,
        prompt_logprobs=first.prompt_logprobs.described if first.prompt_logprobs is not None else None,
        metrics=_metrics(request),
        embedding=pooled,
        error=request.error,
        lora_request=request.lora_request,
    )


def _metrics(request: Request) -> RequestStateStats:
    sequences = request.sequences
    return RequestStateStats(
        num_generation_tokens=sum(sequence.num_output_tokens for sequence in sequences),
        num_preemptions=sum(sequence.num_preemptions for sequence in sequences),
        arrival_time=request.arrival_time,
        queued_ts=request.queued_ts,
        scheduled_ts=min((one.scheduled_ts for one in sequences if one.scheduled_ts), default=0.0),
        first_token_ts=min((one.first_token_ts for one in sequences if one.first_token_ts), default=0.0),
        last_token_ts=max(one.last_token_ts for one in sequences),
    )


def as_embedding(output: RequestOutput) -> EmbeddingRequestOutput:
    """A pooled request's output as its user sees it."""
    return EmbeddingRequestOutput(outputs=EmbeddingOutput(_values(output)), **_about(output))


def as_pooled(output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
    """The same as a tensor, whatever the vector is."""
    import torch  # noqa: PLC0415 - the process that talks to clients does without it

    return PoolingRequestOutput(outputs=PoolingOutput(torch.tensor(_values(output))), **_about(output))


def as_classes(output: RequestOutput) -> ClassificationRequestOutput:
    """The same for a model with classes."""
    return ClassificationRequestOutput(outputs=ClassificationOutput(_values(output)), **_about(output))


def as_score(output: RequestOutput) -> ScoringRequestOutput:
    """The same for a pair of texts and a model with one class."""
    return ScoringRequestOutput(outputs=ScoringOutput(_values(output)[0]), **_about(output))


def _values(output: RequestOutput) -> Any:
    if output.embedding is None:
        raise RequestError(f"request {output.request_id} was aborted")
    return output.embedding


def _about(output: RequestOutput) -> dict[str, Any]:
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "num_cached_tokens": output.num_cached_tokens,
    }


def _num_said(sequence: Sequence) -> int:
    """Output tokens, and one more for the end, which is worth telling even where no token comes with it."""
    return sequence.num_output_tokens + (sequence.finish_reason is not None)


def _completion(sequence: Sequence, lora_request: LoRARequest | None, *, delta: bool) -> CompletionOutput:
    first = sequence.num_reported_tokens if delta else 0
    token_ids = sequence.token_ids[sequence.num_prompt_tokens + first :].tolist()
    text = ""
    if sequence.detokenizer is not None:
        settled = len(sequence.detokenizer.text)
        if sequence.finish_reason is None:
            settled -= sequence.detokenizer.num_held_back()
        start = sequence.num_reported_characters if delta else 0
        text = sequence.detokenizer.text[start:settled]
        sequence.num_reported_characters = settled
    sequence.num_reported_tokens = _num_said(sequence)
    wanted = sequence.params.logprobs is not None
    return CompletionOutput(
        index=sequence.index,
        text=text,
        token_ids=token_ids,
        cumulative_logprob=sequence.cumulative_logprob if wanted else None,
        logprobs=sequence.logprobs[first:] if wanted else None,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        lora_request=lora_request,
    )
