// Calls whose tensors are plain: contiguous, on the CPU, of one storage type. The faces in Python check their
// arguments one by one, which takes longer than the kernel of a single token; so they ask here first. A call
// returns True when it is done, False when some argument is another than it expects: nothing has happened
// then, and the face says what is wrong, or passes strides on.

#include "plain.h"

#include <exception>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "dlpack.h"

namespace armllm {

namespace {

// The types whose instances are plain, torch.Tensor and torch.nn.Parameter: another, derived from them, may
// mean something else by its numbers. And how torch lets one be read; without that nothing is plain.
PyTypeObject* types[2] = {};
int (*read)(void* object, dlpack::Tensor* out) = nullptr;

struct View {
  Storage storage;
  int64_t rows, columns;  // a vector has one row
  int32_t dimensions;
  void* data;
};

bool storage_of(const dlpack::Tensor& tensor, Storage& storage) {
  if (tensor.code == dlpack::kFloat && tensor.bits == 32) {
    storage = Storage::f32;
  } else if (tensor.code == dlpack::kFloat && tensor.bits == 16) {
    storage = Storage::f16;
  } else if (tensor.code == dlpack::kBfloat && tensor.bits == 16) {
    storage = Storage::bf16;
  } else {
    return false;
  }
  return tensor.lanes == 1;
}

// May leave an error of Python's behind, which `not_plain` clears.
bool plain(PyObject* object, View& view) {
  dlpack::Tensor tensor;
  if (read == nullptr || (Py_TYPE(object) != types[0] && Py_TYPE(object) != types[1]) ||
      read(object, &tensor) != 0 || tensor.device_type != dlpack::kCpu || !storage_of(tensor, view.storage) ||
      (tensor.ndim != 1 && tensor.ndim != 2) || tensor.strides == nullptr) {
    return false;
  }
  view.dimensions = tensor.ndim;
  view.columns = tensor.shape[tensor.ndim - 1];
  view.rows = tensor.ndim == 1 ? 1 : tensor.shape[0];
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return (view.columns <= 1 || tensor.strides[tensor.ndim - 1] == 1) &&
         (view.rows <= 1 || tensor.strides[0] == view.columns);
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

// (out, x, weight, bias or None), and of a weight in panels (out_features, in_features)
template <int form>
PyObject* plain_linear(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight, bias;
  if (n != (form == kPanels ? 6 : 4) || !plain(given[0], out) || !plain(given[1], x) ||
      !plain(given[2], weight) || out.dimensions != 2 || x.dimensions != 2 || weight.dimensions != 2 ||
      x.storage != out.storage || x.storage != weight.storage || x.rows != out.rows) {
    return not_plain();
  }
  const bool has_bias = given[3] != Py_None;
  if (has_bias && (!plain(given[3], bias) || !is_row_of(bias, out))) return not_plain();
  if (form == kPanels) {
    if (PyLong_AsLongLong(given[4]) != out.columns || PyLong_AsLongLong(given[5]) != x.columns ||
        weight.rows != (out.columns + kPanelColumns - 1) / kPanelColumns ||
        weight.columns != panel_elements(x.columns)) {
      return not_plain();
    }
  } else if (weight.rows != out.columns || weight.columns != x.columns) {
    return not_plain();
  }
  return run([&] {
    matmul(chosen().table, form, x.storage,
           {out.data,
            x.data,
            has_bias ? bias.data : nullptr,
            weight.data,
            nullptr,
            {out.columns, x.columns, 0, false},
            x.rows,
            out.columns,
            x.columns});
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

// (torch.Tensor, torch.nn.Parameter)
PyObject* plain_types(PyObject*, PyObject* const* given, Py_ssize_t n) {
  if (n != 2 || !PyType_Check(given[0]) || !PyType_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "plain_types takes two types");
    return nullptr;
  }
  for (int i = 0; i < 2; ++i) {
    Py_INCREF(given[i]);
    Py_XDECREF(types[i]);
    types[i] = reinterpret_cast<PyTypeObject*>(given[i]);
  }
  PyObject* capsule = PyObject_GetAttrString(given[0], dlpack::kAttribute);
  const void* api = capsule == nullptr ? nullptr : PyCapsule_GetPointer(capsule, dlpack::kCapsule);
  Py_XDECREF(capsule);
  PyErr_Clear();
  const auto known = static_cast<const dlpack::ExchangeApi*>(api);
  read = known != nullptr && known->major_version == dlpack::kMajorVersion ? known->read : nullptr;
  return PyBool_FromLong(read != nullptr);
}

template <class F>
PyMethodDef method(const char* name, F* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL,
          nullptr};
}

}  // namespace

bool add_plain_calls(PyObject* module) {
  static PyMethodDef methods[] = {
      method("plain_types", plain_types),
      method("plain_rms_norm", plain_rms_norm),
      method("plain_fused_add_rms_norm", plain_fused_add_rms_norm),
      method("plain_layer_norm", plain_layer_norm),
      method("plain_linear", plain_linear<kDense>),
      method("plain_panel_linear", plain_linear<kPanels>),
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
