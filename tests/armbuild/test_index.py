import errno
import functools
import hashlib
import http.server
import json
import re
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.armbuild import wheels

from armbuild import index
from armbuild.cli import main
from armbuild.errors import UsageError
from armbuild.host import isolation

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def wheel(folder, version="1.0", name="thing", commit=None):
    folder.mkdir(exist_ok=True)
    path = wheels.write(
        folder,
        f"{name}-{version}-py3-none-any.whl",
        {"thing/_core.cpython-311-aarch64-linux-gnu.so": None, f"{name}.py": b"answer = 42\n"},
        metadata="Requires-Python: >=3.9,<4\n",
    )
    if commit:
        source = {"name": "source", "digest": {"gitCommit": commit}}
        statement = {"predicate": {"buildDefinition": {"resolvedDependencies": [source]}}}
        path.with_name(path.name + ".provenance.json").write_text(json.dumps(statement))
    return path


def page(folder, *parts):
    return (folder.joinpath(*parts) / "index.html").read_text()


def test_pages_and_json_say_the_same_and_their_links_lead_to_the_files(tmp_path):
    path = wheel(tmp_path / "in")
    index.add(tmp_path / "ix", [path])
    told = json.loads((tmp_path / "ix/simple/thing/index.json").read_text())["files"][0]
    assert told["hashes"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert told["requires-python"] == ">=3.9,<4"
    text = page(tmp_path / "ix/simple/thing")
    assert 'data-requires-python="&gt;=3.9,&lt;4"' in text
    assert f'href="{told["url"]}#sha256={told["hashes"]["sha256"]}"' in text
    file = (tmp_path / "ix/simple/thing" / told["url"]).resolve()
    assert file.read_bytes() == path.read_bytes()
    metadata = file.with_name(file.name + ".metadata").read_bytes()
    assert told["core-metadata"]["sha256"] == hashlib.sha256(metadata).hexdigest()
    with zipfile.ZipFile(path) as archive:
        assert metadata == archive.read("thing-1.0.dist-info/METADATA")


def test_commits_and_variants_have_indexes_of_their_own_and_channels_point_to_one(tmp_path):
    ix = tmp_path / "ix"
    index.add(ix, [wheel(tmp_path / "a", "1.0", commit=COMMIT)], channels=["latest"])
    index.add(ix, [wheel(tmp_path / "b", "1.1+neoverse.v1")], commit="fedcba9", channels=["nightly"])
    for view, version in (
        (f"commit/{COMMIT}", "1.0"),
        ("latest", "1.0"),
        ("nightly", "1.1"),
        ("variant/neoverse.v1", "1.1"),
    ):
        links = re.findall(r'href="([^"#]+whl)#', page(ix / view / "simple/thing"))
        assert len(links) == 1
        assert f"thing-{version}" in links[0]
        assert (ix / view / "simple/thing" / links[0].replace("%2B", "+")).resolve().is_file()
    assert len(re.findall(r"\.whl#", page(ix / "simple/thing"))) == 2
    assert "nightly" in page(ix)


def test_a_full_disk_leaves_no_file_that_no_page_names(tmp_path, monkeypatch):
    ix = tmp_path / "ix"
    index.add(ix, [wheel(tmp_path / "in")])
    before = {path: path.read_bytes() for path in ix.rglob("*") if path.is_file()}
    new = [wheel(tmp_path / "in", version, commit=COMMIT) for version in ("1.1", "1.2")]

    def full(source, sink, size):
        if "thing-1.2" in source.name and source.name.endswith(".whl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sink.write(source.read())

    monkeypatch.setattr(index.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left") as caught:
        index.add(ix, new)
    assert caught.value.filename.endswith("thing-1.2-py3-none-any.whl")
    assert {path: path.read_bytes() for path in ix.rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    assert index.add(ix, new).total == 3


def test_a_file_name_keeps_its_bytes(tmp_path):
    index.add(tmp_path / "ix", [wheel(tmp_path / "a")])
    again = index.add(tmp_path / "ix", [wheel(tmp_path / "a")])
    other = tmp_path / "b"
    other.mkdir()
    changed = wheels.write(
        other, "thing-1.0-py3-none-any.whl", {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    )
    before = page(tmp_path / "ix/simple/thing")
    with pytest.raises(UsageError, match="has this file with other bytes"):
        index.add(tmp_path / "ix", [wheel(tmp_path / "c", "2.0"), changed])
    assert page(tmp_path / "ix/simple/thing") == before
    assert (again.new, len(again.known)) == ((), 1)


def test_many_writers_at_once_lose_nothing(tmp_path):
    paths = [wheel(tmp_path / "in", f"1.{number}") for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda path: index.add(tmp_path / "ix", [path]), paths))
    assert len(re.findall(r"\.whl#", page(tmp_path / "ix/simple/thing"))) == 12
    assert not [path for path in (tmp_path / "ix").rglob(".*") if path.is_file()]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ix"], "no wheels there and none named"),
        (["ix", "nothing.whl"], "no such file"),
        (["ix", "in/thing-1.0-py3-none-any.whl", "--channel", "weekly"], "there are latest and nightly"),
        (["ix", "in/thing-1.0-py3-none-any.whl", "--channel", "latest"], "use --commit"),
        (["ix", "in/thing-1.0-py3-none-any.whl", "--commit", "HEAD"], "not a commit"),
        (["in/thing-1.0-py3-none-any.whl", "in/thing-1.0-py3-none-any.whl"], "not a folder"),
    ],
)
def test_misuse_is_a_line_and_leaves_no_pages(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    wheel(tmp_path / "in")
    assert main(["index", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert len(said.splitlines()) <= 2
    assert not (tmp_path / "ix/simple").exists()


def test_a_state_that_is_not_ours_is_named(tmp_path):
    (tmp_path / index.STATE).write_text("[]")
    with pytest.raises(UsageError, match="not the state of an index"):
        index.add(tmp_path, [wheel(tmp_path / "in")])


@pytest.fixture
def served(tmp_path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "ix"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def install(address, target, program):
    environment = isolation.clean() | {"UV_CACHE_DIR": str(target / "cache"), "UV_PYTHON": sys.executable}
    programs = {
        "uv": [isolation.uv_program(), "pip", "install", "--no-config", "--default-index"],
        "pip": [sys.executable, "-m", "pip", "--isolated", "install", "--no-cache-dir", "--index-url"],
    }
    command = [*programs[program], address, "-q", "--target", target / "site", "thing"]
    subprocess.run(command, env=environment, check=True)
    return (target / "site/thing.py").read_text()


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_pip_and_uv_install_from_the_files_and_over_http(tmp_path, served, program):
    index.add(tmp_path / "ix", [wheel(tmp_path / "in", commit=COMMIT)], channels=["latest"])
    assert install((tmp_path / "ix/simple").as_uri(), tmp_path / "a", program) == "answer = 42\n"
    assert install(f"{served}/latest/simple/", tmp_path / "b", program) == "answer = 42\n"


@pytest.mark.parametrize("build", ['1"><script>', "1 onload=x", "1'", "1%22", "1\n"])
def test_a_name_with_markup_in_it_is_refused(tmp_path, build):
    path = wheel(tmp_path)
    name = f"thing-1.0-{build}-py3-none-any.whl"
    path = path.rename(tmp_path / name)
    with pytest.raises(UsageError):
        index.add(tmp_path / "ix", [path])
    assert not (tmp_path / "ix").exists()


def test_what_an_index_holds_already_is_escaped_in_its_pages(tmp_path):
    index.add(tmp_path, [wheel(tmp_path / "in", commit=COMMIT)], channels=["latest"])
    state = json.loads((tmp_path / index.STATE).read_text())
    state["files"][0] |= {"filename": "<b>.whl", "commit": "<i>", "sha256": "<u>", "requires_python": '">'}
    (tmp_path / index.STATE).write_text(json.dumps(state))
    index.add(tmp_path, [wheel(tmp_path / "in", "2.0")])
    for path in (path for path in tmp_path.rglob("index.html") if "<i>" not in str(path)):
        text = path.read_text()
        assert not re.search('<[biu]>|">"', text), path


def test_blanks_in_metadata_cost_no_more_than_their_bytes(tmp_path):
    path = wheel(tmp_path / "in")
    wheels.write(path.parent, path.name, {"thing/_core.cpython-311-aarch64-linux-gnu.so": None},
                 metadata=f"Requires-Python: >=3.9{' ' * 1_000_000},<4 \n")  # fmt: skip
    index.add(tmp_path / "index", [path])
    assert 'data-requires-python="&gt;=3.9 ' in page(tmp_path, "index/simple/thing")
    assert ',&lt;4"' in page(tmp_path, "index/simple/thing")


def test_a_commit_beside_a_wheel_is_one(tmp_path):
    index.add(tmp_path, [wheel(tmp_path / "in", commit="../../../outside")])
    assert json.loads((tmp_path / index.STATE).read_text())["files"][0]["commit"] == ""


@pytest.mark.parametrize("text", ["[]", "1", '{"predicate": []}', "[" * 10_000, "\0"])
def test_nonsense_beside_a_wheel_names_no_commit(tmp_path, text):
    path = wheel(tmp_path / "in")
    path.with_name(path.name + ".provenance.json").write_text(text)
    index.add(tmp_path, [path])
    assert json.loads((tmp_path / index.STATE).read_text())["files"][0]["commit"] == ""
