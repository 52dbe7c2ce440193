// What the conformance tests share: memory that faults one byte too far, random values, and the count of
// errors.

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"

namespace conformance {

// 0: as it is.
inline armllm::WeightForm form_of(int bits) {
  return bits == 4   ? armllm::WeightForm::int4
         : bits == 8 ? armllm::WeightForm::int8
                     : armllm::WeightForm::dense;
}

// Where a weight stands in panels, and how many elements these have (armllm/kernels.h).
inline int64_t place_in_panels(int64_t n, int64_t k, int64_t in_features, int64_t together) {
  constexpr int64_t kColumns = armllm::kPanelColumns;
  const int64_t first = n / kColumns * armllm::panel_elements(in_features), column = n % kColumns;
  return first + k / together * together * kColumns + together * column + k % together;
}
inline int64_t panels_elements(int64_t out_features, int64_t in_features) {
  constexpr int64_t kColumns = armllm::kPanelColumns;
  return (out_features + kColumns - 1) / kColumns * armllm::panel_elements(in_features);
}

using armllm::bfloat16;
using armllm::float16;
using armllm::Storage;

// A buffer whose last byte is followed by a page that faults when touched (and, for those made with
// `at_start`, whose first byte is preceded by one). So a pointer has just the alignment that its size gives
// it.
class Guarded {
 public:
  explicit Guarded(size_t bytes, bool at_start = false);
  ~Guarded();
  Guarded(Guarded&& other) noexcept;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Guarded& operator=(Guarded&&) = delete;
  char* data() const { return data_; }

 private:
  char* map_;
  size_t mapped_;
  char* data_;
};

template <class T>
class Array {
 public:
  explicit Array(int64_t size, bool at_start = false)
      : memory_(static_cast<size_t>(size) * sizeof(T), at_start), size_(size) {}
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return size_; }

 private:
  Guarded memory_;
  int64_t size_;
};

// While it lives, SVE vectors have 128 bits, where a reference needs none: with 512 and more, an emulator
// clears the rest of a register after every number, and takes ten times as long.
class ShortVectors {
 public:
  ShortVectors();
  ~ShortVectors();
  ShortVectors(const ShortVectors&) = delete;
  ShortVectors& operator=(const ShortVectors&) = delete;

 private:
  [[maybe_unused]] int before_ = -1;
};

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
float to_float(float16 x);
void from_float(float x, float& out);
void from_float(float x, float16& out);
void from_float(float x, bfloat16& out);  // nearest, ties to even; written apart from the kernels' own

template <class T>
double to_double(T x) {
  return static_cast<double>(to_float(x));
}

// Half a unit in the last place of 1, the smallest error that storing a subnormal can make, and the largest
// number.
template <class T>
struct Type;
template <>
struct Type<float> {
  static constexpr Storage kStorage = Storage::f32;
  static constexpr double kRound = 0x1p-24;
  static constexpr double kTiny = 0x1p-149;
  static constexpr double kLargest = 0x1.fffffep127;
};
template <>
struct Type<float16> {
  static constexpr Storage kStorage = Storage::f16;
  static constexpr double kRound = 0x1p-11;
  static constexpr double kTiny = 0x1p-24;
  static constexpr double kLargest = 65504;
};
template <>
struct Type<bfloat16> {
  static constexpr Storage kStorage = Storage::bf16;
  static constexpr double kRound = 0x1p-8;
  static constexpr double kTiny = 0x1p-133;
  static constexpr double kLargest = 0x1.fep127;
};
inline constexpr double kFloatRound = 0x1p-24;

// A vector as quantize_rows makes it, symmetric: integers and their scale, written apart from the kernels.
struct QuantizedVector {
  float scale;
  std::vector<int8_t> q;
};
template <class T>
QuantizedVector quantize_vector(const T* x, int64_t n) {
  QuantizedVector result{0, std::vector<int8_t>(static_cast<size_t>(n))};
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!isfinite(to_float(x[i]))) {
      result.scale = NAN;
      return result;
    }
    most = fmaxf(most, fabsf(to_float(x[i])));
  }
  if (most < 0x1p-100f) return result;
  result.scale = most / 127.0f;
  for (int64_t i = 0; i < n; ++i) {
    result.q[static_cast<size_t>(i)] = static_cast<int8_t>(nearbyintf(to_float(x[i]) / result.scale));
  }
  return result;
}
// By how much the rounding of a sum of n products may change it, as a share of the sum of their magnitudes.
// The worst case is n; roundings that don't conspire give 6 sqrt(n) but for odds of 3e-8 (Higham & Mary 2019,
// A New Approach to Probabilistic Rounding Error Analysis, theorem 2.4).
inline double sum_error(double n) { return (n < 36 ? n : 6 * sqrt(n)) * kFloatRound; }
// exp.h promises 2.5 units in the last place of a result in [1, 2), 2.5 * 2^-23, and 2.8e-9 of the argument.
inline constexpr double kExpError = 2.5 * 0x1p-23, kExpArgumentError = 2.8e-9;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}
  uint64_t next();
  double uniform();                            // [0, 1)
  int64_t integer(int64_t low, int64_t high);  // [low, high]
  float normal();                              // about N(0, 1), at most 6
  template <class T>
  void fill(T* p, int64_t n, float scale) {
    for (int64_t i = 0; i < n; ++i) from_float(normal() * scale, p[i]);
  }

 private:
  uint64_t state_;
};

// What came out of the cases of one op on one target.
struct Result {
  int64_t cases = 0, failures = 0;
  double worst = 0;  // largest error as a share of its bound
  std::string first;

  void fail(const std::string& message);
  // Compares an element; `where` is only evaluated into text on failure.
  void compare(double actual, double expected, double bound, const char* what, int64_t row, int64_t column);
  // The same for a number as stored: near the largest one it may have become infinite.
  template <class T>
  void compare_stored(T actual, double expected, double bound, const char* what, int64_t row,
                      int64_t column) {
    const double got = to_double(actual);
    if (isinf(got) && got * expected > 0 && fabs(expected) + bound > Type<T>::kLargest) return;
    compare(got, expected, bound, what, row, column);
  }
};

struct Context {
  const armllm::KernelTable& table;
  uint64_t seed;
};

using Test = Result (*)(const Context&);
struct NamedTest {
  const char* op;
  Test test;
  const char* driver = nullptr;  // the name of a driver that uses the op of this target, should it be tested
};
const std::vector<NamedTest>& op_tests();
const std::vector<NamedTest>& norm_tests();
const std::vector<NamedTest>& rotary_tests();
const std::vector<NamedTest>& activation_tests();
const std::vector<NamedTest>& kv_cache_tests();
const std::vector<NamedTest>& attention_tests();
const std::vector<NamedTest>& matmul_tests();
const std::vector<NamedTest>& dense_tests();
const std::vector<NamedTest>& moe_tests();
const std::vector<NamedTest>& lora_tests();
const std::vector<NamedTest>& recurrence_tests();
const std::vector<NamedTest>& sampling_tests();

// A test of every storage type.
#define CONFORMANCE_STORAGES(op, test) \
  {#op "_f32", test<float>}, {#op "_f16", test<float16>}, { #op "_bf16", test<bfloat16> }

// Tests that are not about one op: the choice of targets, threads, exp.
Result test_dispatch();
Result test_threads(uint64_t seed);
Result test_thread_counts(uint64_t seed);
Result test_rejects();
Result test_exp();

}  // namespace conformance
