"""The start of the program: Ctrl-C while its modules load prints no traceback either."""

import sys


def run() -> int:
    """Load the command line, run it and return its exit status."""
    try:
        from armbuild.cli import main  # noqa: PLC0415 - it takes a while
    except KeyboardInterrupt:
        print("armbuild: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
