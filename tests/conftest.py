"""The order of test files: what takes minutes comes first, so that no worker is alone with it at the end.

What takes an hour (the marker "hours") runs only where it is asked for: `pytest -m hours`.
"""

import os
from pathlib import Path

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
PLACES = {(TESTS / name).resolve(strict=True): place for place, name in enumerate(LONGEST_FIRST)}


def pytest_collection_modifyitems(config, items):
    if "hours" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("hours")])
        items[:] = [item for item in items if not item.get_closest_marker("hours")]
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
