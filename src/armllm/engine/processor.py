"""From what a user asks to sequences that the scheduler can run; all that can be refused is refused here."""

from __future__ import annotations

import array
import dataclasses
import random
import threading
from typing import TYPE_CHECKING, Any

from armllm.engine.detokenizer import Detokenizer
from armllm.engine.logit_rules import LogitRules
from armllm.engine.pictures import place_pictures
from armllm.engine.pooling import Pooler
from armllm.engine.prompt_logprobs import PromptLogprobs
from armllm.engine.sequence import Request, Sequence
from armllm.engine.stop_strings import StopStrings
from armllm.engine.structured import GrammarCompiler
from armllm.errors import RequestError
from armllm.inputs import PicturePrompt, TokenizedText
from armllm.pictures import PictureReader, picture_limit
from armllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    from armllm.checkpoint.config import ModelConfig
    from armllm.engine.adapters import AdapterCache
    from armllm.engine.config import EngineConfig
    from armllm.engine.pictures import Pictures
    from armllm.engine.pooling import Pooling
    from armllm.engine.prompts import EnginePrompt
    from armllm.engine.structured import Matcher
    from armllm.lora.request import LoRARequest
    from armllm.pooling_params import PoolingParams
    from armllm.tokenizer import Tokenizer

# what the sequence of a request for an embedding has as sampling parameters; it never samples
POOLED = SamplingParams(temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
NOTHING_DRAWN = random.Random(0)  # noqa: S311 - of all that are pooled


PREPARED = 8  # sets of lists that are cached


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    """What the lists of a request's parameters come down to."""

    stop_token_ids: frozenset[int]
    rules: LogitRules | None
    stop: StopStrings | None


class Processor:
    """Checks prompts and parameters against the limits of the model and of ``config``.

    May be used by several threads at once.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        model_config: ModelConfig,
        max_model_len: int,
        pooling: Pooling,
        end_token_ids: frozenset[int],
        config: EngineConfig,
        adapters: AdapterCache,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = model_config.vocab_size
        self.max_model_len = max_model_len
        self.pooling = pooling
        self.is_encoder = model_config.is_encoder
        self.generates = model_config.generates and not self.is_encoder and pooling.classes is None
        self.end_token_ids = end_token_ids
        self.priorities = config.scheduling_policy == "priority"
        self.max_logprobs = config.max_logprobs
        self.grammars = (
            GrammarCompiler(tokenizer, self.vocab_size, end_token_ids) if tokenizer is not None else None
        )
        self._adapters = adapters
        self._picture_config = model_config.pictures
        self.picture_limit = picture_limit(
            config.model_folder, model_config.pictures, config.most_pictures, config.num_processes
        )
        self.reader = (
            PictureReader(config.model_folder, model_config.pictures)
            if model_config.pictures is not None and not self.picture_limit.refusal
            else None
        )
        self._lock = threading.Lock()
        self._prepared: dict[Any, _Prepared] = {}
        self._seeds = random.Random(config.seed)  # noqa: S311 - sampling, not secrecy

    def make_request(
        self,
        request_id: str,
        prompt: EnginePrompt,
        params: SamplingParams,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> Request:
        """A request with its ``n`` sequences; raises RequestError for what is not supported."""
        if not self.generates:
            raise RequestError("this model generates no text: it is for embeddings, classes or scores")
        self._check_priority(priority)
        token_ids, pictures = self._tokenize_with_pictures(prompt)
        self._check_length(token_ids)
        self._check_params(params)
        prepared = self._prepare(params)
        matcher = self._make_matcher(params)
        adapter = self._adapters.get(lora_request)
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
                # a string seed is hashed: neighboring seeds give unrelated streams
                random=random.Random(f"{seed}/{index}"),  # noqa: S311 - sampling, not secrecy
                detokenizer=self._make_detokenizer(token_ids, params, prepared.stop),
                stop_token_ids=prepared.stop_token_ids,
                rules=prepared.rules,
                priority=priority,
                matcher=matcher.copy() if matcher is not None else None,
                adapter=adapter,
                pictures=pictures,
            )
            for index in range(params.n)
        ]
        if params.prompt_logprobs is not None:
            sequences[0].prompt_logprobs = PromptLogprobs(token_ids, params.prompt_logprobs, self.tokenizer)
        return Request(request_id, _text(prompt), token_ids, sequences, lora_request=lora_request)

    def make_pooling_request(
        self,
        request_id: str,
        prompt: EnginePrompt,
        params: PoolingParams,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> Request:
        """A request for what the prompt's states are pooled into."""
        self._check_priority(priority)
        token_ids = self.tokenize(prompt)
        self._check_length(token_ids, room=0)
        self.pooling.check(params)
        sequence = Sequence(
            request_id=request_id,
            index=0,
            token_ids=array.array("i", token_ids),
            num_prompt_tokens=len(token_ids),
            max_tokens=0,
            params=POOLED,
            end_token_ids=frozenset(),
            random=NOTHING_DRAWN,
            detokenizer=None,
            priority=priority,
            pooler=Pooler(params, self.pooling, token_ids),
            second_segment=params.second_segment,
            adapter=self._adapters.get(lora_request),
        )
        return Request(request_id, _text(prompt), token_ids, [sequence], lora_request=lora_request)

    def _check_priority(self, priority: int) -> None:
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise RequestError(f"priority must be an integer, not {priority!r}")
        if priority and not self.priorities:
            raise RequestError(f"priority {priority} needs an engine with scheduling_policy 'priority'")

    def _make_matcher(self, params: SamplingParams) -> Matcher | None:
        if params.structured_outputs is None:
            return None
        if self.grammars is None:
            raise RequestError("skip_tokenizer_init=True: structured_outputs needs a tokenizer")
        return self.grammars.matcher(params.structured_outputs)

    def _tokenize_with_pictures(self, prompt: EnginePrompt) -> tuple[list[int], Pictures | None]:
        """The same, with all tokens of pictures, and what these show."""
        if not isinstance(prompt, PicturePrompt):
            return self.tokenize(prompt), None
        token_ids = self.tokenize(prompt.prompt)
        self.picture_limit.check(len(prompt.pictures))
        assert self.reader is not None  # noqa: S101 - checked with the others
        assert self._picture_config is not None  # noqa: S101
        found = list(self.reader.read_each(prompt.pictures))
        return place_pictures(token_ids, found, self._picture_config, self.max_model_len)

    def tokenize(self, prompt: EnginePrompt) -> list[int]:
        """The token ids of a prompt; RequestError for ids that are none of the vocabulary's."""
        if isinstance(prompt, PicturePrompt):
            raise RequestError("pictures are only taken for the generation of text, by generate and chat")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("skip_tokenizer_init=True: prompts must be token ids")
            self._check_text_length(self.tokenizer, prompt)
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, TokenizedText):
            prompt = prompt.token_ids
        if {*map(type, prompt)} != {int} or min(prompt) < 0 or max(prompt) >= self.vocab_size:
            self._check_each(prompt)
        return list(prompt)

    def _check_each(self, token_ids: Sequences[int]) -> None:
        for token_id in token_ids:
            if (
                not isinstance(token_id, int)
                or isinstance(token_id, bool)
                or not 0 <= token_id < self.vocab_size
            ):
                raise RequestError(
                    f"prompt token id {token_id!r} is not in the vocabulary of {self.vocab_size}"
                )

    def tokenize_together(self, batch: Sequences[EnginePrompt]) -> Sequences[EnginePrompt]:
        """The same prompts with the token ids of texts: these take less time when they come together."""
        texts = [prompt for prompt in batch if isinstance(prompt, str)]
        if self.tokenizer is None or len(texts) == 1:
            return batch
        for text in texts:
            self._check_text_length(self.tokenizer, text)
        found = self.tokenizer.encode_each(texts)
        return [TokenizedText(one, next(found)) if isinstance(one, str) else one for one in batch]

    def beginning(self, prompt: EnginePrompt, most: int) -> list[int]:
        """The same, no more than ``most``: a text loses its end, and keeps its special tokens."""
        if isinstance(prompt, str) and self.tokenizer is not None:
            return self.tokenizer.encode_beginning(prompt, most)
        return self.tokenize(prompt)[:most]

    def _check_text_length(self, tokenizer: Tokenizer, text: str) -> None:
        """Refuse a text that is far too long without spending the seconds that tokenizing it takes."""
        if len(text) > tokenizer.longest_token * self.max_model_len:
            raise RequestError(
                f"the prompt has {len(text)} characters, which can't be as few tokens as the model's"
                f" max_model_len {self.max_model_len}"
            )

    def _check_length(self, token_ids: list[int], room: int = 1) -> None:
        """Refuse a prompt that leaves no room for ``room`` tokens of output."""
        if not token_ids:
            raise RequestError("the prompt is empty: it has no tokens")
        if len(token_ids) + room > self.max_model_len:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens; {'with at least one of output ' if room else ''}"
                f"that is more than the model's max_model_len {self.max_model_len}"
            )

    def _prepare(self, params: SamplingParams) -> _Prepared:
        """What its lists come down to; prompts that share them share this, too."""
        key = (
            params.ignore_eos,
            *(
                tuple(entries) if entries is not None else None
                for entries in (
                    params.stop,
                    params.bad_words,
                    params.stop_token_ids,
                    params.allowed_token_ids,
                )
            ),
            tuple((params.logit_bias or {}).items()),
        )
        found = self._prepared.get(key)
        if found is None:
            for name, token_ids in params.token_ids().items():
                most = max(token_ids, default=0)
                if most >= self.vocab_size:
                    raise RequestError(f"{name}: {most} is not in the vocabulary of {self.vocab_size}")
            ends = frozenset() if params.ignore_eos else self.end_token_ids
            found = _Prepared(
                frozenset(params.stop_token_ids or ()),
                LogitRules.of(params, ends, self._encode_words(params)),
                StopStrings(params.stop) if params.stop else None,
            )
            with self._lock:
                while len(self._prepared) >= PREPARED:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[key] = found
        return found if params.adjusts_logits else dataclasses.replace(found, rules=None)

    def _check_params(self, params: SamplingParams) -> None:
        """Refuse what this model can't do."""
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and count > self.vocab_size:
                raise RequestError(f"{name} {count} is above the vocabulary of {self.vocab_size}")
            if count is not None and self.max_logprobs != -1 and not 0 <= count <= self.max_logprobs:
                wanted = "-1, the whole vocabulary," if count == -1 else count
                raise RequestError(f"{name} {wanted} is above the engine's max_logprobs {self.max_logprobs}")
        if self.tokenizer is None:
            for name in ("stop", "bad_words"):
                if getattr(params, name):
                    raise RequestError(f"skip_tokenizer_init=True: {name} needs a tokenizer")

    def _encode_words(self, params: SamplingParams) -> list[list[int]]:
        """The token ids of the bad words."""
        if self.tokenizer is None:
            return []
        # at the start of a text and after a space a word has other tokens
        bad_words = dict.fromkeys(word.lstrip(" ") for word in params.bad_words or ())
        texts = [text for word in bad_words for text in (word, " " + word)]
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        if [] in encoded:
            word = texts[encoded.index([])]
            raise RequestError(f"bad_words: {word!r:.80} has no tokens, so it can't be banned")
        return encoded

    def _make_detokenizer(
        self, prompt_token_ids: list[int], params: SamplingParams, stop: StopStrings | None
    ) -> Detokenizer | None:
        if self.tokenizer is None or not params.detokenize:
            return None
        return Detokenizer(
            self.tokenizer,
            prompt_token_ids,
            stop=stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )


def _text(prompt: EnginePrompt) -> str | None:
    """What a prompt was written as."""
    if isinstance(prompt, PicturePrompt):
        prompt = prompt.prompt
    if isinstance(prompt, TokenizedText):
        return prompt.text
    return prompt if isinstance(prompt, str) else None
