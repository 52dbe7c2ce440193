#include <Python.h>

#ifndef __aarch64__
#error compiled for the build machine
#endif

static PyObject* answer(PyObject* self, PyObject* unused) { return PyLong_FromLong(42); }

static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
