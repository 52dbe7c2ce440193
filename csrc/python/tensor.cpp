#include "tensor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "arguments.h"

namespace armllm {

namespace {

constexpr uintptr_t kAlignment = 64;

// What use_torch has learnt.
PyTypeObject* tensor_type = nullptr;
int (*read_tensor)(void* object, dlpack::Tensor* out) = nullptr;

// A tensor with torch's negative bit stands for the negatives of the numbers in memory. A method of torch's,
// is_neg, tells. It takes 68 ns for each tensor, where all of rms_norm with three of them takes 0.4 us:
// nearly half. DLPack has no field for it, and torch's C++ interface would tie the extension to one release.
// The bit lies in the tensor itself, as the sizes and strides of one with few dimensions do, each at a
// distance that is the same in all of them. So a look there says of almost every tensor that the bit is not
// set; where it may be, the method is asked.
struct NegativeBit {
  ptrdiff_t strides = 0;  // from the sizes, as `word` is; 0: not known
  ptrdiff_t word = 0;
  uint64_t mask = 0;

  // The first bit from `first` on that is set in `negative` alone, in a word that is the same but for it.
  static NegativeBit find(const dlpack::Tensor& tensor, const dlpack::Tensor& negative, ptrdiff_t first) {
    constexpr ptrdiff_t kFarthest = 16;
    const ptrdiff_t strides = tensor.strides - tensor.shape;
    if (strides <= tensor.ndim || strides != negative.strides - negative.shape) return {};
    for (ptrdiff_t word = first > strides ? first : strides; word < kFarthest; ++word) {
      const auto here = static_cast<uint64_t>(tensor.shape[word]),
                 there = static_cast<uint64_t>(negative.shape[word]);
      const uint64_t mask = here ^ there;
      if (mask != 0 && (mask & (mask - 1)) == 0 && (there & mask) != 0) return {strides, word, mask};
    }
    return {};
  }
  bool surely_clear(const dlpack::Tensor& tensor) const {
    return strides != 0 && tensor.strides - tensor.shape == strides &&
           (static_cast<uint64_t>(tensor.shape[word]) & mask) == 0;
  }
};
NegativeBit negative_bit;

const std::string kTheKernelsTake = "; the kernels take torch.float32, torch.float16, torch.bfloat16";

std::string shown(PyObject* object, const char* attribute) {
  PyObject* value = PyObject_GetAttrString(object, attribute);
  if (value == nullptr) return text_of_new(nullptr);
  std::string result = text_of_new(PyObject_Str(value));
  Py_DECREF(value);
  return result;
}

bool is_negative(PyObject* object) {
  PyObject* answer = PyObject_CallMethod(object, "is_neg", nullptr);
  const bool negative = answer == Py_True;
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return negative;
}

std::string list(const int64_t* values, int count) {
  std::string result = "[";
  for (int i = 0; i < count; ++i) result += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return result + "]";
}

[[noreturn]] void refuse(const char* name, const std::string& why) {
  throw std::invalid_argument(std::string(name) + " " + why);
}

dlpack::Tensor read(const char* name, PyObject* object) {
  if (tensor_type == nullptr)
    throw std::runtime_error("armllm.kernels is to be imported before its extension");
  if (Py_TYPE(object) != tensor_type && PyType_IsSubtype(Py_TYPE(object), tensor_type) == 0) {
    throw WrongType(std::string(name) + " is of type " + Py_TYPE(object)->tp_name + ", expected a tensor");
  }
  dlpack::Tensor tensor;
  const bool readable = read_tensor(object, &tensor) == 0;
  if (!readable) PyErr_Clear();
  if (!readable || tensor.device_type != dlpack::kCpu) {
    const std::string device = shown(object, "device");
    if (device != "cpu") refuse(name, "is on " + device + "; the kernels run on the CPU");
  }
  if (!readable || tensor.strides == nullptr) {
    const std::string layout = shown(object, "layout");
    const bool is_dense = layout == "torch.strided";  // of a quantized dtype, or inside a function transform
    refuse(name, "is stored as " +
                     (is_dense ? shown(object, "dtype") + " that no other code may read" : layout) +
                     "; the kernels take dense tensors");
  }
  if (!negative_bit.surely_clear(tensor) && is_negative(object)) {
    refuse(name, "has torch's negative bit: its numbers are not those in memory; call resolve_neg()");
  }
  return tensor;
}

bool is_empty(const dlpack::Tensor& tensor) {
  return std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim;
}

bool overlaps(const dlpack::Tensor& tensor) {
  std::pair<int64_t, int64_t> by_stride[kMostSizes];
  for (int i = 0; i < tensor.ndim; ++i) by_stride[i] = {tensor.strides[i], tensor.shape[i]};
  std::sort(by_stride, by_stride + tensor.ndim);
  int64_t extent = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    const auto [stride, size] = by_stride[i];
    if (size <= 1) continue;
    if (stride < extent) return true;
    extent += stride * (size - 1);
  }
  return false;
}

}  // namespace

Storage storage_of(const char* name, std::string_view dtype) {
  for (const DType& known : kStorageTypes) {
    if (dtype == known.name) return static_cast<Storage>(&known - kStorageTypes);
  }
  refuse(name, "is " + std::string(dtype) + kTheKernelsTake);
}

