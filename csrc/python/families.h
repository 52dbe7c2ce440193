// The functions of the module, a family of ops each, for module.cpp.

#pragma once

#include <Python.h>

namespace armllm {

PyMethodDef* elementwise_methods();
PyMethodDef* attention_methods();
PyMethodDef* matmul_methods();
PyMethodDef* moe_methods();
PyMethodDef* lora_methods();
PyMethodDef* recurrence_methods();
PyMethodDef* sampling_methods();
PyMethodDef* ranks_methods();
// Its classes, too.
void bind_ranks(PyObject* module);

}  // namespace armllm
