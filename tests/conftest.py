"""The order of test files: what takes minutes comes first, so that no worker is alone with it at the end.

What takes an hour (the marker "hours") runs only where it is asked for: `pytest -m hours`.

nox sets TESTS_END, in seconds since 1970. What has not begun by then, on a slow machine, is skipped, and the
report names it. So the files that would catch least come last.
"""

import os
import time
from pathlib import Path

import pytest

os.environ.pop("CI", None)  # with it armbuild wants proofs: the tests that mean that say so

TESTS = Path(__file__).parent
# Many costly tests first, then one each: a worker is sent its next files while it has two tests left.
LONGEST_FIRST = (
    "armbuild/image/test_image.py",
    "csrc/test_emulated_conformance.py",
    "armbuild/wheel/lanes/test_container.py",
    "csrc/test_conformance.py",
    "armbuild/wheel/lanes/test_native.py",
    "armbuild/image/test_real_engines.py",
    "armbuild/cli/test_wheel.py",
    "armbuild/image/test_real_base.py",
    "armbuild/test_torch_extensions.py",
    "csrc/test_mutants.py",
    "csrc/test_cycles.py",
    "csrc/test_count_instructions.py",
)
# What others publish: much time, and most of what it catches is in the fixtures' projects too.
LAST = ("armbuild/test_published_sdists.py",)
END = float(os.environ.get("TESTS_END", "inf"))
PLACES = {(TESTS / name).resolve(strict=True): place for place, name in enumerate(LONGEST_FIRST)}
PLACES |= {(TESTS / name).resolve(strict=True): len(LONGEST_FIRST) + 1 for name in LAST}


def pytest_collection_modifyitems(config, items):
    if "hours" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("hours")])
        items[:] = [item for item in items if not item.get_closest_marker("hours")]
    items.sort(key=lambda item: PLACES.get(item.path, len(LONGEST_FIRST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > END:
        pytest.skip("no time was left: `nox -s proofs` runs it")
