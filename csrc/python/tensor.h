// What an op asks of a tensor, said once and in one place: its sizes by name, its dtype, where its elements
// may lie. An argument that does not match is refused by name, with what it has and what is wanted.

#pragma once

#include <Python.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "armllm/ops.h"
#include "dlpack.h"

namespace armllm {

inline constexpr int kMostSizes = 3;

// One of an op's sizes. The first tensor that has a free one settles it.
class Size {
 public:
  explicit Size(const char* name) : name_(name) {}
  explicit Size(int64_t value) : value_(value) {}
  operator int64_t() const { return value_; }  // NOLINT(google-explicit-constructor): it is one

  bool matches(int64_t actual) const { return value_ == kFree || value_ == actual; }
  void settle(int64_t actual) { value_ = actual; }
  std::string text() const { return value_ == kFree ? name_ : std::to_string(value_); }

 private:
  static constexpr int64_t kFree = INT64_MIN;
  const char* name_ = "";
  int64_t value_ = kFree;
};

struct DType {
  uint8_t code, bits;
  std::string_view name;
};
inline constexpr DType kInt8{dlpack::kInt, 8, "torch.int8"}, kInt32{dlpack::kInt, 32, "torch.int32"},
    kInt64{dlpack::kInt, 64, "torch.int64"}, kUint8{dlpack::kUnsigned, 8, "torch.uint8"};
// In the order of Storage.
inline constexpr DType kStorageTypes[] = {{dlpack::kFloat, 32, "torch.float32"},
                                          {dlpack::kFloat, 16, "torch.float16"},
                                          {dlpack::kBfloat, 16, "torch.bfloat16"}};
inline constexpr const DType& kFloat32 = kStorageTypes[0];
inline constexpr DType kFloat64{dlpack::kFloat, 64, "torch.float64"};

// The storage type of a dtype's name.
Storage storage_of(const char* name, std::string_view dtype);

// A storage type that several tensors share. The first one settles it.
class StorageType {
 public:
  StorageType() = default;
  explicit StorageType(Storage storage) : dtype_(&kStorageTypes[static_cast<int>(storage)]) {}
  operator Storage() const {  // NOLINT(google-explicit-constructor): it is one
    return static_cast<Storage>(dtype_ - kStorageTypes);
  }

 private:
  friend class TensorMatcher;
  const DType* dtype_ = nullptr;
};

// A tensor that matched. A null one stands for None.
struct Tensor {
  void* data = nullptr;
  int64_t stride[kMostSizes] = {};  // in elements

  template <class T>
  T* of() const {
    return static_cast<T*>(data);
  }
};

// `TensorMatcher({tokens, hidden}).of(type).match("x", x)`. The last dimension is contiguous, always; rows
// may lie apart unless the tensor is said to be contiguous.
class TensorMatcher {
 public:
  struct Axis {
    Axis(Size& size)
        : size(&size) {}  // NOLINT(google-explicit-constructor): {tokens, hidden} reads as a shape
    Size* size;
  };
  TensorMatcher(std::initializer_list<Axis> shape) {
    for (const Axis& axis : shape) sizes_[ndim_++] = axis.size;
  }
  TensorMatcher& of(StorageType& type) {
    type_ = &type;
    return *this;
  }
  TensorMatcher& of(const DType& dtype) {
    dtype_ = &dtype;
    return *this;
  }
  // It is written to: no two of its elements share memory.
  TensorMatcher& written() {
    written_ = true;
    return *this;
  }
  TensorMatcher& contiguous() {
    contiguous_ = true;
    return *this;
  }
  // It starts at a multiple of 64 bytes; `advice` says how to have one that does.
  TensorMatcher& aligned(const char* advice = "") {
    advice_ = advice;
    return *this;
  }

  // Throws WrongType or std::invalid_argument.
  Tensor match(const char* name, PyObject* object) const;
  Tensor match_or_none(const char* name, PyObject* object) const {
    return object == Py_None ? Tensor{} : match(name, object);
  }

 private:
  const DType* dtype_of(const dlpack::Tensor& actual) const;
  bool fits(const dlpack::Tensor& actual, bool& is_contiguous) const;
  [[noreturn]] void refuse_dtype(const char* name, PyObject* object) const;
  [[noreturn]] void refuse_shape(const char* name, const dlpack::Tensor& actual) const;

  Size* sizes_[kMostSizes] = {};
  int ndim_ = 0;
  StorageType* type_ = nullptr;
  const DType* dtype_ = nullptr;
  const char* advice_ = nullptr;
  bool written_ = false, contiguous_ = false;
};

// Learns from torch what a tensor is: its class, one of its tensors, and a negative view of that one. Throws
// where torch lets no C code read its tensors.
void use_torch(PyObject* type, PyObject* tensor, PyObject* negative);

}  // namespace armllm
