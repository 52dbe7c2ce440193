"""`armllm serve --distributed-executor-backend ray`: replicas and stages on the machines of a Ray cluster."""
