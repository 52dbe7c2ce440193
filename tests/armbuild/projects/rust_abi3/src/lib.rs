use pyo3::prelude::*;

#[pyfunction]
fn double(n: u64) -> u64 {
    n * 2
}

#[pymodule]
fn fixture_abi3(_python: Python<'_>, module: &PyModule) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(double, module)?)
}
