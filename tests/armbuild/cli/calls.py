"""Calls of the command in the process of the tests."""

from armbuild.cli import main


def run(capsys, *arguments):
    """The status, and what was written to the output and to the error output."""
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err
