"""Where guides for vLLM find the server: ``python -m armllm.entrypoints.openai.api_server``."""
