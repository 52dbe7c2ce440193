"""vLLM's module of this name: its argument parser and its helpers."""

from armllm.utils.argparse_utils import FlexibleArgumentParser
from armllm.utils.programs import random_uuid

__all__ = ["FlexibleArgumentParser", "random_uuid"]
