"""The table of instructions: one of each kind is found in its function, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from armbuild.audit import audit_path, parse_floor
from armbuild.audit.instructions import UNDEFINED, classify, table
from armisa import Isa
from armisa.tables import extensions

# Encodings by LLVM 19's assembler.
WORDS = [
    ("lse", 0xB8200041, "ldadd w0, w1, [x2]"),
    ("lse", 0xC8E0FC41, "casal x0, x1, [x2]"),
    ("lse", 0x38208041, "swpb w0, w1, [x2]"),
    ("lse", 0x48207C82, "casp x0, x1, x2, x3, [x4]"),
    ("rdm", 0x6E828420, "sqrdmlah v0.4s, v1.4s, v2.4s"),
    ("rdm", 0x7FA2F020, "sqrdmlsh s0, s1, v2.s[1]"),
    ("crc", 0x9AC25C20, "crc32cx w0, w1, x2"),
    ("crc", 0x1AC24020, "crc32b w0, w1, w2"),
    ("aes", 0x4E284820, "aese v0.16b, v1.16b"),
    ("aes", 0x4EE2E020, "pmull2 v0.1q, v1.2d, v2.2d"),
    ("sha2", 0x5E024020, "sha256h q0, q1, v2.4s"),
    ("sha2", 0x5E281820, "sha1su1 v0.4s, v1.4s"),
    ("sha3", 0xCE020C20, "eor3 v0.16b, v1.16b, v2.16b, v3.16b"),
    ("sha3", 0xCE628020, "sha512h q0, q1, v2.2d"),
    ("sm4", 0xCEC08420, "sm4e v0.4s, v1.4s"),
    ("sm4", 0xCE420C20, "sm3ss1 v0.4s, v1.4s, v2.4s, v3.4s"),
    ("fp16", 0x4E421420, "fadd v0.8h, v1.8h, v2.8h"),
    ("fp16", 0x1EE20820, "fmul h0, h1, h2"),
    ("fp16", 0x4F321020, "fmla v0.8h, v1.8h, v2.h[3]"),
    ("fp16", 0x1EF80020, "fcvtzs w0, h1"),
    ("fp16", 0x4F03FE00, "fmov v0.8h, #1.0"),
    ("fhm", 0x4E22EC20, "fmlal v0.4s, v1.4h, v2.4h"),
    ("fhm", 0x6F92C020, "fmlsl2 v0.4s, v1.4h, v2.h[1]"),
    ("dotprod", 0x4E829420, "sdot v0.4s, v1.16b, v2.16b"),
    ("dotprod", 0x2F82E820, "udot v0.2s, v1.8b, v2.4b[2]"),
    ("rcpc", 0xF8BFC020, "ldapr x0, [x1]"),
    ("rcpc", 0x38BFC020, "ldaprb w0, [x1]"),
    ("rcpc2", 0xD9408020, "ldapur x0, [x1, #8]"),
    ("rcpc3", 0x1DC08820, "ldapur q0, [x1, #8]"),
    ("jscvt", 0x1E7E0020, "fjcvtzs w0, d1"),
    ("fcma", 0x6E82CC20, "fcmla v0.4s, v1.4s, v2.4s, #90"),
    ("fcma", 0x6EC2F420, "fcadd v0.2d, v1.2d, v2.2d, #270"),
    ("bf16", 0x6E42FC20, "bfdot v0.4s, v1.8h, v2.8h"),
    ("bf16", 0x6E42EC20, "bfmmla v0.4s, v1.8h, v2.8h"),
    ("bf16", 0x4FF2F820, "bfmlalt v0.4s, v1.8h, v2.h[7]"),
    ("bf16", 0x0EA16820, "bfcvtn v0.4h, v1.4s"),
    ("i8mm", 0x4E82A420, "smmla v0.4s, v1.16b, v2.16b"),
    ("i8mm", 0x4E829C20, "usdot v0.4s, v1.16b, v2.16b"),
    ("i8mm", 0x4F02F020, "sudot v0.4s, v1.16b, v2.4b[0]"),
    ("sve", 0x2598E3E0, "ptrue p0.s"),
    ("sve", 0x65A20020, "fmla z0.s, p0/m, z1.s, z2.s"),
    ("sve", 0xA5414000, "ld1w { z0.s }, p0/z, [x0, x1, lsl #2]"),
    ("sve", 0x04A0E3E0, "cntw x0"),
    ("sve", 0x25A11C00, "whilelo p0.s, x0, x1"),
    ("sve", 0x04BF5020, "rdvl x0, #1"),
    ("sve2", 0x44826020, "sqdmlalb z0.s, z1.h, z2.h"),
    ("sve2", 0x45228020, "match p0.b, p0/z, z1.b, z2.b"),
    ("sve2", 0x05222C20, "tbx z0.b, z1.b, z2.b"),
    ("sve2-aes", 0x4522E020, "aese z0.b, z0.b, z1.b"),
    ("sve2-bitperm", 0x4582B020, "bext z0.s, z1.s, z2.s"),
    ("sve2-sha3", 0x4522F420, "rax1 z0.d, z1.d, z2.d"),
    ("sve2-sm4", 0x4523E020, "sm4e z0.s, z0.s, z1.s"),
    ("sve2p1", 0x4402C820, "sdot z0.s, z1.h, z2.h"),
    ("sve2p1", 0x4482C420, "uclamp z0.s, z1.s, z2.s"),
    ("sve-bf16", 0x64628020, "bfdot z0.s, z1.h, z2.h"),
    ("sve-bf16", 0x6462E420, "bfmmla z0.s, z1.h, z2.h"),
    ("sve-i8mm", 0x45029820, "smmla z0.s, z1.b, z2.b"),
    ("sve-i8mm", 0x44827820, "usdot z0.s, z1.b, z2.b"),
    ("f32mm", 0x64A2E420, "fmmla z0.s, z1.s, z2.s"),
    ("f64mm", 0x64E2E420, "fmmla z0.d, z1.d, z2.d"),
    ("sve-b16b16", 0x65020020, "bfadd z0.h, z1.h, z2.h"),
    ("sme", 0xD503477F, "smstart"),
    ("sme", 0x80812000, "fmopa za0.s, p0/m, p1/m, z0.s, z1.s"),
    ("sme", 0xE1000000, "ldr za[w12, 0], [x0]"),
    ("sme", 0x04BF5820, "rdsvl x0, #1"),
    ("sme-i16i64", 0xA0C12000, "smopa za0.d, p0/m, p1/m, z0.h, z1.h"),
    ("sme-f64f64", 0x80C12000, "fmopa za0.d, p0/m, p1/m, z0.d, z1.d"),
    ("sme2", 0xE11F8000, "ldr zt0, [x0]"),
    ("sme2", 0xC0CA0020, "luti4 z0.b, zt0, z1[0]"),
    ("sme2", 0xC1A21800, "fmla za.s[w8, 0], {z0.s-z1.s}, {z2.s-z3.s}"),
    ("sme2p1", 0xC00C8000, "zero za.d[w8, 0:1]"),
    ("memtag", 0x9ADF1020, "irg x0, x1"),
    ("memtag", 0xD9200820, "stg x0, [x1]"),
    ("memtag", 0x91810420, "addg x0, x1, #16, #1"),
    ("mops", 0x19010440, "cpyfp [x0]!, [x1]!, x2!"),
    ("mops", 0x19C20420, "setp [x0]!, x1!, x2"),
    ("ls64", 0xF83FD100, "ld64b x0, [x8]"),
    ("ls64", 0xF83F9100, "st64b x0, [x8]"),
    ("fp8", 0x2EA17820, "bf1cvtl v0.8h, v1.8b"),
    ("fp8", 0x6EA2FC20, "fscale v0.4s, v1.4s, v2.4s"),
    ("fp8dot4", 0x4E02FC20, "fdot v0.4s, v1.16b, v2.16b"),
    ("fp8dot2", 0x4E42FC20, "fdot v0.8h, v1.16b, v2.16b"),
    ("fp8fma", 0x0EC2FC20, "fmlalb v0.8h, v1.16b, v2.16b"),
    ("lut", 0x4E821020, "luti2 v0.16b, {v1.16b}, v2[0]"),
    ("faminmax", 0x4EA2DC20, "famax v0.4s, v1.4s, v2.4s"),
    ("pauth", 0xD65F0BFF, "retaa"),
    ("pauth", 0xDAC10020, "pacia x0, x1"),
    ("pauth", 0xD71F0801, "braa x0, x1"),
    ("flagm", 0xD500401F, "cfinv"),
    ("flagm", 0xBA008402, "rmif x0, #1, #2"),
    ("flagm2", 0xD500403F, "xaflag"),
    ("frintts", 0x1E284020, "frint32z s0, s1"),
    ("sb", 0xD50330FF, "sb"),
    ("wfxt", 0xD5031000, "wfet x0"),
    ("hbc", 0x54000050, "bc.eq #8"),
    ("cssc", 0xDAC01820, "ctz x0, x1"),
    ("cssc", 0x1AC26420, "umax w0, w1, w2"),
    ("lse128", 0x19218040, "swpp x0, x1, [x2]"),
    ("rng", 0xD53B2400, "mrs x0, RNDR"),
    ("cpa", 0x9A022020, "addpt x0, x1, x2"),
    ("none", 0xD503201F, "nop"),
    ("none", 0xD503233F, "paciasp"),
    ("none", 0xD50323BF, "autiasp"),
    ("none", 0xD503245F, "bti c"),
    ("none", 0xD503221F, "esb"),
    ("none", 0xD50320DF, "dgh"),
    ("none", 0x1EE24020, "fcvt s0, h1"),
    ("none", 0x4E22CC20, "fmla v0.4s, v1.4s, v2.4s"),
    ("none", 0x0E22E020, "pmull v0.8h, v1.8b, v2.8b"),
    ("none", 0xC85FFC20, "ldaxr x0, [x1]"),
    ("none", 0xC8DFFC20, "ldar x0, [x1]"),
    ("none", 0xF9800000, "prfm pldl1keep, [x0]"),
    ("none", 0xD5033BBF, "dmb ish"),
    ("none", 0xD5033FDF, "isb"),
    ("none", 0xD53BD040, "mrs x0, tpidr_el0"),
    ("none", 0x4E61D820, "scvtf v0.2d, v1.2d"),
    ("none", 0x4E020020, "tbl v0.16b, {v1.16b}, v2.16b"),
    ("none", 0x4C400000, "ld4 {v0.16b-v3.16b}, [x0]"),
    ("none", 0x54000040, "b.eq #8"),
    ("none", 0xD50B7420, "dc zva, x0"),
    ("none", 0x2F422020, "umlal v0.4s, v1.4h, v2.h[0]"),
    ("none", 0x0E205820, "cnt v0.8b, v1.8b"),
    ("none", 0x0E217820, "fcvtl v0.4s, v1.4h"),
    ("none", 0x9AC20820, "udiv x0, x1, x2"),
    ("none", 0x93C10C20, "ror x0, x1, #3"),
]
RET = 0xD65F03C0


@pytest.mark.parametrize(("extension", "word", "text"), WORDS)
def test_word_needs_its_extension(extension, word, text):
    row = int(classify(np.array([word], np.uint32))[0])
    assert row != UNDEFINED, text
    needs = table()[row].extensions
    assert needs == (set() if extension == "none" else {extension}), text


@pytest.mark.parametrize(("extension", "word", "text"), [item for item in WORDS if item[0] != "none"])
def test_function_above_the_floor_is_accused_alone_unless_guarded(extension, word, text, elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("innocent", ".text", [0xD503201F, RET]), ("guilty", ".text", [word, RET])]))
    report = audit_path(path, floor="armv8-a")
    assert [item.function.name for item in report.offences] == ["guilty"], text
    assert not report.ok
    use = report.offences[0].function.uses[0]
    assert use.word == word
    assert extension in use.extensions
    assert audit_path(path, floor=f"armv8-a+{extension}").ok
    assert audit_path(path, floor="armv8-a", guards=[f"guil*={extension}"]).ok
    assert not audit_path(path, floor="armv8-a", guards=[f"inno*={extension}"]).ok


def test_every_extension_with_instructions_has_a_tested_word():
    listed = {name for row in table() for name in row.extensions}
    tested = {extension for extension, *_ in WORDS}
    untested = (
        listed
        - tested
        - {"the", "d128", "gcs", "tme", "pauth-lr", "lor", "dit", "ssbs", "sme-f16f16", "sme-b16b16"}
    )
    assert untested <= {"sme-lutv2", "sme-f8f16", "sme-f8f32", "lut"}
    assert listed <= set(extensions())


def test_unallocated_words_are_no_instructions():
    words = np.array([0x00000001, 0x06000000, 0x20000000, 0xD503201F], np.uint32)
    assert classify(words).tolist() == [UNDEFINED, UNDEFINED, UNDEFINED, 0]


def test_mapping_symbols_tell_data_from_code(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(
        elf([("f", ".text", [RET, 0x4E829420])], mapping=[("$x", ".text", 0), ("$d", ".text", 4)])
    )
    assert audit_path(path, floor="armv8-a").ok
    path.write_bytes(elf([("f", ".text", [0x4E829420, RET])], mapping=[("$x", ".text", 0)]))
    assert not audit_path(path, floor="armv8-a").ok


def test_data_among_code_without_mapping_symbols_is_doubt_not_guilt(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("f", ".text", [RET, 0x4E829420, 0x06060606])]))
    report = audit_path(path, floor="armv8-a")
    assert report.ok
    assert len(report.doubts) == 1
    assert any("not counted" in warning for warning in report.warnings)


def test_literals_are_data(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("f", ".text", [0x58000040, RET, 0x4E829420, 0x4E829420])]))  # ldr x0, . + 8
    assert audit_path(path, floor="armv8-a").ok


def test_outline_atomics_helpers_do_not_count(elf, tmp_path):
    helper = [
        0x90000010,
        0x39400210,
        0x34000070,
        0xB8E00020,
        RET,
        0xD65F03C0,
    ]  # adrp, ldrb w16, cbz w16, ldaddal, ret
    path = tmp_path / "lib.so"
    for functions, symbols in (
        ([("__aarch64_ldadd4_acq_rel", ".text", [0xB8E00020, RET])], True),
        ([("stripped", ".text", helper)], False),
    ):
        path.write_bytes(elf(functions, symbols=symbols))
        report = audit_path(path, floor="armv8-a")
        assert report.ok, report.offences
        assert report.files[0].self_checked == 1


def test_the_unwinder_that_retags_tagged_frames_does_not_count(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("unwind", ".text", [0xD9200908, RET])]))  # stg x8, [x8]
    assert audit_path(path, floor="armv8-a").ok
    path.write_bytes(elf([("tagged", ".text", [0xD9200BFF, RET])]))  # stg sp, [sp]
    assert not audit_path(path, floor="armv8-a").ok


def test_the_unwinder_that_reads_the_vector_length_does_not_count(elf, tmp_path):
    path = tmp_path / "lib.so"
    cntd, ptrue = 0x04E0E3E3, 0x2598E3E0
    path.write_bytes(elf([("uw_update_context_1", ".text", [cntd, RET])]))
    report = audit_path(path, floor="armv8-a")
    assert report.ok
    assert report.files[0].self_checked == 1
    for functions in ([("ours", ".text", [cntd, RET])], [("uw_update_context", ".text", [ptrue, RET])]):
        path.write_bytes(elf(functions))
        assert not audit_path(path, floor="armv8-a").ok


def test_kernel_sections_are_guarded_by_their_targets_features(own_wheel):
    bfmmla, smmla = 0x6E42EC20, 0x4E82A420
    ok = own_wheel(
        functions=[("a", "armllm.neon", [RET]), ("b", "armllm.bf16", [bfmmla, RET])],
        info={"targets": ["neon", "bf16"]},
    )
    assert audit_path(ok, floor="armv8-a").errors == ()
    for section, word in (("armllm.neon", bfmmla), ("armllm.bf16", smmla), (".text", bfmmla)):
        functions = [("a", "armllm.neon", [RET]), ("b", "armllm.bf16", [RET]), ("c", section, [word, RET])]
        report = audit_path(own_wheel(functions=functions, info={"targets": ["neon", "bf16"]}))
        assert not report.ok
        assert "floor armv8-a" in report.errors[0]


def test_counters_may_use_lse_in_their_section_only(own_wheel):
    ldadd = 0xF8210000
    for section, ok in (("armllm_lse", True), (".text", False), ("armllm.neon", False)):
        functions = [("a", "armllm.neon", [RET]), ("b", section, [ldadd, RET])]
        assert audit_path(own_wheel(functions=functions, info={"targets": ["neon"]})).ok is ok


def test_streaming_functions_need_sme_not_sve(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("f", ".text", [0xD503477F, 0x65820020, RET])]))  # smstart; fmul z
    assert audit_path(path).files[0].functions[0].needs == {"sme"}


def test_verdict_per_core(elf, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf([("f", ".text", [0x4E829420, RET])]))
    verdicts = {item.core: item.verdict for item in audit_path(path).cores}
    assert verdicts["Cortex-A72"] == "only if dispatched"
    assert verdicts["Neoverse-N1"] == "yes"
    path.write_bytes(elf([(f"f{n}", ".text", [0x4E829420, RET]) for n in range(30)]))
    assert {item.core: item.verdict for item in audit_path(path).cores}["Cortex-A72"] == "no"


@pytest.mark.parametrize(
    ("floor", "inside", "outside"),
    [
        ("armv8-a", set(), {"lse", "dotprod"}),
        ("armv8.2-a+dotprod+fp16", {"lse", "rdm", "dotprod", "fp16"}, {"bf16", "sve"}),
        ("ARMv8.1-A", {"lse", "crc"}, {"fp16"}),
        ("neoverse-n1", {"lse", "dotprod", "fp16", "rcpc"}, {"bf16", "i8mm"}),
        ("graviton3", {"sve", "bf16", "sve-bf16", "sve-i8mm"}, {"sve2"}),
        ("armv9-a+bf16", {"sve2", "sve", "sve-bf16"}, {"i8mm"}),
    ],
)
def test_floors_are_understood_as_compilers_do(floor, inside, outside):
    allowed = parse_floor(floor)
    assert inside <= allowed
    assert not outside & allowed


def test_a_core_runs_what_its_own_floor_allows():
    assert parse_floor("cortex-a72") <= parse_floor("neoverse-n1")
    assert "aes" not in parse_floor("raspberry-pi-4")
    assert Isa.from_target("raspberry-pi-4").architecture == "armv8-a"
