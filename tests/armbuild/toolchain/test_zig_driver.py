import os
import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from armbuild.toolchain import compilers, zig_driver

TARGET = "aarch64-linux-gnu.2.28"


def arguments(*given, flags=(), headers=(), libraries=()):
    settings = {"flags": list(flags), "headers": list(headers), "libraries": list(libraries)}
    return zig_driver.compiler_arguments(list(given), target=TARGET, settings=settings)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-march=armv8-a", "-mcpu=generic+v8a"),
        ("-march=armv8.2-a+fp16+dotprod", "-mcpu=generic+v8_2a+fullfp16+dotprod"),
        ("-march=armv8.2-a+crypto", "-mcpu=generic+v8_2a+aes+sha2"),
        ("-march=armv8.6-a+nosve", "-mcpu=generic+v8_6a-sve"),
        ("-march=armv9-a", "-mcpu=generic+v9a"),
        ("-mcpu=neoverse-n1", "-mcpu=neoverse_n1"),
        ("-mcpu=neoverse-v1+nosve", "-mcpu=neoverse_v1-sve"),
        ("-mcpu=generic+v8_2a+fp16fml", "-mcpu=generic+v8_2a+fp16fml"),
    ],
)
def test_gccs_cpu_options_become_zigs(given, expected):
    assert expected in arguments(given, "-c", "a.c")


@pytest.mark.parametrize(
    "dropped",
    [
        "-mtune=neoverse-n1",
        "-static-libstdc++",
        "-static-libgcc",
        "-Wl,--exclude-libs,ALL",
        "-Wl,-Bsymbolic-functions",
        "-Wl,-strip-all",
        "-Wl,--push-state,--as-needed",
        "-Wl,--pop-state",
        "--target=aarch64-unknown-linux-gnu",
    ],
)
def test_what_zigs_driver_refuses_is_dropped(dropped):
    assert dropped not in arguments("-shared", "a.o", dropped)
    assert dropped not in arguments("-c", "a.c", dropped)


def test_a_symbol_that_must_stay_is_named_in_the_way_that_zig_knows():
    """cargo-auditable names so what it adds to a library."""
    assert "-Wl,-u,VERSIONS" in arguments("-shared", "a.o", "-Wl,--undefined=VERSIONS")


def test_flags_of_the_plan_come_first_so_that_the_projects_own_win():
    result = arguments("-mcpu=neoverse-n1", "-c", "a.c", flags=["-mcpu=generic+sve"])
    assert result.index("-mcpu=generic+sve") < result.index("-mcpu=neoverse_n1")


def test_headers_of_the_target_are_searched_last():
    result = arguments("-I/own", "-c", "a.c", headers=["/debian"])
    assert result[result.index("/debian") - 1] == "-idirafter"
    assert result.index("-I/own") < result.index("/debian")


def test_a_librarys_folder_that_a_program_of_the_build_machine_named_is_the_sysroots(tmp_path):
    (tmp_path / "usr/include/postgresql").mkdir(parents=True)
    (tmp_path / "usr/lib/aarch64-linux-gnu/hdf5").mkdir(parents=True)
    named = [
        "-I/usr/include/postgresql", "-L/usr/lib/x86_64-linux-gnu/hdf5",
        "-isystem", "/usr/include/postgresql", "-I/usr/include/python3.11",
    ]  # fmt: skip
    headers = [f"{tmp_path}/usr/include/aarch64-linux-gnu", f"{tmp_path}/usr/include"]
    result = arguments(*named, "a.c", headers=headers)
    assert result[2:7] == [
        f"-I{tmp_path}/usr/include/postgresql", f"-L{tmp_path}/usr/lib/aarch64-linux-gnu/hdf5",
        "-isystem", f"{tmp_path}/usr/include/postgresql", "-I/usr/include/python3.11",
    ]  # fmt: skip
    assert arguments(*named, "a.c")[2:7] == named, "without a sysroot there is nothing to name"


def test_code_for_openmp_asks_for_llvms_library_where_the_target_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(zig_driver, "__file__", str(tmp_path / "zig_driver.py"))
    header = str(tmp_path / zig_driver.OPENMP_HEADER)
    assert header not in arguments("-fopenmp", "-c", "a.c")
    (tmp_path / zig_driver.OPENMP_HEADER).touch()
    for option in ("-fopenmp", "-fopenmp=libomp"):
        result = arguments(option, "-c", "a.c")
        assert result[result.index(header) - 1] == "-include"
    for others in ("-c a.c", "-fopenmp-simd -c a.c", "-fopenmp -c a.S", "-fopenmp a.o"):
        assert header not in arguments(*others.split())


def test_libraries_of_the_target_are_searched_last_and_only_where_something_is_linked():
    result = arguments("-shared", "-L/own", "a.o", "-lz", libraries=["-L/debian"])
    assert result.index("-L/own") < result.index("-L/debian")
    assert "-L/debian" not in arguments("-c", "a.c", libraries=["-L/debian"])


