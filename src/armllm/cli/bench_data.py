"""What the benchmarks of the command line share: their requests, and where figures go."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from armllm.cli.options import only, requests_option
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.bench.dataset import BenchRequest
    from armllm.tokenizer import Tokenizer

InputLen = Annotated[
    int, requests_option("--input-len", "--random-input-len", help="Tokens per random prompt.")
]
OutputLen = Annotated[
    int | None,
    requests_option(
        "--output-len",
        "--random-output-len",
        "--sharegpt-output-len",
        help="Tokens per answer; default: 128, for sharegpt the length of the file's answer.",
    ),
]
BATCH_OUTPUT_LEN = 128


@dataclasses.dataclass
class DataSet:
    """The options of a command that say what its requests are."""

    dataset_name: Annotated[
        str, requests_option(help="Source of prompts: random, or sharegpt with --dataset-path.")
    ] = "random"
    dataset_path: Annotated[str | None, requests_option(help="A ShareGPT JSON file.")] = None
    input_len: InputLen = 1024
    output_len: OutputLen = None
    random_range_ratio: Annotated[
        float, requests_option(help="Spread of the lengths: 0.2 is up to 20 % more or less.")
    ] = 0.0
    num_prompts: Annotated[int, requests_option(help="Number of requests, for each request rate.")] = 1000

    def requests(
        self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int, seed: int
    ) -> Sequence[BenchRequest]:
        from armllm.bench import dataset  # noqa: PLC0415 - --help should not wait for it

        if self.dataset_name == "sharegpt":
            if self.dataset_path is None:
                raise RequestError("--dataset-name sharegpt needs --dataset-path")
            return dataset.sharegpt_requests(
                self.dataset_path,
                self.num_prompts,
                tokenizer=tokenizer,
                output_len=self.output_len,
                max_model_len=max_model_len,
                seed=seed,
            )
        only("--dataset-name", self.dataset_name, ("random", "sharegpt"), "other data sets are not known")
        only("--dataset-path", self.dataset_path, (None,), "random prompts come from no file")
        return dataset.random_requests(
            self.num_prompts,
            input_len=self.input_len,
            output_len=self.output_len or BATCH_OUTPUT_LEN,
            range_ratio=self.random_range_ratio,
            vocab_size=vocab_size,
            seed=seed,
        )


def write(path: str | None, document: dict[str, Any]) -> None:
    """Write figures as JSON, if there is a path for them."""
    if path is not None:
        try:
            Path(path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror or error}") from None


def tell(line: str, *, same_line: bool = False) -> None:
    """Progress, to stderr: on a terminal a line that is written over."""
    if not same_line:
        print(line, file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        print(f"\r{line} ", end="", file=sys.stderr, flush=True)
