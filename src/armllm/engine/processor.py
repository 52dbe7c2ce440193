"""From what a user asks to sequences that the scheduler can run; all that can be refused is refused here."""

from __future__ import annotations

import array
import random
from typing import TYPE_CHECKING

from armllm.engine.detokenizer import Detokenizer
from armllm.engine.sequence import Request, Sequence
from armllm.errors import RequestError

if TYPE_CHECKING:
    from armllm.sampling_params import SamplingParams
    from armllm.tokenizer import Tokenizer


class Processor:
    """Checks prompts and parameters against the model's limits. ``seed``: of requests that bring none."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        end_token_ids: frozenset[int],
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.end_token_ids = end_token_ids
        self._seeds = random.Random(seed)  # noqa: S311 - sampling, not secrecy

    def make_request(self, request_id: str, prompt: str | list[int], params: SamplingParams) -> Request:
        """A request with its ``n`` sequences; RequestError says what can't be honoured."""
        token_ids = self._tokenize(prompt)
        self._check_length(token_ids)
        bad_words = self._check_params(params)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        room = self.max_model_len - len(token_ids)
        sequences = [
            Sequence(
                request_id=request_id,
                index=index,
                token_ids=array.array("i", token_ids),
                num_prompt_tokens=len(token_ids),
                max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
                params=params,
                end_token_ids=frozenset() if params.ignore_eos else self.end_token_ids,
                bad_words=bad_words,
                # a string seed is hashed: neighbouring seeds give unrelated streams
                random=random.Random(f"{seed}/{index}"),  # noqa: S311 - sampling, not secrecy
                detokenizer=self._make_detokenizer(token_ids, params),
            )
            for index in range(params.n)
        ]
        return Request(request_id, prompt if isinstance(prompt, str) else None, token_ids, sequences)

    def _tokenize(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("skip_tokenizer_init=True: prompts must be token ids")
            return self.tokenizer.encode(prompt)
        for token_id in prompt:
            if (
                not isinstance(token_id, int)
                or isinstance(token_id, bool)
                or not 0 <= token_id < self.vocab_size
            ):
                raise RequestError(
                    f"prompt token id {token_id!r} is not in the vocabulary of {self.vocab_size}"
                )
        return list(prompt)

    def _check_length(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty: it has no tokens")
        if len(token_ids) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens; with at least one of output that is more than the"
                f" model's max_model_len {self.max_model_len}"
            )

    def _check_params(self, params: SamplingParams) -> list[list[int]]:
        """Refuse what this model can't do; return the token ids of the bad words."""
        for name, token_ids in params.token_ids().items():
            for token_id in token_ids:
                if token_id >= self.vocab_size:
                    raise RequestError(f"{name}: {token_id} is not in the vocabulary of {self.vocab_size}")
        if params.logprobs is not None and params.logprobs > self.vocab_size:
            raise RequestError(f"logprobs {params.logprobs} is above the vocabulary of {self.vocab_size}")
        if self.tokenizer is None:
            for name in ("stop", "bad_words"):
                if getattr(params, name):
                    raise RequestError(f"skip_tokenizer_init=True: {name} needs a tokenizer")
            return []
        # at the start of a text and after a space a word has other tokens
        words = [word.lstrip(" ") for word in params.bad_words or ()]
        texts = [text for word in words for text in (word, " " + word)]
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def _make_detokenizer(self, prompt_token_ids: list[int], params: SamplingParams) -> Detokenizer | None:
        if self.tokenizer is None or not params.detokenize:
            return None
        return Detokenizer(
            self.tokenizer,
            prompt_token_ids,
            stop=params.stop or (),
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )
