"""``python -m armllm.entrypoints.openai.api_server --model MODEL``: the same as ``armllm serve MODEL``."""

import sys

from armllm.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
