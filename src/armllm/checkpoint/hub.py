"""From what a user calls a model to a place on this disk: a folder, a GGUF file, or a name on the hub."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from armllm.errors import CheckpointError, HubUnreachableError
from armllm.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("*.json", "*.model", "merges.txt")
WITHOUT_WEIGHTS = (*TOKENIZER_FILES, "*.jinja")
WANTED = (*WITHOUT_WEIGHTS, "*.safetensors")
IR = "openvino_model.xml"
WANTED_BY_OPENVINO = (*WANTED, IR, "openvino_model.bin")
# Subfolders hold other formats, consolidated files the same weights once more under Mistral's own names.
UNWANTED = ("*/*", "consolidated*")
SHOWN = 200  # characters of a place that a message repeats
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_PLACE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENOTDIR)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubOptions:
    """How a name is looked up on the Hugging Face hub.

    - revision: a branch, tag or commit; default: main.
    - cache_dir: the folder of downloads; default: ``$HF_HOME/hub``.
    - token: for private and gated models; default: HF_TOKEN, or what ``hf auth login`` stored.
    - patterns: which files are wanted.
    """

    revision: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = dataclasses.field(default=None, repr=False)
    patterns: tuple[str, ...] = WANTED


def resolve_model(source: str, what: str = "model", options: HubOptions = HubOptions()) -> Path:
    """The folder or .gguf file that ``source`` names; one on the Hugging Face hub is downloaded if need be.

    What is in the hub's cache already is found without a network. CheckpointError says in one line what
    failed; ``what`` names the option in it.
    """
    try:
        path = Path(source).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, no permission, ~ of an unknown user
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{what} {source[:SHOWN]!r} can't be looked up: {reason}") from None
    if is_folder or (is_file and path.suffix == ".gguf"):
        for file in _unreadable(path):
            raise CheckpointError(
                f"{what} {source!r}: user {os.getuid()} may not read {file}; `chmod -R a+rX` lets everybody"
            )
        return path
    if is_file and path.name == IR:
        raise CheckpointError(f"{what} {source!r} is a file; give its folder, and --backend openvino")
    if is_file:
        raise CheckpointError(f"{what} {source!r} is a file, but neither a folder nor a .gguf file")
    if not HUB_NAME.fullmatch(source):
        raise CheckpointError(
            f"{what} {source[:SHOWN]!r} is not a folder; give the path of a checkpoint,"
            " or a hub name such as org/name"
        )
    return _download(source, what, options)


def _unreadable(path: Path) -> Iterator[Path]:
    """What this user may not read of a model: a container's user is often another than the files' owner."""
    if not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
        yield path
        return
    for pattern in WANTED:
        yield from (file for file in path.glob(pattern) if file.exists() and not os.access(file, os.R_OK))


@functools.lru_cache(maxsize=8)
def _download(name: str, what: str, options: HubOptions) -> Path:
    # here, because importing it takes a third of a second
    import huggingface_hub  # noqa: PLC0415

    def fetch(*, local_files_only: bool) -> Path:
        folder: str = huggingface_hub.snapshot_download(
            name,
            revision=options.revision,
            cache_dir=options.cache_dir,
            token=options.token or None,
            allow_patterns=list(options.patterns),
            ignore_patterns=list(UNWANTED),
            local_files_only=local_files_only,
        )
        return Path(folder)

    try:
        with progress.step(f"downloading {name}"):
            return fetch(local_files_only=False)
    except Exception as error:  # noqa: BLE001 - it raises its own, httpx's, OSError and ValueError
        if getattr(error, "errno", None) not in NO_ROOM:  # then what is there is half a model
            with contextlib.suppress(Exception):  # a cache that can't be written may have all that is needed
                return fetch(local_files_only=True)
        kind = HubUnreachableError if _no_answer(error) else CheckpointError
        reason = _reason(error, name, options)
        raise kind(f"{what} {name!r} is not a folder here, and the hub did not give it: {reason}") from None


def _causes(error: BaseException) -> list[BaseException]:
    """The error, the one that it came from, and so on."""
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    return causes


def _no_answer(error: BaseException) -> str | None:
    """Which host did not answer, or not to the end, and why; None where something else went wrong."""
    from huggingface_hub import constants  # noqa: PLC0415 - as above

    causes = _causes(error)
    names = {one.__name__ for cause in causes for one in type(cause).__mro__}  # of any HTTP client
    host, reason = urlsplit(constants.ENDPOINT).netloc, re.sub(r"^\[Errno -?\d+\] ", "", str(causes[-1]))
    if "RemoteProtocolError" in names:
        return f"the download from {host} broke off, and the same command goes on with it: {reason:.200}"
    if not names & {"NetworkError", "TimeoutException", "ConnectionError", "gaierror"}:
        return None
    return f"no answer from {host}: {reason:.200}"


def _reason(error: Exception, name: str, options: HubOptions) -> str:
    """What went wrong and what to do about it."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - as above

    cache = options.cache_dir or constants.HF_HUB_CACHE
    answers = (getattr(cause, "response", None) for cause in _causes(error))
    status = next((answer.status_code for answer in answers if answer is not None), None)
    command = f"hf download {name}" + (f" --revision {options.revision}" if options.revision else "")
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {options.revision or 'main'!r}"
    if isinstance(error, errors.RepositoryNotFoundError | errors.GatedRepoError) or status in {401, 403}:
        return "there is no such model, or it needs a token that may read it: set HF_TOKEN"
    if isinstance(error, OSError) and error.errno in {*NO_PLACE, *NO_ROOM}:
        return (
            f"{os.strerror(error.errno)}: {error.filename or cache}; mount a folder there, or set HF_HOME or"
            " --download-dir to another"
        )
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {cache} does not have it; `{command}` downloads it there"
    line = str(_causes(error)[-1]).strip().split("\n", 1)[0]
    cause = (
        _no_answer(error)
        or (f"status {status}: " if status else f"{type(error).__name__}: ") + f"{line:.200}"
    )
    return (
        f"{cause}; without a network, run `{command}` on another machine,"
        f" copy its folder to {cache}, and set HF_HUB_OFFLINE=1"
    )
