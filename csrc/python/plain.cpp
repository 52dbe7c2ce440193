// Calls whose tensors are plain: contiguous, on the CPU, of one storage type. The faces in Python check their
// arguments one by one, which takes longer than the kernel of a single token; so they ask here first. A call
// returns True when it is done, False when some argument is another than it expects: nothing has happened
// then, and the face says what is wrong, or passes strides on.

#include "plain.h"

#include <exception>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/ops.h"

namespace armllm {

namespace {

// A reference that is given back. A null one leaves an error of Python's behind, which `plain` clears.
class Reference {
 public:
  explicit Reference(PyObject* object) : object_(object) {}
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

struct Names {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};
const Names& names() {
  static const Names kNames;
  return kNames;
}

// torch's float32, float16, bfloat16, in the order of Storage.
PyObject* dtypes[3] = {};

struct View {
  Storage storage;
  int64_t rows, columns;  // a vector has one row
  Py_ssize_t dimensions;
  void* data;
};

bool plain(PyObject* tensor, View& view) {
  const Reference dtype(PyObject_GetAttr(tensor, names().dtype));
  int kind = 0;
  while (kind < 3 && (dtype.get() == nullptr || dtype.get() != dtypes[kind])) ++kind;
  if (kind == 3) return false;
  view.storage = static_cast<Storage>(kind);
  const Reference is_cpu(PyObject_GetAttr(tensor, names().is_cpu));
  if (is_cpu.get() != Py_True) return false;
  const Reference shape(PyObject_GetAttr(tensor, names().shape));
  if (shape.get() == nullptr || !PyTuple_Check(shape.get())) return false;
  view.dimensions = PyTuple_GET_SIZE(shape.get());
  if (view.dimensions != 1 && view.dimensions != 2) return false;
  view.columns = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), view.dimensions - 1));
  view.rows = view.dimensions == 1 ? 1 : PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), 0));
  if (view.rows < 0 || view.columns < 0) return false;
  const Reference contiguous(PyObject_CallMethodNoArgs(tensor, names().is_contiguous));
  if (contiguous.get() != Py_True) return false;
  const Reference address(PyObject_CallMethodNoArgs(tensor, names().data_ptr));
  if (address.get() == nullptr) return false;
  view.data = PyLong_AsVoidPtr(address.get());
  return PyErr_Occurred() == nullptr;
}

PyObject* not_plain() {
  PyErr_Clear();
  Py_RETURN_FALSE;
}

template <class Call>
PyObject* run(const Call& call) {
  std::string problem;
  Py_BEGIN_ALLOW_THREADS;
  try {
    call();
  } catch (const std::exception& error) {
    problem = std::string("the kernel failed: ") + error.what();
  }
  Py_END_ALLOW_THREADS;
  if (problem.empty()) Py_RETURN_TRUE;
  PyErr_SetString(PyExc_RuntimeError, problem.c_str());
  return nullptr;
}

bool number(PyObject* object, float& value) {
  value = static_cast<float>(PyFloat_AsDouble(object));
  return PyErr_Occurred() == nullptr;
}

// Matrices of one shape and storage type, and vectors of their columns.
bool same_matrix(const View& a, const View& b) {
  return a.dimensions == 2 && b.dimensions == 2 && a.storage == b.storage && a.rows == b.rows &&
         a.columns == b.columns;
}
bool is_row_of(const View& vector, const View& matrix) {
  return vector.dimensions == 1 && vector.storage == matrix.storage && vector.columns == matrix.columns;
}

// (out, x, weight, eps, weight_offset)
PyObject* plain_rms_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight;
  float eps = 0, offset = 0;
  if (n != 5 || !plain(given[0], out) || !plain(given[1], x) || !plain(given[2], weight) ||
      !number(given[3], eps) || !number(given[4], offset) || !same_matrix(out, x) || !is_row_of(weight, x)) {
    return not_plain();
  }
  return run([&] {
    rms_norm(chosen().table, x.storage,
             {out.data, x.data, weight.data, x.rows, x.columns, x.columns, x.columns, eps, offset});
  });
}

