from fixture_nanobind._core import join as join
