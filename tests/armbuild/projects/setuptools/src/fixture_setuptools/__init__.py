from fixture_setuptools._core import answer as answer
