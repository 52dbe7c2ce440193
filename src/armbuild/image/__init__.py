"""Container images of the engine, put together without daemon, root rights or emulation."""
