"""Wheels compiled here, a function for each feature: none is missed, none falsely accused.

GCC needs Debian's gcc-aarch64-linux-gnu; clang and its assembler are those inside ziglang.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ziglang

from armbuild.audit import audit_path

ZIG = [sys.executable, "-m", "ziglang"]
HEADERS_OF_ZIG = str(Path(ziglang.__file__).parent / "lib" / "include")
GCC = ["aarch64-linux-gnu-gcc", "-mno-outline-atomics"]
CLANG = [*ZIG, "clang", "--target=aarch64-linux-gnu", "-mno-outline-atomics", "-isystem", HEADERS_OF_ZIG]
COMPILERS = {"gcc": GCC, "clang": CLANG, "assembler": CLANG}
# To GCC 12 AES and SHA-2 are one.
SPELLINGS = {
    "gcc": {"aes": "crypto", "sha2": "crypto", "rdm": "rdma", "fhm": "fp16fml"},
    "clang": {"fhm": "fp16fml"},
}
HEADERS = "#include <arm_neon.h>\n#include <arm_acle.h>\n"
# The feature of --floor and --guard; the function; the mnemonic that must be named
INTRINSICS = [
    ("lse", "int F(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }", "ldaddal"),
    ("rdm", "int32x4_t F(int32x4_t a) { return vqrdmlahq_s32(a, a, a); }", "sqrdmlah"),
    ("crc", "uint32_t F(uint32_t a, uint64_t b) { return __crc32cd(a, b); }", "crc32cx"),
    ("aes", "uint8x16_t F(uint8x16_t a) { return vaeseq_u8(a, a); }", "aese"),
    ("sha2", "uint32x4_t F(uint32x4_t a) { return vsha256su0q_u32(a, a); }", "sha256su0"),
    ("sha3", "uint8x16_t F(uint8x16_t a, uint8x16_t b, uint8x16_t c) { return veor3q_u8(a, b, c); }", "eor3"),
    ("sm4", "uint32x4_t F(uint32x4_t a) { return vsm4eq_u32(a, a); }", "sm4e"),
    ("fp16", "float16x8_t F(float16x8_t a) { return vfmaq_f16(a, a, a); }", "fmla"),
    (
        "fhm",
        "float32x4_t F(float32x4_t a, float16x8_t b) { return vfmlalq_low_f16(a, b, b); }",
        "fmlal",
    ),
    ("dotprod", "int32x4_t F(int32x4_t a, int8x16_t b) { return vdotq_s32(a, b, b); }", "sdot"),
    (
        "bf16",
        "float32x4_t F(float32x4_t a, bfloat16x8_t b) { return vbfmmlaq_f32(a, b, b); }",
        "bfmmla",
    ),
    ("i8mm", "int32x4_t F(int32x4_t a, int8x16_t b) { return vmmlaq_s32(a, b, b); }", "smmla"),
    (
        "rng",
        'int F(void) { long a; __asm__ volatile("mrs %0, s3_3_c2_c4_0" : "=r"(a)); return a; }',
        "mrs",
    ),
]
# For the assembler, those that have no intrinsic in both compilers.
ASSEMBLED = [
    ("jscvt", "fjcvtzs w0, d0", "fjcvtzs"),
    ("fcma", "fcmla v0.4s, v1.4s, v2.4s, #90", "fcmla"),
    ("rcpc", "ldapr x0, [x1]", "ldapr"),
    ("rcpc2", "ldapur x0, [x1, #8]", "ldapur"),
    ("sve", "fmla z0.s, p0/m, z1.s, z2.s", "fmla"),
    ("sve2", "sqdmlalb z0.s, z1.h, z2.h", "sqdmlalb"),
    ("sve2-aes", "aese z0.b, z0.b, z1.b", "aese"),
    ("sve2-bitperm", "bext z0.s, z1.s, z2.s", "bext"),
    ("sve2-sha3", "rax1 z0.d, z1.d, z2.d", "rax1"),
    ("sve2-sm4", "sm4e z0.s, z0.s, z1.s", "sm4e"),
    ("sve2p1", "uclamp z0.s, z1.s, z2.s", "uclamp"),
    ("sve-bf16", "bfdot z0.s, z1.h, z2.h", "bfdot"),
    ("sve-i8mm", "smmla z0.s, z1.b, z2.b", "smmla"),
    ("sme", "fmopa za0.s, p0/m, p1/m, z0.s, z1.s", "fmopa"),
    ("sme2", "ldr zt0, [x0]", "ldr"),
    ("memtag", "irg x0, x1", "irg"),
    ("mops", "cpyfp [x0]!, [x1]!, x2!", "cpyfp"),
    ("ls64", "ld64b x0, [x8]", "ld64b"),
    ("fp8", "fscale v0.4s, v1.4s, v2.4s", "fscale"),
    ("fp8dot4", "fdot v0.4s, v1.16b, v2.16b", "fdot"),
    ("fp8dot2", "fdot v0.8h, v1.16b, v2.16b", "fdot"),
    ("fp8fma", "fmlalb v0.8h, v1.16b, v2.16b", "fmlalb"),
    ("lut", "luti2 v0.16b, { v1.16b }, v2[0]", "luti2"),
    ("faminmax", "famax v0.4s, v1.4s, v2.4s", "famax"),
]
ARCHITECTURE = (
    "armv9.5-a+bf16+i8mm+sve2p1+sve2-aes+sve2-bitperm+sve2-sha3+sve2-sm4+sme2+memtag+mops+ls64"
    "+fp8+fp8dot4+fp8dot2+fp8fma+lut+faminmax"
)
INNOCENT = """
int innocent_sum(const int *p, int n) { int sum = 0; for (int i = 0; i < n; i++) sum += p[i]; return sum; }
float32x4_t innocent_fma(float32x4_t a) { return vfmaq_f32(a, a, a); }
"""
OPTIONS = ["-O2", "-fPIC", "-ffreestanding"]


def objects(compiler, folder):
    """Compile a guilty function for each feature; return what each must be accused of."""
    if compiler == "assembler":
        text = f".arch {ARCHITECTURE}\n.text\ninnocent:\n  add v0.4s, v1.4s, v2.4s\n  ret\n"
        for feature, instruction, _ in ASSEMBLED:
            name = symbol(feature)
            text += f".globl {name}\n.type {name}, %function\n{name}:\n  {instruction}\n  ret\n"
            text += f".size {name}, . - {name}\n"
        compile_one(compiler, folder / "all.s", text)
        return {symbol(feature): (feature, mnemonic) for feature, _, mnemonic in ASSEMBLED}
    compile_one(compiler, folder / "innocent.c", HEADERS + INNOCENT)
    for feature, code, _ in INTRINSICS:
        flag = f"-march=armv8.2-a+{SPELLINGS[compiler].get(feature, feature)}"
        text = HEADERS + code.replace(" F(", f" {symbol(feature)}(") + "\n"
        compile_one(compiler, folder / f"{feature}.c", text, flag)
    return {symbol(feature): (feature, mnemonic) for feature, _, mnemonic in INTRINSICS}


def compile_one(compiler, source, text, *flags):
    source.write_text(text)
    output = ["-c", "-o", str(source.with_suffix(".o")), str(source)]
    subprocess.run([*COMPILERS[compiler], *OPTIONS, *flags, *output], check=True)


def linked(folder, *flags):
    """Return the shared object of what was compiled in ``folder``."""
    library = folder / "x.so"
    parts = [str(path) for path in sorted(folder.glob("*.o"))]
    link = [*ZIG, "ld.lld", "-shared", "-z", "max-page-size=65536", "-z", "relro", *flags]
    subprocess.run([*link, "-o", str(library), *parts], check=True)
    return library.read_bytes()


def symbol(feature):
    return "guilty_" + feature.replace("-", "_")


def accused(report):
    return {
        item.function.name: (*item.missing, item.function.uses[0].text.split()[0]) for item in report.offences
    }


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_each_function_is_accused_of_its_feature_and_no_other(compiler, tmp_path, wheel):
    guilty = objects(compiler, tmp_path)
    path = wheel({"demo/x.cpython-311-aarch64-linux-gnu.so": linked(tmp_path)})
    report = audit_path(path, floor="armv8-a")
    assert accused(report) == guilty
    assert len(report.errors) == 1  # the floor, nothing about the packaging
    assert report.doubts == ()
    guards = [f"{name}={feature}" for name, (feature, _) in guilty.items()]
    assert audit_path(path, floor="armv8-a", guards=guards).errors == ()
    for name, guard in zip(guilty, guards, strict=True):
        others = [item for item in guards if item != guard]
        assert list(accused(audit_path(path, floor="armv8-a", guards=others))) == [name]
    features = sorted({feature for feature, _ in guilty.values()})
    assert audit_path(path, floor=f"armv8-a+{'+'.join(features)}").errors == ()
    answers = {item.core: (item.verdict, item.certain) for item in report.cores}
    atomics = symbol("lse") in guilty  # without a guard: see below
    assert answers["Cortex-A72"] == (("no", ("lse",)) if atomics else ("only if dispatched", ()))
    assert answers["Neoverse-N1"] == ("only if dispatched", ())
    # Stripping hides the names and no instruction.
    stripped = wheel({"demo/x.cpython-311-aarch64-linux-gnu.so": linked(tmp_path, "-s")})
    found = {name for item in audit_path(stripped, floor="armv8-a").offences for name in item.missing}
    assert found == set(features)


PLAIN = "int count(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }\n"
IN_ONE = """
extern int have_lse;
int count(int *p)
{
    int old, sum, failed;
    if (have_lse) {
        __asm__ volatile(".arch armv8-a+lse\\n ldaddal %w2, %w0, %1" : "=r"(old), "+Q"(*p) : "r"(1));
        return old;
    }
    __asm__ volatile("1: ldaxr %w0, %3; add %w1, %w0, #1; stlxr %w2, %w1, %3; cbnz %w2, 1b"
                     : "=&r"(old), "=&r"(sum), "=&r"(failed), "+Q"(*p));
    return old;
}
"""
BESIDE = """
__attribute__((target("arch=armv8-a+lse"))) static int with_lse(int *p)
{
    return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST);
}
static int without(int *p) { return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }
extern unsigned long features(void);
static int (*choose(void))(int *) { return features() & 256 ? with_lse : without; }
int count(int *p) __attribute__((ifunc("choose")));
"""
ZIG_CC = [*ZIG, "cc", "-target", "aarch64-linux-gnu.2.28"]
LIBRARIES = {
    "gcc, Armv8.1-A": (["aarch64-linux-gnu-gcc", "-march=armv8.1-a"], PLAIN, "no"),
    "zig, LSE": ([*ZIG_CC, "-mcpu=generic+lse"], PLAIN, "no"),
    "gcc, helpers": (["aarch64-linux-gnu-gcc", "-moutline-atomics"], PLAIN, "yes"),
    "gcc, exclusive loads": (GCC, PLAIN, "yes"),
    "zig": ([*ZIG_CC, "-mcpu=generic"], PLAIN, "yes"),
    "a check in the function": (GCC, IN_ONE, "only if dispatched"),
    "an indirect function": (GCC, BESIDE, "only if dispatched"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "code", "answer"), LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("strip", [[], ["-s"]], ids=["", "stripped"])
def test_atomics_raise_the_floor_unless_something_guards_them(compiler, code, answer, strip, tmp_path):
    """vLLM's back end was called fit for any Armv8.0-A core, with 163 functions that use LSE unguarded."""
    (tmp_path / "x.c").write_text(code)
    library = tmp_path / "x.so"
    command = [*compiler, "-O2", "-fPIC", "-shared", *strip, "-o", library, tmp_path / "x.c"]
    subprocess.run(command, check=True)
    report = audit_path(library)
    answers = {item.core: item.verdict for item in report.cores}
    assert answers["Cortex-A72"] == answer
    assert answers["Neoverse-N1"] == "yes"
    assert report.needs_everywhere == ({"lse"} if answer == "no" else set())
    assert [bool(item.function.unguarded) for item in report.offences] == {
        "no": [True],
        "only if dispatched": [False],
        "yes": [],
    }[answer]
