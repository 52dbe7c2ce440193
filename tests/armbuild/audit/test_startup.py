"""What loading a file runs for certain decides "no"; what a check may keep from running does not.

Compiled with zig, so that the paths are a compiler's. DotProd stands for every extension that is
judged by paths alone: Cortex-A72 lacks it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from armbuild.audit import audit_path

PRELUDE = """
extern unsigned long getauxval(unsigned long);
extern void abort(void) __attribute__((noreturn));
extern int other_library(void);
#define LSE __asm__ volatile("swp x1, x2, [x0]" ::: "x1", "memory")
#define DOT __asm__ volatile("sdot v0.4s, v1.16b, v2.16b" ::: "v0")
#define AT_LOAD __attribute__((constructor)) static void
#define APART __attribute__((noinline)) static void
#pragma clang attribute push(__attribute__((target("lse,dotprod"))), apply_to = function)
"""
RUNS = {
    "straight": "AT_LOAD start(void) { DOT; }",
    "once": "static int done; AT_LOAD start(void) { if (!done) done = other_library(); DOT; }",
    "loop": "AT_LOAD start(void) { for (int n = 0; n < other_library(); n++) other_library(); DOT; }",
    "called": """
        APART deep(void) { other_library(); DOT; }
        AT_LOAD start(void) { other_library(); deep(); other_library(); }""",
    "tail call": "APART deep(void) { other_library(); DOT; } AT_LOAD start(void) { deep(); }",
    "exported": "void deep(void) { DOT; } AT_LOAD start(void) { deep(); other_library(); }",
    "check that aborts": "AT_LOAD start(void) { if (other_library()) abort(); DOT; }",
    "both branches": "AT_LOAD start(void) { if (other_library()) { DOT; } else { DOT; } other_library(); }",
    "late constructor": """
        AT_LOAD first(void) { other_library(); }
        __attribute__((constructor(200))) static void second(void) { DOT; }""",
    "resolver": """
        static int one(void) { return 1; }
        static int (*choose(void))(void) { DOT; return one; }
        int chosen(void) __attribute__((ifunc("choose")));
        int user(void) { return chosen(); }""",
    "module": "void *PyInit_demo(void) { DOT; return 0; }",
    "module in two phases": """
        static int fill(void *module) { DOT; return other_library(); }
        static struct { int slot; void *value; } slots[] = {{3, 0}, {2, (void *)fill}, {0, 0}};
        static struct { long base[5]; const char *name, *doc; long size; void *methods, *slots; } definition =
            {{1}, "demo", 0, 0, 0, slots};
        extern void *PyModuleDef_Init(void *);
        void *PyInit_demo(void) { return PyModuleDef_Init(&definition); }""",
    "module in two phases, definition exported": """
        int fill(void *module) { DOT; return other_library(); }
        struct { int slot; void *value; } slots[] = {{2, (void *)fill}, {0, 0}};
        struct { long base[5]; const char *name, *doc; long size; void *methods, *slots; } definition =
            {{1}, "demo", 0, 0, 0, slots};
        extern void *PyModuleDef_Init(void *);
        void *PyInit_demo(void) { return PyModuleDef_Init(&definition); }""",
}
GUARDED = {
    "never called": "void fast(void) { DOT; }",
    "checked": "AT_LOAD start(void) { if (getauxval(16) >> 8 & 1) { DOT; } }",
    "early return": "AT_LOAD start(void) { if (!(getauxval(16) >> 8 & 1)) return; DOT; }",
    "checked in the callee": """
        APART deep(void) { if (getauxval(16) >> 8 & 1) DOT; else other_library(); }
        AT_LOAD start(void) { deep(); }""",
    "called behind a check": """
        APART deep(void) { other_library(); DOT; other_library(); }
        AT_LOAD start(void) { if (getauxval(16) >> 8 & 1) deep(); other_library(); }""",
    "choosing resolver": """
        static int one(void) { DOT; return 1; }
        static int two(void) { return 2; }
        static int (*choose(void))(void) { return getauxval(16) >> 8 & 1 ? one : two; }
        int chosen(void) __attribute__((ifunc("choose")));
        int user(void) { return chosen(); }""",
    "table of functions": """
        static void fast(void) { DOT; }
        static void slow(void) { other_library(); }
        static void (*const table[])(void) = {slow, fast};
        AT_LOAD start(void) { table[getauxval(16) >> 8 & 1](); }""",
    "method of a module": """
        static void *method(void) { DOT; return 0; }
        void *methods[] = {method};
        void *PyInit_demo(void) { return methods; }""",
}


@pytest.fixture
def verdict(tmp_path):
    def compiled(code, core="Cortex-A72"):
        source, library = tmp_path / "demo.c", tmp_path / "demo.so"
        source.write_text(PRELUDE + code + "\n#pragma clang attribute pop\n")
        command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28", "-shared"]
        options = ["-O2", "-fPIC", "-s", "-Wl,-z,undefs", "-Wno-unused-function"]
        subprocess.run([*command, *options, "-o", str(library), str(source)], check=True)
        report = audit_path(library)
        return next(item.verdict for item in report.cores if item.core == core), report

    return compiled


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_what_every_path_runs_is_a_no(case, verdict):
    answer, report = verdict(RUNS[case])
    assert answer == "no"
    assert report.needs_everywhere == {"dotprod"}
    assert report.lowest_core == "a core with dotprod"


@pytest.mark.slow
@pytest.mark.parametrize("case", GUARDED)
def test_what_a_check_may_keep_from_running_is_no_no(case, verdict):
    answer, report = verdict(GUARDED[case])
    assert answer == "only if dispatched"
    assert report.needs_everywhere == set()
    assert report.lowest_core == "any Armv8.0-A core; dotprod must be behind dispatch"


@pytest.mark.slow
def test_one_function_may_need_one_extension_for_certain_and_check_for_another(verdict):
    answer, report = verdict(
        "AT_LOAD start(void) { LSE; if (getauxval(16) >> 20 & 1) { DOT; } }", "ThunderX2"
    )
    assert report.needs_everywhere == {"lse"}
    assert report.needs_dispatched == {"dotprod"}
    assert answer == "only if dispatched"  # it has LSE
