// Calls with plain tensors, beside the functions of module.cpp.

#pragma once

#include <Python.h>

#include <string>

#include "armllm/ops.h"

namespace armllm {

// The target whose layout a KV cache has in this process.
const std::string& kv_cache_target(Storage storage, KvCacheType cache);

// Adds the functions plain_*. Returns false with Python's error set.
bool add_plain_calls(PyObject* module);

}  // namespace armllm