// (x, residual, weight, eps, weight_offset)
PyObject* plain_fused_add_rms_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View x, residual, weight;
  float eps = 0, offset = 0;
  if (n != 5 || !plain(given[0], x) || !plain(given[1], residual) || !plain(given[2], weight) ||
      !number(given[3], eps) || !number(given[4], offset) || !same_matrix(residual, x) ||
      !is_row_of(weight, x)) {
    return not_plain();
  }
  return run([&] {
    fused_add_rms_norm(
        chosen().table, x.storage,
        {x.data, residual.data, weight.data, x.rows, x.columns, x.columns, x.columns, eps, offset});
  });
}

// (out, x, weight, bias or None, eps)
PyObject* plain_layer_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight, bias;
  float eps = 0;
  if (n != 5 || !plain(given[0], out) || !plain(given[1], x) || !plain(given[2], weight) ||
      !number(given[4], eps) || !same_matrix(out, x) || !is_row_of(weight, x)) {
    return not_plain();
  }
  const bool has_bias = given[3] != Py_None;
  if (has_bias && (!plain(given[3], bias) || !is_row_of(bias, x))) return not_plain();
  return run([&] {
    layer_norm(chosen().table, x.storage,
               {out.data, x.data, weight.data, has_bias ? bias.data : nullptr, x.rows, x.columns, x.columns,
                x.columns, eps});
  });
}

// (out, x)
template <Function function>
PyObject* plain_activation(PyObject*, PyObject* const* given, Py_ssize_t n) {
  constexpr int64_t kHalves = function <= Function::gelu_tanh_and_mul ? 2 : 1;
  View out, x;
  if (n != 2 || !plain(given[0], out) || !plain(given[1], x) || out.dimensions != 2 || x.dimensions != 2 ||
      out.storage != x.storage || out.rows != x.rows || out.columns * kHalves != x.columns) {
    return not_plain();
  }
  return run([&] {
    activation(chosen().table, function, x.storage,
               {out.data, x.data, x.rows, out.columns, out.columns, x.columns});
  });
}

// (out, x), whose storage types differ
PyObject* plain_convert(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x;
  if (n != 2 || !plain(given[0], out) || !plain(given[1], x) || out.dimensions != 2 || x.dimensions != 2 ||
      out.storage == x.storage || out.rows != x.rows || out.columns != x.columns) {
    return not_plain();
  }
  return run([&] {
    convert(chosen().table, out.storage, x.storage,
            {out.data, x.data, x.rows, x.columns, x.columns, x.columns});
  });
}

// (float32, float16, bfloat16): torch's dtypes, without which nothing is plain
PyObject* plain_dtypes(PyObject*, PyObject* const* given, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < 3 && i < n; ++i) {
    Py_INCREF(given[i]);
    Py_XDECREF(dtypes[i]);
    dtypes[i] = given[i];
  }
  Py_RETURN_NONE;
}

template <class F>
PyMethodDef method(const char* name, F* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL,
          nullptr};
}

}  // namespace

bool add_plain_calls(PyObject* module) {
  static PyMethodDef methods[] = {
      method("plain_dtypes", plain_dtypes),
      method("plain_rms_norm", plain_rms_norm),
      method("plain_fused_add_rms_norm", plain_fused_add_rms_norm),
      method("plain_layer_norm", plain_layer_norm),
      method("plain_silu_and_mul", plain_activation<Function::silu_and_mul>),
      method("plain_gelu_and_mul", plain_activation<Function::gelu_and_mul>),
      method("plain_gelu_tanh_and_mul", plain_activation<Function::gelu_tanh_and_mul>),
      method("plain_gelu", plain_activation<Function::gelu>),
      method("plain_gelu_tanh", plain_activation<Function::gelu_tanh>),
      method("plain_quick_gelu", plain_activation<Function::quick_gelu>),
      method("plain_relu", plain_activation<Function::relu>),
      method("plain_convert", plain_convert),
      {nullptr, nullptr, 0, nullptr},
  };
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace armllm
