"""`armllm route`: several servers of one model behind one address."""
