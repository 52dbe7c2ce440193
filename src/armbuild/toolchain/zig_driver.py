"""The compiler that build back ends see: it translates GCC's command line for ``zig cc``.

Runs as a separate program, with only the standard library.
"""

from __future__ import annotations

import os
import re
import sys

DROPPED = (  # zig's driver or its linker refuse these, and nothing is lost for a shared object without them
    "-mtune=",
    "-static-lib",
    "-fno-semantic-interposition",
    "-Wl,--fatal-warnings",
    "-Wl,--exclude-libs",
    "-Wl,-Bsymbolic-functions",
    "-Wl,-z,noexecstack",
    "-Wl,-strip-",  # what is linked is stripped in any case
    "-Wl,--push-state",  # around -latomic, as in the CMake files of Debian's Abseil
    "-Wl,--pop-state",
    "-cpp",
    "--target=",  # the build scripts of crates name the target in Rust's way; it is known
)
UNDEFINED = "-Wl,--undefined="
"""zig knows this only by its short name; cargo-auditable names a symbol with it."""
HOST_FOLDERS = re.compile(
    r"-[IL](?:/usr)?(?:/local)?/(?:include|lib|lib64)(?:/(?:x86_64|i386|riscv64|powerpc64le|s390x)-linux-gnu)?/?"
)
"""The build machine's own headers and libraries, which some projects search by name."""
BELOW_HOST = re.compile(r"(-[IL]|-isystem|)(/usr/(?:include|lib)/.+)")
"""A library's own folder there, as pg_config and its like name it."""
NAMES = {
    "fp16": "fullfp16",
    "simd": "neon",
    "fp": "fp_armv8",
    "rdma": "rdm",
    "profile": "spe",
    "memtag": "mte",
}
"""GCC's feature names that zig spells in another way."""
GROUPS = {"crypto": ("aes", "sha2")}
OPENMP = """\
#pragma comment(lib, "LIBRARY")
#ifdef __cplusplus
extern "C"
#endif
__attribute__((weak, visibility("hidden"))) void __kmpc_dispatch_deinit(void *loc, int thread) {
  (void)loc;
  (void)thread;
}
"""
"""What -fopenmp adds to each source: LLVM's library is linked with it, also where the linker gets no such
option, as from CMake. zig's clang calls the function after a loop with a dynamic schedule. It is empty from
LLVM 19 on, and absent from older ones, which Debian's releases with an old glibc have."""
OPENMP_HEADER = "openmp.h"
"""The file of it beside this one, if the target has LLVM's OpenMP."""


def target_cpu(value: str, *, architecture: bool) -> str:
    """Return zig's ``-mcpu`` for GCC's ``-march`` or ``-mcpu``: ``armv8.2-a`` is ``generic+v8_2a``."""
    base, *features = value.split("+")
    if architecture:
        level = re.fullmatch(r"armv(\d)(?:\.(\d))?-a", base)
        if level is None:
            return value  # zig says what it thinks of it
        features.insert(0, f"v{level[1]}_{level[2]}a" if level[2] else f"v{level[1]}a")
        base = "generic"
    text = base.replace("-", "_")
    for feature in features:
        sign, name = ("-", feature[2:]) if feature.startswith("no") and feature != "norm" else ("+", feature)
        for part in GROUPS.get(name, (NAMES.get(name, name),)):
            text += sign + part.replace("-", "_")
    return text


def compiler_arguments(arguments: list[str], *, target: str, settings: dict[str, list[str]]) -> list[str]:
    """Translate a compiler's command line.

    ``settings``: ``flags`` go first (later ones win), ``headers`` and ``libraries`` are searched last. What
    only links gets neither flags nor headers, nor any optimization level, CPU or debug option of its own: zig
    builds its C++ runtime again, in a minute, for every such combination that it links for. (Bitcode of
    ``-flto`` is compiled at the link in any case.)
    """
    if arguments in (["--version"], ["-v"], ["-dumpversion"]):
        return arguments
    # standard input and questions go past zig to clang, which knows no version behind the target
    if any(argument == "-" or argument.startswith(QUESTIONS) for argument in arguments):
        target = target.partition(".")[0]
    links = not any(argument in STOPPING for argument in arguments)
    compiles = not links or "-x" in arguments or any(is_source(argument) for argument in arguments)
    arguments = [_of_target(argument, settings["headers"]) for argument in arguments]
    result = ["-target", target, *(settings["flags"] if compiles else [])]
    result += [
        word for argument in arguments for word in _translated(argument, links=links, compiles=compiles)
    ]
    if links:  # after the project's own folders
        result += settings["libraries"]
    if compiles:
        for folder in settings["headers"]:
            result += ["-idirafter", folder]
        result += _openmp(arguments)
    if links:
        result += [] if any(argument.startswith("-O") for argument in result) else ["-O2"]
        result += [] if "-r" in arguments else ["-s"]
    else:
        result.append("-g0")
    return [*result, "-fno-sanitize=undefined"]  # which zig adds to unoptimized code


