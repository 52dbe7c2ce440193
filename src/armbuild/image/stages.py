"""Layers as folders, for a Dockerfile to copy: `python -m armbuild.image.stages IMAGE.tar FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from armbuild.errors import ArmbuildError, UsageError
from armbuild.image import reader, unpack


def lay(path: Path, folder: Path, architecture: str = "arm64") -> list[Path]:
    """Unpack each layer of the image at ``path`` into ``folder/0``, ``folder/1``, ..., and return these.

    Raises UsageError when ``folder`` is there already.
    """
    if folder.exists():
        raise UsageError(f"{folder}: there is something already")
    stages = []
    with reader.open_image(path) as image:
        budget = image.budget()
        for number, layer in enumerate(image.manifest(architecture).layers):
            stages.append(folder / str(number))
            stages[-1].mkdir(parents=True)
            image.verify(layer)
            unpack.apply(image, layer, stages[-1], budget)
    return stages


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    if len(arguments) != 2:
        print("usage: python -m armbuild.image.stages IMAGE.tar FOLDER", file=sys.stderr)
        return UsageError.status
    try:
        lay(Path(arguments[0]), Path(arguments[1]))
    except ArmbuildError as error:
        print(f"armbuild: error: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
