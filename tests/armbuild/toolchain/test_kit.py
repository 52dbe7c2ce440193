"""What the kit's files make of a build tool's own settings."""

import subprocess
import sys

from armbuild.toolchain import kit


def test_the_targets_headers_win_over_those_that_a_back_end_presets(tmp_path):
    """Debian's Python without its -dev package names a folder that is not there."""
    (tmp_path / "toolchain.cmake").write_text(kit.PYTHON_HEADERS.format(include=tmp_path / "target"))
    (tmp_path / "preset.cmake").write_text(
        "".join(
            f'set({name}_INCLUDE_DIR "/no/such/folder" CACHE PATH "" FORCE)\n'
            for name in ("PYTHON", "Python", "Python3")
        )
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x NONE)\n"
        'message("${PYTHON_INCLUDE_DIR} ${Python_INCLUDE_DIR} ${Python3_INCLUDE_DIR}")\n'
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "cmake", "-G", "Ninja", "-C", tmp_path / "preset.cmake",
            f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}",
            "-S", tmp_path, "-B", tmp_path / "build",
        ],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert " ".join([str(tmp_path / "target")] * 3) in done.stderr
