// Calls with plain tensors, beside the functions of module.cpp.

#pragma once

#include <Python.h>

namespace armllm {

// Adds the functions plain_*. Returns false with Python's error set.
bool add_plain_calls(PyObject* module);

}  // namespace armllm
