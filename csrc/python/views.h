// Tensors of torch as C sees them, through DLPack's functions: where their numbers are, and whether they are
// plain. What asks for that may leave an error of Python's behind.

#pragma once

#include <Python.h>

#include <type_traits>

#include "armllm/ops.h"
#include "dlpack.h"

namespace armllm {

// False unless it is a tensor of the types that plain_types has named, on the CPU.
bool on_cpu(PyObject* object, dlpack::Tensor& tensor);

// Rows whose elements lie side by side; a vector is one row.
struct Rows {
  void* data;
  int64_t rows, columns, stride;
  int32_t dimensions;

  // Whether the rows lie side by side as well.
  bool whole() const { return rows <= 1 || stride == columns; }
};
bool rows_of(const dlpack::Tensor& tensor, Rows& rows);

// Contiguous vectors and matrices of a storage type.
struct View : Rows {
  Storage storage;
};
bool plain(PyObject* object, View& view);

// Matrices of one shape and storage type, and vectors of their columns.
inline bool same_matrix(const View& a, const View& b) {
  return a.dimensions == 2 && b.dimensions == 2 && a.storage == b.storage && a.rows == b.rows &&
         a.columns == b.columns;
}
inline bool is_row_of(const View& vector, const View& matrix) {
  return vector.dimensions == 1 && vector.storage == matrix.storage && vector.columns == matrix.columns;
}

// [tokens, heads, head_dim], the elements of a head side by side.
struct Heads {
  Storage storage;
  void* data;
  int64_t tokens, heads, head_dim, token_stride, head_stride;

  // Whether no two of them share memory, with a token's heads between those of its neighbours.
  bool apart() const {
    const int64_t width = heads > 1 ? (heads - 1) * head_stride + head_dim : head_dim;
    return (heads <= 1 || head_stride >= head_dim) && (tokens <= 1 || token_stride >= width);
  }
};
bool plain(PyObject* object, Heads& view);

// Vectors and matrices of a known type, whose rows may lie apart.
template <class T>
struct Numbers : Rows {
  T* values;
};

template <class T>
bool plain(PyObject* object, Numbers<T>& view) {
  constexpr uint8_t kCode = std::is_floating_point<T>::value ? dlpack::kFloat
                            : std::is_signed<T>::value       ? dlpack::kInt
                                                             : dlpack::kUnsigned;
  dlpack::Tensor tensor;
  if (!on_cpu(object, tensor) || tensor.code != kCode || tensor.bits != 8 * sizeof(T) || tensor.lanes != 1 ||
      !rows_of(tensor, view)) {
    return false;
  }
  view.values = static_cast<T*>(view.data);
  return true;
}

inline bool is_vector(const Rows& view, int64_t length) {
  return view.dimensions == 1 && view.columns == length;
}

// (torch.Tensor, torch.nn.Parameter): names the types. Returns whether torch lets them be read so.
PyObject* plain_types(PyObject* self, PyObject* const* given, Py_ssize_t n);

}  // namespace armllm
