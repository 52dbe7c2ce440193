"""The start of the program: Ctrl-C while its modules load prints no traceback either."""

import sys

from armbuild.signals import interrupt_once


def run() -> int:
    """Load the command line, run it and return its exit status."""
    try:
        interrupt_once()
        from armbuild.cli import main  # noqa: PLC0415 - it takes a while

        return main()
    except KeyboardInterrupt:
        print("armbuild: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