const DType* TensorMatcher::dtype_of(const dlpack::Tensor& actual) const {
  const auto is = [&](const DType& dtype) {
    return actual.code == dtype.code && actual.bits == dtype.bits && actual.lanes == 1;
  };
  const DType* wanted = type_ == nullptr ? dtype_ : type_->dtype_;
  if (wanted != nullptr) return is(*wanted) ? wanted : nullptr;
  for (const DType& known : kStorageTypes) {
    if (is(known)) return &known;
  }
  return nullptr;
}

void TensorMatcher::refuse_dtype(const char* name, PyObject* object) const {
  const DType* wanted = type_ == nullptr ? dtype_ : type_->dtype_;
  refuse(name, "has dtype " + shown(object, "dtype") +
                   (wanted == nullptr ? kTheKernelsTake : ", expected " + std::string(wanted->name)));
}

bool TensorMatcher::fits(const dlpack::Tensor& actual, bool& is_contiguous) const {
  if (actual.ndim != ndim_) return false;
  int64_t expected = 1;
  is_contiguous = true;
  for (int i = ndim_ - 1; i >= 0; --i) {
    const int64_t size = actual.shape[i];
    if (!sizes_[i]->matches(size)) return false;
    if (size != 1 && actual.strides[i] != expected) is_contiguous = false;
    expected *= size;
  }
  if (expected == 0) is_contiguous = true;
  return true;
}

void TensorMatcher::refuse_shape(const char* name, const dlpack::Tensor& actual) const {
  std::string expected;
  for (int i = 0; i < ndim_; ++i) expected += (i == 0 ? "" : ", ") + sizes_[i]->text();
  refuse(name, "has shape " + list(actual.shape, actual.ndim) + ", expected [" + expected + "]");
}

Tensor TensorMatcher::match(const char* name, PyObject* object) const {
  const dlpack::Tensor actual = read(name, object);
  const DType* dtype = dtype_of(actual);
  if (dtype == nullptr) refuse_dtype(name, object);
  bool is_contiguous = false;
  if (!fits(actual, is_contiguous)) refuse_shape(name, actual);
  if (!is_contiguous) {
    const int last = actual.ndim - 1;
    const std::string strides = list(actual.strides, actual.ndim);
    if (contiguous_) refuse(name, "must be contiguous, its strides are " + strides);
    if (actual.shape[last] > 1 && actual.strides[last] != 1) {
      refuse(name, "must be contiguous in its last dimension, its stride there is " +
                       std::to_string(actual.strides[last]));
    }
    if (written_ && overlaps(actual)) refuse(name, "overlaps itself in memory: strides " + strides);
  }
  Tensor result;
  result.data = static_cast<char*>(actual.data) + actual.byte_offset;
  if (advice_ != nullptr && reinterpret_cast<uintptr_t>(result.data) % kAlignment != 0) {
    refuse(name, "must start at a multiple of " + std::to_string(kAlignment) + " bytes" + advice_);
  }
  if (result.data == nullptr && !is_empty(actual)) refuse(name, "has no memory");
  if (type_ != nullptr) type_->dtype_ = dtype;
  for (int i = 0; i < ndim_; ++i) {
    sizes_[i]->settle(actual.shape[i]);
    result.stride[i] = actual.strides[i];
  }
  return result;
}

namespace {

// Whether the bit is that of other tensors, too: some bits of a tensor nobody ever writes to.
bool holds(PyObject* tensor) {
  constexpr int kTensors = 8;
  PyObject* copies[2 * kTensors] = {};  // alive at once, so that no two have the same memory
  bool result = true;
  for (int i = 0; i < 2 * kTensors; ++i) {
    const bool is_plain = i % 2 == 0;
    copies[i] = PyObject_CallMethod(tensor, is_plain ? "detach" : "_neg_view", nullptr);
    dlpack::Tensor one;
    result = result && copies[i] != nullptr && read_tensor(copies[i], &one) == 0 &&
             negative_bit.surely_clear(one) == is_plain;
  }
  for (PyObject* one : copies) Py_XDECREF(one);
  return result;
}

}  // namespace

void use_torch(PyObject* type, PyObject* tensor, PyObject* negative) {
  PyObject* capsule = PyObject_GetAttrString(type, dlpack::kAttribute);
  const void* found = capsule == nullptr ? nullptr : PyCapsule_GetPointer(capsule, dlpack::kCapsule);
  Py_XDECREF(capsule);
  PyErr_Clear();
  const auto api = static_cast<const dlpack::ExchangeApi*>(found);
  if (!PyType_Check(type) || api == nullptr || api->major_version != dlpack::kMajorVersion ||
      api->read == nullptr) {
    throw std::invalid_argument("this torch lets no other code read its tensors (" +
                                std::string(dlpack::kAttribute) + "); the kernels need torch 2.10 or newer");
  }
  Py_INCREF(type);
  tensor_type = reinterpret_cast<PyTypeObject*>(type);
  read_tensor = api->read;
  negative_bit = {};
  const dlpack::Tensor one = read("tensor", tensor);
  dlpack::Tensor other;
  if (read_tensor(negative, &other) == 0) {
    negative_bit = NegativeBit::find(one, other, 0);
    while (negative_bit.strides != 0 && !holds(tensor)) {
      negative_bit = NegativeBit::find(one, other, negative_bit.word + 1);
    }
  }
  PyErr_Clear();
}

}  // namespace armllm
