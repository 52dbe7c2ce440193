import json
import zipfile
from pathlib import Path

import pytest
from provider_variant_aarch64 import plugin
from tests.armbuild import wheels
from tests.armbuild.plans import planned
from tests.armbuild.test_index import install
from tests.armbuild.test_index import wheel as plain_wheel
from tests.armbuild.wheel.test_repair import check_record
from variantlib.variant_dist_info import VariantDistInfo

from armbuild import audit, index
from armbuild.artifact import variant, wheelfile
from armbuild.errors import UsageError
from armbuild.wheel import repair, smoke
from armisa import Isa, compiler_flags
from armisa.tables import extensions_of, target_names

ROOT = Path(__file__).parents[3]
CORES = ("neoverse-v1", "neoverse-n1")
NAME = "thing-1.0-cp311-cp311-manylinux_2_24_aarch64-{}.whl"


def document(core="neoverse-v1", label=None):
    stated = variant.properties(Isa.from_target(core))
    return variant.document(label or variant.label(core, stated), stated)


def write(folder, name, files=None):
    return wheels.write(folder, name, files, tags=["-".join(name.split("-")[2:5])])


def wheel(folder, core="neoverse-v1", told=None, label=None):
    told = told or document(core, label)
    folder.mkdir(exist_ok=True)
    files = {"thing-1.0.dist-info/variant.json": variant.dump(told)}
    return write(folder, NAME.format(label or next(iter(told["variants"]))), files)


@pytest.mark.parametrize("core", ["neoverse-n1", "neoverse-v1", "grace", "ampereone-a192-32x", "cortex-a72"])
def test_variantlib_reads_what_is_written(core):
    told = document(core)
    label = next(iter(told["variants"]))
    read = VariantDistInfo(variant.dump(told).decode(), label)
    assert read.variant_label == label
    assert {(p.namespace, p.feature, p.value) for p in read.variant_desc.properties} == {
        ("aarch64", feature, value)
        for feature, values in told["variants"][label]["aarch64"].items()
        for value in values
    }
    assert read.providers["aarch64"].object_reference == variant.PROVIDER["plugin-api"]


@pytest.mark.parametrize("core", ["neoverse_n1", "neoverse_v1", "neoverse_n2", "neoverse_v2", "cortex_a72"])
def test_the_provider_finds_on_a_core_all_that_its_variant_asks_for(core, monkeypatch):
    monkeypatch.setattr(plugin.archspec.cpu, "host", lambda: plugin.archspec.cpu.TARGETS[core])
    supported = {item.name: item.values for item in plugin.AArch64Plugin().get_supported_configs(None)}
    for feature, values in variant.properties(Isa.from_target(core))["aarch64"].items():
        assert set(values) & set(supported.get(feature, ())), feature


@pytest.mark.parametrize("core", target_names())
def test_code_compiled_for_a_variant_keeps_to_the_floor_that_its_properties_state(core):
    narrow = variant.narrow(Isa.from_target(core))
    told = document(core)
    label = next(iter(told["variants"]))
    floor = variant.floor(told, label)
    assert extensions_of(narrow.features) <= audit.parse_floor(floor)
    assert variant.properties(narrow) == variant.properties(Isa.from_target(core))
    variant.parse(variant.dump(told), label)


def test_features_that_no_property_names_are_not_compiled_for():
    core = Isa.from_target("neoverse-v2")
    assert "sve2_bitperm" in compiler_flags(core, "zig").replace("-", "_")
    assert "bitperm" not in compiler_flags(variant.narrow(core), "zig")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a-1-cp311-cp311-linux_aarch64.whl", ("a-1-cp311-cp311-linux_aarch64.whl", None)),
        ("a-1-2b-cp311-cp311-linux_aarch64.whl", ("a-1-2b-cp311-cp311-linux_aarch64.whl", None)),
        ("a-1-cp311-cp311-linux_aarch64-x.1_y.whl", ("a-1-cp311-cp311-linux_aarch64.whl", "x.1_y")),
        ("a-1-2b-cp311-cp311-any-null.whl", ("a-1-2b-cp311-cp311-any.whl", "null")),
        ("a-1.whl", ("a-1.whl", None)),
    ],
)
def test_the_label_is_the_last_part_and_a_build_number_is_none(name, parts):
    assert variant.split(name) == parts


def test_a_name_too_long_for_a_label_becomes_a_digest():
    stated = variant.properties(Isa.from_target("ampereone-a192-32x"))
    label = variant.label("ampereone-a192-32x", stated)
    assert len(label) == 8
    assert label != variant.label("ampereone-a192-32x", variant.properties(Isa.from_target("neoverse-n1")))


def test_a_plan_says_the_variant_in_the_file_name_and_not_in_the_version(tmp_path):
    made = planned(ROOT, baseline="Neoverse V1", variant=True, output=tmp_path, lane="cross")
    assert made.label is None
    name = made.wheel_name(made.pythons[0])
    assert name.endswith("_aarch64-neoverse_v1.whl")
    assert "+" not in name


def test_a_variant_without_a_baseline_is_refused(tmp_path):
    with pytest.raises(UsageError, match="name it with --baseline"):
        planned(ROOT, variant=True, output=tmp_path)


