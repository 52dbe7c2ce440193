// What is used of DLPack 1 (github.com/dmlc/dlpack, include/dlpack/dlpack.h): how a type of tensors, whose
// attribute `__dlpack_c_exchange_api__` is a capsule of an ExchangeApi, lets C read one without calling
// Python. torch has it since 2.10.

#pragma once

#include <stdint.h>

namespace armllm::dlpack {

inline constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kCapsule = "dlpack_exchange_api";
inline constexpr uint32_t kMajorVersion = 1;

inline constexpr int32_t kCpu = 1;                                          // DLDeviceType
inline constexpr uint8_t kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4;  // DLDataTypeCode

struct Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major_version, minor_version;
  ExchangeApi* older;
  void (*unused[3])();
  // Returns 0, else an error of Python's is set. What it fills in belongs to the object. May be null.
  int (*read)(void* object, Tensor* out);
};

}  // namespace armllm::dlpack
