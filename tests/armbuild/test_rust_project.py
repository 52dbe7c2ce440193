"""A project in Rust, without crates of others: cross-built twice to the same bytes, and run on a core."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "projects/rust"
USE = "from fixture_rust import sum_below as f; assert (f(10), f(2_000_000)) == (46, 44)"
"""The second call panics, and is caught."""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_rust_becomes_an_audited_wheel_that_panics_where_it_should(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "armbuild", "wheel", PROJECT, "--lane=cross", "--cpu=neoverse-v1", "--json",
         "--baseline=neoverse-v1", "--sandbox", "--check-reproducible", f'--command=python -c "{USE}"',
         f"--output={tmp_path}"],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["wheels"]
    assert result["verdict"] == "proven"
    assert result["reproducible"]
    assert "rustc 1." in result["compiler"]
    with zipfile.ZipFile(result["path"]) as archive:
        (bill,) = (name for name in archive.namelist() if name.endswith("armbuild.cdx.json"))
        parts = {part["name"]: part["scope"] for part in json.loads(archive.read(bill))["components"]}
        (library,) = (archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    assert (parts["fixture-sum"], parts["fixture-macro"]) == ("required", "excluded")
    assert str(Path.home()).encode() not in library
