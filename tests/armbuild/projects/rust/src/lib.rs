//! A module of CPython's stable ABI without PyO3: three functions of the interpreter are all it needs.
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;

#[repr(C)]
pub struct Method {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void>,
    flags: c_int,
    doc: *const c_char,
}

#[repr(C)]
struct Definition {
    refcount: isize,
    kind: *mut c_void,
    base: [*mut c_void; 3],
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut Method,
    rest: [*mut c_void; 4],
}

const METH_O: c_int = 8;

extern "C" {
    fn PyModule_Create2(definition: *mut c_void, version: c_int) -> *mut c_void;
    fn PyLong_AsUnsignedLongLong(object: *mut c_void) -> u64;
    fn PyLong_FromUnsignedLongLong(value: u64) -> *mut c_void;
}

unsafe extern "C" fn sum_below(_module: *mut c_void, object: *mut c_void) -> *mut c_void {
    let n = PyLong_AsUnsignedLongLong(object);
    let sum = catch_unwind(|| fixture_sum::sum_below(n)).unwrap_or(fixture_macro::answer!());
    PyLong_FromUnsignedLongLong(sum + fixture_sum::calls())
}

#[no_mangle]
pub unsafe extern "C" fn PyInit_fixture_rust() -> *mut c_void {
    let end = Method { name: std::ptr::null(), function: None, flags: 0, doc: std::ptr::null() };
    let methods = Box::leak(Box::new([
        Method { name: c"sum_below".as_ptr(), function: Some(sum_below), flags: METH_O, doc: std::ptr::null() },
        end,
    ]));
    let definition = Box::leak(Box::new(Definition {
        refcount: 1,
        kind: std::ptr::null_mut(),
        base: [std::ptr::null_mut(); 3],
        name: c"fixture_rust".as_ptr(),
        doc: std::ptr::null(),
        size: -1,
        methods: methods.as_mut_ptr(),
        rest: [std::ptr::null_mut(); 4],
    }));
    PyModule_Create2((definition as *mut Definition).cast(), 1013)
}
