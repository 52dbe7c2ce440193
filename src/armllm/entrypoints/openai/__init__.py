"""Module names that guides for vLLM use."""
