from fixture_rust.fixture_rust import sum_below as sum_below
