"""OpenVINO as the back end of the engine: its graph, its attention and its KV cache, under our scheduler."""
