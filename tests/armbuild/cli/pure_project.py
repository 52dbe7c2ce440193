"""A project of pure Python, whose back end takes space and time as a real one does."""

from pathlib import Path

WHEEL = "thing-1.0-py3-none-any.whl"
FILES = {
    "pyproject.toml": """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "thing"
version = "1.0"
""",
    "backend.py": """\
import pathlib, random, subprocess, tempfile, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 18))
    subprocess.run(["sleep", "0.5"], check=True)
    texts = {
        "thing.py": random.Random(0).randbytes(1 << 17).hex(),  # which nothing compresses much
        "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n",
        "thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "thing-1.0.dist-info/RECORD": "",
    }
    texts["thing-1.0.dist-info/RECORD"] = "".join(f"{path},,\\n" for path in texts)
    with zipfile.ZipFile(pathlib.Path(folder) / "thing-1.0-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
    return "thing-1.0-py3-none-any.whl"
""",
}


def write(folder: Path) -> None:
    """Write the project into a new folder; it has no build requirements."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
