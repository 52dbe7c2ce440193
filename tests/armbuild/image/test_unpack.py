import gzip
import hashlib
import io
import tarfile

import pytest
from tests.armbuild.image import small

from armbuild import audit
from armbuild.errors import CheckFailed
from armbuild.image import archive, layers, reader, stages, unpack


def laid(path, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with reader.open_image(path) as image:
        unpack.into_folder(image, image.manifest("arm64"), root)
    return root


def raw_layer(folder, *entries):
    """A layer of hand-made tar entries: (name, content or None, changes)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content, changes in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content or b"")
            for key, value in changes.items():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(content or b""))
    blob = folder / f"raw{hashlib.sha256(data.getvalue()).hexdigest()[:8]}"
    blob.write_bytes(gzip.compress(data.getvalue()))
    return layers.Layer(
        blob=blob,
        media_type=layers.MEDIA_TYPE,
        digest=f"sha256:{hashlib.sha256(blob.read_bytes()).hexdigest()}",
        diff_id=f"sha256:{hashlib.sha256(data.getvalue()).hexdigest()}",
        size=blob.stat().st_size,
        unpacked=len(data.getvalue()),
        comment="",
    )


def written(folder, *made):
    return archive.write([small.image(made)], folder / "image.tar", name="localhost/x:1").path


def test_a_whiteout_hides_a_file_and_a_folder_of_lower_layers(tmp_path):
    path = small.write(
        tmp_path, {"a/b": "1", "a/c": "2", "d/e/f": "3"}, {"a/.wh.b": "", "d/.wh.e": "", "a/new": "4"}
    )
    root = laid(path, tmp_path)
    assert sorted(str(item.relative_to(root)) for item in root.rglob("*")) == ["a", "a/c", "a/new", "d"]


def test_an_opaque_folder_keeps_what_its_own_layer_brings_in_any_order(tmp_path):
    lower = small.layer(tmp_path, {"a/old": "1", "a/sub/old": "2", "b": "3"})
    upper = raw_layer(
        tmp_path,
        ("a/new", b"4", {}),
        ("a/sub/new", b"5", {}),
        ("a/.wh..wh..opq", b"", {}),
        ("a/later", b"", {}),
    )
    root = laid(written(tmp_path, lower, upper), tmp_path)
    left = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert left == ["a/later", "a/new", "a/sub/new", "b"]


def test_a_file_replaces_a_folder_and_a_folder_a_link(tmp_path):
    path = small.write(
        tmp_path, {"x/inner": "1", "y": ("->", "x"), "z": "old"}, {"x": "file", "y/inside": "2", "z": "new"}
    )
    root = laid(path, tmp_path)
    assert (root / "x").read_text() == "file"
    assert (root / "z").read_text() == "new"


def test_links_are_followed_as_from_inside_the_image(tmp_path):
    lower = small.layer(tmp_path, {"usr/lib/a": "1", "lib": ("->", "/usr/lib")})
    root = laid(written(tmp_path, lower, raw_layer(tmp_path, ("lib/b", b"2", {}))), tmp_path)
    assert (root / "usr/lib/b").read_text() == "2"


@pytest.mark.parametrize(
    "link",
    [
        "..",
        "../../..",
        "/",
        "//",
        "/{outside}",
        "//{outside}",
        "///{outside}",
        "../{outside}",
        "../../{outside}",
    ],
)
def test_a_link_leads_nowhere_outside(tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = link.format(outside=str(outside).lstrip("/"))
    entries = [("a", None, {"type": tarfile.SYMTYPE, "linkname": target}), ("a/b/escaped", b"x", {})]
    root = laid(written(tmp_path, raw_layer(tmp_path, *entries)), tmp_path)
    found = list(tmp_path.rglob("escaped"))
    assert len(found) == 1
    assert root in found[0].parents
    assert not list(outside.iterdir())


def test_a_name_leads_nowhere_outside(tmp_path):
    path = written(tmp_path, raw_layer(tmp_path, ("x/../../escaped", b"x", {})))
    with pytest.raises(CheckFailed, match="outside"):
        laid(path, tmp_path)
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("slashes", ["/", "//", "///"])
def test_slashes_in_front_of_a_name_mean_nothing(tmp_path, slashes):
    entries = [
        (f"{slashes}{str(tmp_path)[1:]}/escaped", b"x", {}),
        ("link", None, {"type": tarfile.LNKTYPE, "linkname": f"{slashes}{str(tmp_path)[1:]}/escaped"}),
    ]
    try:
        root = laid(written(tmp_path, raw_layer(tmp_path, *entries)), tmp_path)
    except CheckFailed:
        assert not list(tmp_path.rglob("escaped"))
    else:
        assert [root / str(tmp_path)[1:] / "escaped"] == list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("name", [".wh...", "a/.wh...", "a/.wh..", "a/.wh."])
def test_a_whiteout_removes_nothing_outside(tmp_path, name):
    (tmp_path / "beside").write_text("of the machine")
    lower, upper = small.layer(tmp_path, {"a/b": "1"}), raw_layer(tmp_path, (name, b"", {}))
    path = written(tmp_path, lower, upper)
    with pytest.raises(CheckFailed, match="outside"):
        laid(path, tmp_path)
    assert (tmp_path / "beside").read_text() == "of the machine"
    assert (tmp_path / "root/a/b").read_text() == "1"
    assert any("leads out of the image" in error for error in audit.audit_path(path).errors)


def test_links_make_no_folder_deeper_than_names_may(tmp_path):
    """A tree that nobody could remove again: each layer goes on where the last one's link leads."""
    deep = "/".join("d" * 90)
    entries = [("top", None, {"type": tarfile.DIRTYPE})]
    for above, link in (("top", "1"), ("1", "2"), ("2", "3")):
        entries += [
            (f"{above}/{deep}", None, {"type": tarfile.DIRTYPE}),
            (link, None, {"type": tarfile.SYMTYPE, "linkname": f"{above}/{deep}"}),
        ]
    with pytest.raises(CheckFailed, match="more than 100 folders"):
        laid(written(tmp_path, raw_layer(tmp_path, *entries)), tmp_path)


def test_a_hard_link_to_nothing_is_refused(tmp_path):
    made = raw_layer(tmp_path, ("a", None, {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}))
    with pytest.raises(CheckFailed, match="hard link"):
        laid(written(tmp_path, made), tmp_path)


def test_a_changed_byte_of_a_layer_is_noticed_before_anything_is_unpacked(tmp_path):
    path = small.write(tmp_path, {"first": "1" * 5000}, {"second": "2"})
    with tarfile.open(path) as tar:
        blobs = [member for member in tar.getmembers() if member.name.startswith("blobs/sha256/")]
    with reader.open_image(path) as image:
        name = image.manifest("arm64").layers[1].name
    target = next(member for member in blobs if member.name == name)
    content = bytearray(path.read_bytes())
    content[target.offset_data + target.size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckFailed, match="tampered with or damaged"):
        laid(path, tmp_path)
    assert not any((tmp_path / "root").iterdir())


def test_a_layer_whose_inside_is_not_what_the_configuration_says_is_refused(tmp_path):
    made = small.with_diff_id(small.layer(tmp_path, {"a": "1"}), "sha256:" + "0" * 64)
    with pytest.raises(CheckFailed, match="tampered"):
        laid(written(tmp_path, made), tmp_path)


def test_zstd_layers_are_read_and_a_damaged_one_is_a_verdict(tmp_path):
    made = small.layer(tmp_path, {"a": "1" * 5000})
    laid(written(tmp_path, small.with_zstd(made)), tmp_path)
    assert (tmp_path / "root/a").read_text() == "1" * 5000
    (again := tmp_path / "again").mkdir()
    with pytest.raises(CheckFailed, match="is damaged"):
        laid(written(again, small.with_zstd(made, cut=-20)), again)


def test_layers_become_folders_for_a_dockerfile(tmp_path):
    path = small.write(tmp_path, {"a": "1"}, {"b": "2"})
    found = stages.lay(path, tmp_path / "stages")
    assert [sorted(item.name for item in folder.iterdir()) for folder in found] == [["a"], ["b"]]
    assert stages.main([str(path), str(tmp_path / "stages")]) == 2
    assert stages.main(["one"]) == 2


@pytest.mark.parametrize(
    "entry",
    [
        ("x/../../escaped", b"x", {}),
        ("a/..", None, {"type": tarfile.DIRTYPE}),
        ("a", None, {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}),
    ],
)
def test_an_audit_tells_of_a_layer_that_leads_out(tmp_path, entry):
    report = audit.audit_path(written(tmp_path, raw_layer(tmp_path, ("fine", b"x", {}), entry)))
    assert not report.ok
    assert any("leads out of the image" in error for error in report.errors), report.errors


def hard(target):
    return {"type": tarfile.LNKTYPE, "linkname": target}


@pytest.mark.parametrize(
    ("links", "above", "kept"),
    [
        ([("b", None, hard("./a"))], [(".wh.a", b"", {})], True),
        ([("b", None, hard("a")), ("c", None, hard("/b"))], [(".wh.a", b"", {}), (".wh.b", b"", {})], True),
        ([("d/b", None, hard("a"))], [(".wh.a", b"", {}), (".wh.d", b"", {})], False),
        ([], [("a", b"other", {})], False),
    ],
)
def test_an_audit_reads_a_hidden_file_that_has_another_name(tmp_path, links, above, kept):
    """A hard link stays when a layer above hides the file, and leads to what nobody would have looked at."""
    path = written(tmp_path, raw_layer(tmp_path, ("a", b"x", {}), *links), raw_layer(tmp_path, *above))
    found = audit.audit_path(path, keep=lambda name: name == "a")
    assert found.ok, found.errors
    assert (found.texts.get("a") == b"x") == kept


def test_an_audit_tells_of_a_hard_link_that_it_cannot_follow(tmp_path):
    lower = raw_layer(tmp_path, ("a", b"x", {}))
    found = audit.audit_path(written(tmp_path, lower, raw_layer(tmp_path, ("b", None, hard("a")))))
    assert any("'b': a hard link to 'a', which its layer does not have" in error for error in found.errors)


@pytest.mark.parametrize(
    "entries",
    [
        [("a", b"x", {}), ("a/b", b"x", {})],
        [("n" * 300, b"x", {})],
        [("a", None, {"type": tarfile.DIRTYPE}), ("b", None, {"type": tarfile.LNKTYPE, "linkname": "a"})],
        [("loop", None, {"type": tarfile.SYMTYPE, "linkname": "loop"}), ("loop/x", b"x", {})],
    ],
)
def test_a_layer_that_no_runtime_lays_is_refused_in_a_sentence(tmp_path, entries):
    with pytest.raises(CheckFailed):
        laid(written(tmp_path, raw_layer(tmp_path, *entries)), tmp_path)


@pytest.mark.parametrize(
    "config",
    [{"Env": [1]}, {"Env": "A=b"}, {"Env": ["A=\0"]}, {"Entrypoint": "/bin/x"}, {"Cmd": {"a": 1}},
     {"User": 7}, {"Healthcheck": {"Test": ["CMD", 1]}}, {"Healthcheck": [1]}],
)  # fmt: skip
def test_a_configuration_of_other_types_is_refused_in_a_sentence(tmp_path, config):
    with pytest.raises(CheckFailed, match="make no sense"):
        laid(small.write(tmp_path, {"a": "1"}, **config), tmp_path)
