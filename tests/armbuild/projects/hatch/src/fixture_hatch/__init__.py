from fixture_hatch._core import answer as answer