def test_a_repaired_variant_carries_its_metadata_and_a_true_record(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    plain = wheels.write(tmp_path, "thing-1.0-cp311-cp311-manylinux_2_24_aarch64.whl")
    add = {variant.MEMBER: variant.dump(document())}
    made = repair.repack(plain, out, label=None, epoch=0, add=add, variant_label="neoverse_v1")
    assert made.name == NAME.format("neoverse_v1")
    check_record(made)
    read = wheelfile.read(made)
    assert read.variant == document()
    assert read.version == "1.0"
    with zipfile.ZipFile(smoke._installable(made, tmp_path)) as copied:
        assert copied.filename.endswith("plain/thing-1.0-cp311-cp311-manylinux_2_24_aarch64.whl")


def other(**changes):
    return {**document(), **changes}


WRONG = [
    (other(), "neoverse_n1", "describes neoverse_v1"),
    (document("neoverse-v1", "neoverse_n1"), "neoverse_n1", "the label is neoverse_n1"),
    (other(variants={"x": {"aarch64": {"Bad": ["on"]}}}), "x", "is no property"),
    (other(variants={"x": {"aarch64": {"sve": []}}}), "x", "is no property"),
    (other(variants={"x": {"riscv": {"v": ["on"]}}}), "x", "no priority for the namespace riscv"),
    (other(variants={"null": {"aarch64": {"sve": ["on"]}}}), "null", "null stands for"),
    (other(variants={"x": {}}), "x", "null stands for"),
    (other(variants={"x": 1}), "x", "not what the drafts describe"),
    ({"variants": {"x": {}}}, "x", "not what the drafts describe"),
    (document(label="A-b"), "a" * 17, "1 to 16 of"),
]


@pytest.mark.parametrize(("told", "label", "reason"), WRONG)
def test_a_variant_that_breaks_the_drafts_rules_is_named_by_reader_and_audit(tmp_path, told, label, reason):
    path = wheel(tmp_path, told=told, label=label)
    with pytest.raises(UsageError, match=reason):
        wheelfile.read(path)
    assert any(reason in error for error in audit.audit_path(path).errors)


def test_a_label_and_its_metadata_come_together_or_not_at_all(tmp_path):
    path = wheel(tmp_path)
    bare = path.rename(tmp_path / variant.split(path.name)[0])
    with pytest.raises(UsageError, match="name has no variant label"):
        wheelfile.read(bare)
    assert "variant.json in a wheel whose name has no variant label" in audit.audit_path(bare).errors
    empty = write(tmp_path, NAME.format("x"))
    with pytest.raises(UsageError, match=r"there is no variant\.json"):
        wheelfile.read(empty)
    assert any("there is no variant.json" in error for error in audit.audit_path(empty).errors)


def test_the_audit_holds_a_variant_to_its_own_floor(tmp_path):
    report = audit.audit_path(wheel(tmp_path, "neoverse-n1"))
    assert report.floor == "armv8.2-a+aes+dotprod+fp16+rcpc+sha2"
    assert report.tag == "cp311-cp311-manylinux_2_24_aarch64"


def test_the_index_lists_the_variants_of_a_version_and_links_the_list(tmp_path):
    ix = tmp_path / "ix"
    index.add(ix, [wheels.write(tmp_path, "thing-1.0-cp311-cp311-manylinux_2_24_aarch64.whl")])
    assert "variants" not in (ix / "simple/thing/index.html").read_text()
    for core in CORES:
        index.add(ix, [wheel(tmp_path, core)])
    told = json.loads((ix / "files/thing/thing-1.0-variants.json").read_text())
    assert set(told["variants"]) == {"neoverse_v1", "neoverse_n1"}
    page = (ix / "simple/thing/index.html").read_text()
    assert 'href="../../files/thing/thing-1.0-variants.json"' in page
    files = json.loads((ix / "simple/thing/index.json").read_text())["files"]
    assert files[-1]["filename"] == "thing-1.0-variants.json"
    assert (ix / "variant/neoverse_v1/simple/thing/index.html").is_file()


def test_variants_of_a_version_that_contradict_each_other_do_not_enter_the_index(tmp_path):
    ix = tmp_path / "ix"
    files = [{"thing-1.0.dist-info/variant.json": variant.dump(document(core, "fast"))} for core in CORES]
    index.add(ix, [write(tmp_path, NAME.format("fast"), files[0])])
    clash = write(tmp_path, NAME.format("fast").replace("cp311", "cp312"), files[1])
    with pytest.raises(UsageError, match="the variant fast has other properties"):
        index.add(ix, [clash])
    assert "cp312" not in (ix / "simple/thing/index.html").read_text()


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_installers_of_today_take_the_wheel_that_is_no_variant(tmp_path, program):
    null = {**document(), "variants": {"null": {}}}
    name = "thing-2.0-py3-none-any-null.whl"
    extra = {"thing-2.0.dist-info/variant.json": variant.dump(null), "thing.py": b"answer = 0\n"}
    index.add(tmp_path / "ix", [plain_wheel(tmp_path / "in"), write(tmp_path, name, extra), wheel(tmp_path)])
    assert install((tmp_path / "ix/simple").as_uri(), tmp_path / "a", program) == "answer = 42\n"
