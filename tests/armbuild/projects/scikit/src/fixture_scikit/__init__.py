from fixture_scikit._core import add as add
