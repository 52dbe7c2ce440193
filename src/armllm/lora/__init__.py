"""Requests for LoRA adapters, under vLLM's names."""
