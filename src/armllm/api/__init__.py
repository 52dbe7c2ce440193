"""What a program uses: `LLM`, `AsyncLLM` and `LLMEngine`, which open a checkpoint and drive the engine."""
