"""What vLLM has under this name: its argument parser and its helpers."""

from armllm.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
