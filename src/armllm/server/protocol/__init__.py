"""The types of HTTP: requests are pydantic models, answers typed dictionaries."""
