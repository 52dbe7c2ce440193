"""TOML that costs its reader gigabytes is refused, and all other is read as it is."""

import pytest

from armbuild.artifact import toml_file


def read(folder, text):
    (folder / "x.toml").write_text(text)
    return toml_file.read(folder / "x.toml", 1 << 20)


@pytest.mark.parametrize("part", ["a", '"a b"', "'a.b'", '"\\""', "a-b \t"])
def test_a_key_of_many_parts_is_refused(tmp_path, part):
    """Of 50,000 parts, in a file of 100 KB, the parser makes 10 GB."""
    key = ".".join([part] * 33)
    for text in (f"{key} = 1\n", f"[{key}]\n", f"x = {{ {key} = 1 }}\n", f"x = '''\n'''\n{key} = 1\n"):
        with pytest.raises(ValueError, match="a key has more than 32 parts"):
            read(tmp_path, text)


def test_texts_and_comments_may_have_any_dots(tmp_path):
    dots = "a." * 100
    text = f'# {dots}\nx = "{dots}"\ny = """\n{dots}\\" """\nz = [\'{dots}\', 1.5]\n{"k." * 31}k = 1\n'
    assert read(tmp_path, text)["z"] == [dots, 1.5]


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 100_000, 'x = """' + '\\"""' * 100_000, "x" * (2 << 20), 'x = "\\']
)
def test_what_is_no_toml_is_refused(tmp_path, text):
    with pytest.raises(ValueError):
        read(tmp_path, text)
