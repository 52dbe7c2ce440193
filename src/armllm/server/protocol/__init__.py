"""What comes in and goes out over HTTP: requests are pydantic models, answers typed dictionaries."""
