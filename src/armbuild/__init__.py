"""Build, audit and test AArch64 wheels on any Linux machine."""


def version() -> str:
    """Return the installed version, "unknown" when the package runs from a source tree."""
    from importlib import metadata  # noqa: PLC0415 - few commands need it

    try:
        return metadata.version("armllm")
    except metadata.PackageNotFoundError:
        return "unknown"