def _openmp(arguments: list[str]) -> list[str]:
    asked = any(re.fullmatch(r"-fopenmp(=\w+)?", argument) for argument in arguments)
    assembler = any(argument.endswith((".s", ".S")) for argument in arguments)
    header = f"{__file__.rpartition('/')[0]}/{OPENMP_HEADER}"
    there = asked and not assembler and os.path.exists(header)  # noqa: PTH110 - as in _of_target
    return ["-include", header] if there else []


def _of_target(argument: str, headers: list[str]) -> str:
    """Name the sysroot's folder where it has the one that a program of the build machine named."""
    found = BELOW_HOST.fullmatch(argument)
    if found is None:
        return argument
    path = found[2].replace("x86_64-linux-gnu", "aarch64-linux-gnu")
    roots = [folder.removesuffix("/usr/include") for folder in headers if folder.endswith("/usr/include")]
    own = (f"{root}{path}" for root in roots)
    # not pathlib, which takes as long to load as the rest together
    return next((f"{found[1]}{folder}" for folder in own if os.path.isdir(folder)), argument)  # noqa: PTH112


def _translated(argument: str, *, links: bool, compiles: bool) -> list[str]:
    if argument.startswith(DROPPED) or HOST_FOLDERS.fullmatch(argument):
        return []
    if links and argument.startswith(("-flto", "-g")):
        return []
    if not compiles and argument.startswith(("-O", "-march=", "-mcpu=")):
        return []
    if argument.startswith(("-march=", "-mcpu=")):
        cpu = target_cpu(argument.partition("=")[2], architecture=argument.startswith("-march="))
        return [f"-mcpu={cpu}"]
    if argument.startswith(UNDEFINED):
        return [f"-Wl,-u,{argument.removeprefix(UNDEFINED)}"]
    return [argument]


QUESTIONS = ("-print-", "--print-", "-dumpmachine")
"""How options begin that are answered, and after which nothing is compiled."""
STOPPING = frozenset({"-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"})
"""Options after which nothing is linked."""


def is_source(argument: str) -> bool:
    """Return whether an argument names a file to compile."""
    return not argument.startswith("-") and argument.endswith(
        (".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".s", ".S", ".m", ".mm")
    )


def with_language(arguments: list[str], tool: str) -> list[str]:
    """State the language of standard input, which GCC knows by the program's name.

    Without it, zig passes by, and clang reads this machine's headers.
    """
    inputs = (place for place, word in enumerate(arguments) if word == "-" and arguments[place - 1] != "-o")
    place = next(inputs, None)
    if place is None or any(argument.startswith("-x") for argument in arguments):
        return arguments
    return [*arguments[:place], "-x", "c++" if tool == "c++" else "c", *arguments[place:]]


def archiver_arguments(arguments: list[str]) -> list[str]:
    """Drop the modifier for thin archives, which zig's linker cannot read."""
    if arguments and not arguments[0].startswith("--") and re.fullmatch(r"-?[a-zA-Z]+", arguments[0]):
        return [arguments[0].replace("T", ""), *arguments[1:]]
    return [argument for argument in arguments if argument != "--thin"]


def main(argv: list[str]) -> None:
    """Become zig."""
    zig, tool, target = argv[1:4]
    count = int(argv[4])
    fixed, arguments = argv[5 : 5 + count], argv[5 + count :]
    settings = {
        "flags": [item for item in fixed if item.startswith("-") and not item.startswith("-L")],
        "libraries": [item for item in fixed if item.startswith("-L")],
        "headers": [item for item in fixed if not item.startswith("-")],
    }
    if tool in ("cc", "c++"):
        if "-Wl,--version" in arguments:  # meson asks which linker this is, and zig's takes no such option
            sys.stdout.write("LLD 20.1.2 (compatible with GNU linkers)\n")
            return
        arguments = with_language(arguments, tool)
        arguments = compiler_arguments(arguments, target=target, settings=settings)
    elif tool == "ar":
        arguments = archiver_arguments(arguments)
    os.execv(zig, [zig, tool, *arguments])  # noqa: S606 - a compiler, with arguments as a list


if __name__ == "__main__":
    main(sys.argv)
