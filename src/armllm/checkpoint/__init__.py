"""What a checkpoint holds: settings, tensors and where they lie; nothing here knows a model or a kernel."""
