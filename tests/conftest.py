"""The order of test files: kernels on emulated cores first, what takes minutes last.

nox sets TESTS_END, in seconds since 1970. What has not begun by then, on a slow machine, is skipped, and the
report names it. So the many tests that take seconds come before the few that take minutes.

What takes an hour (the marker "hours") runs only where it is asked for: `pytest -m hours`.
"""

import os
import signal
import time
from pathlib import Path

import pytest

os.environ.pop("CI", None)  # with it armbuild requires its smoke tests: the tests that mean that say so

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # a job in a shell's background: so would what tests start
        signal.signal(number, handler)

TESTS = Path(__file__).parent
FIRST = "csrc/test_emulated_conformance.py"
"""What would go wrong on Arm alone is found by no other test."""
# The last one builds what others publish: most of what it catches is in the fixtures' projects too.
LAST = (
    "csrc/test_conformance.py",
    "armbuild/image/test_image.py",
    "armbuild/cli/test_wheel.py",
    "armbuild/wheel/lanes/test_native.py",
    "armbuild/test_published_sdists.py",
)
END = float(os.environ.get("TESTS_END", "inf"))
PLACES = {(TESTS / name).resolve(strict=True): place for place, name in enumerate(LAST, 1)}
PLACES[(TESTS / FIRST).resolve(strict=True)] = -1


def pytest_collection_modifyitems(config, items):
    if "hours" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("hours")])
        items[:] = [item for item in items if not item.get_closest_marker("hours")]
    items.sort(key=lambda item: PLACES.get(item.path, 0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > END:
        pytest.skip(f"no time was left for {item.nodeid}: `nox -s costly` runs it")
