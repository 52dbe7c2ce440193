use std::ffi::c_void;
use std::ptr;

use pyo3_ffi::*;

PyABIInfo_VAR!(ABI_INFO);

static mut METHODS: [PyMethodDef; 2] = [
    PyMethodDef {
        ml_name: c"double".as_ptr(),
        ml_meth: PyMethodDefPointer { PyCFunction: double },
        ml_flags: METH_O,
        ml_doc: ptr::null(),
    },
    PyMethodDef::zeroed(),
];

static mut SLOTS: [PySlot; 5] = [
    PySlot_STATIC_DATA(Py_mod_abi, (&raw mut ABI_INFO).cast()),
    PySlot_STATIC_DATA(Py_mod_name, c"fixture_abi3t".as_ptr() as *mut c_void),
    PySlot_STATIC_DATA(Py_mod_methods, (&raw mut METHODS).cast()),
    PySlot_DATA(Py_mod_gil, Py_MOD_GIL_NOT_USED),
    PySlot_END(),
];

#[allow(non_snake_case)]
#[no_mangle]
pub unsafe extern "C" fn PyModExport_fixture_abi3t() -> *mut PySlot {
    (&raw mut SLOTS).cast()
}

unsafe extern "C" fn double(_module: *mut PyObject, number: *mut PyObject) -> *mut PyObject {
    PyNumber_Add(number, number)
}
