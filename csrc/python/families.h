// The functions of the module, a family of ops each, for module.cpp.

#pragma once

#include <Python.h>

namespace armllm {

PyMethodDef* elementwise_methods();
PyMethodDef* attention_methods();
PyMethodDef* matmul_methods();
PyMethodDef* moe_methods();

}  // namespace armllm
