"""``python -m armllm.entrypoints.openai.api_server --model MODEL``: the same as ``armllm serve MODEL``."""

import sys

from armllm.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["serve", *sys.argv[1:]]))
