#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject* long_double_size(PyObject* self, PyObject* args) { return PyLong_FromLong(SIZE); }

static PyMethodDef methods[] = {{"long_double_size", long_double_size, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, methods};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
