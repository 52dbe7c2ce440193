"""``python -m armllm``."""

import sys

from armllm.cli import main

sys.exit(main())
