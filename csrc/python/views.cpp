#include "views.h"

namespace armllm {

namespace {

// The types whose instances are plain, torch.Tensor and torch.nn.Parameter: another, derived from them, may
// mean something else by its numbers. And how torch lets one be read; without that nothing is plain.
PyTypeObject* types[2] = {};
int (*read)(void* object, dlpack::Tensor* out) = nullptr;

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

void* start(const dlpack::Tensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

}  // namespace

bool on_cpu(PyObject* object, dlpack::Tensor& tensor) {
  return read != nullptr && (Py_TYPE(object) == types[0] || Py_TYPE(object) == types[1]) &&
         read(object, &tensor) == 0 && tensor.device_type == dlpack::kCpu && tensor.strides != nullptr;
}

bool rows_of(const dlpack::Tensor& tensor, Rows& rows) {
  if (tensor.ndim != 1 && tensor.ndim != 2) return false;
  rows.dimensions = tensor.ndim;
  rows.columns = tensor.shape[tensor.ndim - 1];
  rows.rows = tensor.ndim == 1 ? 1 : tensor.shape[0];
  rows.stride = tensor.ndim == 1 ? rows.columns : tensor.strides[0];
  rows.data = start(tensor);
  return rows.columns <= 1 || tensor.strides[tensor.ndim - 1] == 1;
}

bool plain(PyObject* object, View& view) {
  dlpack::Tensor tensor;
  return on_cpu(object, tensor) && storage_of(tensor, view.storage) && rows_of(tensor, view) && view.whole();
}

bool plain(PyObject* object, Heads& view) {
  dlpack::Tensor tensor;
  if (!on_cpu(object, tensor) || !storage_of(tensor, view.storage) || tensor.ndim != 3) return false;
  view.data = start(tensor);
  view.tokens = tensor.shape[0];
  view.heads = tensor.shape[1];
  view.head_dim = tensor.shape[2];
  view.token_stride = tensor.strides[0];
  view.head_stride = tensor.strides[1];
  return view.head_dim <= 1 || tensor.strides[2] == 1;
}

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

}  // namespace armllm
