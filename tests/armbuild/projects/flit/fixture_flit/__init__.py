from fixture_flit._core import answer as answer
