from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from armbuild.cli.options import AsJson
from armbuild.errors import UsageError
from armcli.groups import option_of, output_option

if TYPE_CHECKING:
    import typer

cpu_option = option_of("CPU")


def register(app: typer.Typer) -> None:
    """Add ``armbuild detect`` to the command line."""
    app.command("detect")(detect_command)


def detect_command(  # noqa: PLR0917 - the options of the command line
    target: Annotated[str | None, cpu_option(metavar="NAME", help="Describe this core or product.")] = None,
    listing: Annotated[bool, cpu_option("--list", help="List the names that --target takes.")] = False,
    cpuinfo: Annotated[
        str | None,
        cpu_option(metavar="FILE", help="Describe a copy of /proc/cpuinfo; - reads standard input."),
    ] = None,
    hwcap: Annotated[
        str | None, cpu_option(metavar="HEX", help="AT_HWCAP of the machine of --cpuinfo.")
    ] = None,
    hwcap2: Annotated[
        str | None, cpu_option(metavar="HEX", help="AT_HWCAP2 of the machine of --cpuinfo.")
    ] = None,
    hwcap3: Annotated[
        str | None, cpu_option(metavar="HEX", help="AT_HWCAP3 of the machine of --cpuinfo.")
    ] = None,
    flags: Annotated[
        str | None,
        output_option(metavar="COMPILER", help="Print only the flags for gcc, clang, zig or cmake."),
    ] = None,
    as_json: AsJson = False,
    verbose: Annotated[
        bool,
        output_option("--verbose", help="List every op and feature, and print the traceback of an error."),
    ] = False,
) -> int:
    """Describe an Arm CPU: features, kernels, threads, compiler flags.

    Without options the command describes this machine.
    """
    import armisa  # noqa: PLC0415 - only when the command runs
    from armisa.explanation import explain  # noqa: PLC0415

    hwcaps = {"hwcap": hwcap, "hwcap2": hwcap2, "hwcap3": hwcap3}
    if sum((listing, target is not None, cpuinfo is not None)) > 1:
        raise UsageError("--target, --cpuinfo and --list exclude each other")
    if any(hwcaps.values()) and cpuinfo is None:
        raise UsageError("--hwcap, --hwcap2 and --hwcap3 go with --cpuinfo")
    if flags is not None and flags not in armisa.COMPILERS:
        raise UsageError(f"--flags {flags}: choose from {', '.join(armisa.COMPILERS)}")
    if listing:
        names = armisa.target_names()
        print(json.dumps({"schema": 1, "targets": list(names)}) if as_json else "\n".join(names))
        return 0
    if target is not None:
        found = armisa.Isa.from_target(target)
    elif cpuinfo is not None:
        found = armisa.Isa.from_cpuinfo(
            _read(cpuinfo), **{name: _hex(name, value) for name, value in hwcaps.items()}
        )
    else:
        found = armisa.detect()
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    elif flags is not None:
        print(armisa.compiler_flags(found, flags))
    else:
        print("\n".join(explain(found, verbose=verbose)))
    return 0


def _read(name: str) -> str:
    from armisa.cpuinfo import MAX_SIZE  # noqa: PLC0415

    if name == "-":
        content = sys.stdin.buffer.read(MAX_SIZE + 1)
    else:
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name}: a folder; --cpuinfo takes a copy of /proc/cpuinfo")
        try:
            with path.open("rb") as file:
                content = file.read(MAX_SIZE + 1)
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}") from error
    if len(content) > MAX_SIZE:
        raise UsageError(f"{name}: larger than {MAX_SIZE >> 20} MiB, not a cpuinfo file")
    return content.decode("utf-8", "replace")


def _hex(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value, 16)
    except ValueError:
        raise UsageError(f"--{name} {value!r}: expected a hexadecimal number, such as 0xefffffff") from None
