"""The OpenAI-compatible HTTP server around `AsyncLLM`."""