def test_every_link_asks_for_one_and_the_same_runtime():
    """zig compiles libc++ once per combination of CPU, optimization, LTO and debug options it links for."""
    links = [
        arguments("-shared", "-O3", "-flto", "-g", "a.o", "-o", "x", flags=["-mcpu=generic+sve"]),
        arguments("-shared", "-mcpu=neoverse-v1", "a.o", "-o", "x"),
        arguments("-shared", "-O0", "-march=armv8.2-a", "a.o", "-o", "x"),
    ]
    assert all(link == links[0] for link in links)
    assert {"-O2", "-s"} <= set(links[0])


def test_compiling_keeps_the_optimization_that_the_project_asked_for():
    assert "-O3" in arguments("-O3", "-flto", "-c", "a.cpp")
    assert "-flto" in arguments("-O3", "-flto", "-c", "a.cpp")
    assert "-O2" not in arguments("-c", "a.cpp")
    assert "-s" not in arguments("-c", "a.cpp")
    assert "-O0" in arguments("-O0", "a.c", "-o", "a")


@pytest.mark.parametrize("language", ["cc", "c++"])
def test_what_is_compiled_has_no_debug_information(tmp_path, language):
    """It would catch an option of the project that wins over ours, or one that zig itself adds."""
    (tmp_path / "a.c").write_text("int twice(int x) { return 2 * x; }\n")
    inputs = compilers.TargetInputs(flags=(), headers=(), sysroot=None)
    compilers.find("zig", target=TARGET).write(tmp_path, inputs)
    command = [tmp_path / language, "-ggdb3", "-g", "-c", "a.c"]
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    with (tmp_path / "a.o").open("rb") as file:
        sections = [one.name for one in ELFFile(file).iter_sections()]
    assert ".text" in sections
    assert not [name for name in sections if name.startswith(".debug")]


def test_standard_input_is_read_although_zig_passes_it_by():
    assert arguments("-cpp", "-x", "c", "-E", "-dM", "-")[:2] == ["-target", "aarch64-linux-gnu"]
    assert "-cpp" not in arguments("-cpp", "-x", "c", "-E", "-dM", "-")
    assert arguments("-E", "a.c")[1] == TARGET


def test_the_language_of_standard_input_is_that_of_the_program():
    """Else `cc -E -` reads this machine's headers."""
    assert zig_driver.with_language(["-E", "-"], "cc") == ["-E", "-x", "c", "-"]
    assert zig_driver.with_language(["-E", "-", "-w"], "c++") == ["-E", "-x", "c++", "-", "-w"]
    assert zig_driver.with_language(["-E", "-o", "-", "-"], "cc") == ["-E", "-o", "-", "-x", "c", "-"]
    same = (["-E", "-xc", "-"], ["-x", "c", "-E", "-"], ["-E", "a.c"], ["-E", "a.c", "-o", "-"])
    for words in same:
        assert zig_driver.with_language(words, "c++") == words


@pytest.mark.parametrize("question", ["-dumpmachine", "-print-prog-name=ld", "--print-multiarch"])
def test_questions_of_configure_scripts_are_asked_without_the_version_that_clang_refuses(question):
    assert arguments(question)[:2] == ["-target", "aarch64-linux-gnu"]


def test_relocatable_links_keep_their_symbols():
    assert "-s" not in arguments("-r", "a.o", "b.o", "-o", "c.o")


@pytest.mark.parametrize("question", ["--version", "-v"])
def test_questions_about_the_compiler_are_passed_on_alone(question):
    assert arguments(question, flags=["-mcpu=x"]) == [question]


def test_the_archiver_never_makes_thin_archives():
    assert zig_driver.archiver_arguments(["qcsT", "a.a", "T.o"]) == ["qcs", "a.a", "T.o"]
    assert zig_driver.archiver_arguments(["--thin", "rcs", "a.a"]) == ["rcs", "a.a"]


def test_the_linker_says_who_it_is(capsys, monkeypatch):
    monkeypatch.setattr(zig_driver.os, "execv", lambda *_words: pytest.fail("zig does not know this option"))
    zig_driver.main(["driver", "/zig", "cc", TARGET, "0", "-Wl,--version"])
    assert capsys.readouterr().out.startswith("LLD ")


def test_the_program_takes_its_fixed_part_apart(monkeypatch):
    called = []
    monkeypatch.setattr(zig_driver.os, "execv", lambda path, words: called.append((path, words)))
    zig_driver.main(["driver", "/zig", "cc", TARGET, "3", "-mcpu=x", "-L/lib", "/headers", "-c", "a.c"])
    path, words = called[0]
    assert path == "/zig"
    assert words[:4] == ["/zig", "cc", "-target", TARGET]
    assert words[words.index("/headers") - 1] == "-idirafter"
    assert "-L/lib" not in words
