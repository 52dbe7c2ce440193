"""What the command lines of `armbuild` and `armllm` share."""
