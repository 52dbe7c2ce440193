#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace conformance {

Guarded::Guarded(size_t bytes, bool at_start) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t body = (bytes + page - 1) / page * page + page;  // at least one page even for nothing
  mapped_ = body + 2 * page;
  void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + page, body, PROT_READ | PROT_WRITE) != 0) {
    perror("conformance: mmap");
    exit(3);
  }
  map_ = static_cast<char*>(map);
  data_ = at_start ? map_ + page : map_ + page + body - bytes;
}

Guarded::~Guarded() {
  if (map_ != nullptr) munmap(map_, mapped_);
}

Guarded::Guarded(Guarded&& other) noexcept : map_(other.map_), mapped_(other.mapped_), data_(other.data_) {
  other.map_ = nullptr;
}

ShortVectors::ShortVectors() {
#ifdef __aarch64__
  before_ = prctl(PR_SVE_GET_VL);
  if (before_ >= 0) prctl(PR_SVE_SET_VL, 16);
#endif
}
ShortVectors::~ShortVectors() {
#ifdef __aarch64__
  if (before_ >= 0 && prctl(PR_SVE_SET_VL, before_ & PR_SVE_VL_LEN_MASK) < 0) {
    perror("conformance: the length of vectors");
    exit(3);
  }
#endif
}

namespace {

float float_of_bits(int bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                                          : ldexpf(static_cast<float>(1024 + mantissa), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

// From a table, since references ask for the same numbers again and again.
float to_float(float16 x) {
  static const std::vector<float> all = [] {
    std::vector<float> table(1 << 16);
    for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = float_of_bits(static_cast<int>(bits));
    return table;
  }();
  return all[x.bits];
}
// By integers alone: emulators are slow at numbers.
void from_float(float x, float16& out) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff, exponent = size >> 23;
  // To the nearest multiple of 2^dropped, ties to even.
  const auto rounded = [](uint32_t n, uint32_t dropped) {
    const uint32_t low = n & ((1u << dropped) - 1), half = 1u << (dropped - 1), high = n >> dropped;
    return high + (low > half || (low == half && (high & 1) != 0) ? 1 : 0);
  };
  uint32_t found = 0;
  if (size > 0x7f800000) {
    found = 0x7e00;
  } else if (exponent >= 143) {  // 2^16 and more
    found = 0x7c00;
  } else if (exponent >= 113) {  // 2^-14 and more; what is rounded up to 2^16 becomes infinite by itself
    found = rounded(size - (112u << 23), 13);
  } else if (exponent >= 102) {  // 2^-25 and more: a multiple of 2^-24
    found = rounded((size & 0x7fffff) | 0x800000, 126 - exponent);
  }
  out.bits = static_cast<uint16_t>(sign | found);
}
void from_float(float x, float& out) { out = x; }
void from_float(float x, bfloat16& out) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t high = bits >> 16, dropped = bits & 0xffff;
  if (isnan(x)) {
    out.bits = static_cast<uint16_t>(high | 0x40);
  } else {
    const bool up = dropped > 0x8000 || (dropped == 0x8000 && (high & 1) != 0);
    out.bits = static_cast<uint16_t>(high + (up ? 1 : 0));
  }
}

// xorshift64*, Vigna 2016 (arXiv:1402.6246).
uint64_t Random::next() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545f4914f6cdd1dULL;
}
double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
int64_t Random::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
}
float Random::normal() {
  // Twelve uniform numbers, added as integers: emulators are slow at doubles.
  int64_t sum = -6 * (int64_t{1} << 53);
  for (int i = 0; i < 12; ++i) sum += static_cast<int64_t>(next() >> 11);
  return static_cast<float>(sum) * 0x1p-53f;
}

void Result::fail(const std::string& message) {
  ++failures;
  if (first.empty()) first = message;
}

void Result::compare(double actual, double expected, double bound, const char* what, int64_t row,
                     int64_t column) {
  if (isnan(expected) ? isnan(actual) : actual == expected) return;
  const double error = fabs(actual - expected);
  if (error <= bound) {
    if (error / bound > worst) worst = error / bound;
    return;
  }
  char text[256];
  snprintf(text, sizeof text, "%s: [%lld, %lld] is %.9g, expected %.9g, off by %.3g, allowed %.3g", what,
           static_cast<long long>(row), static_cast<long long>(column), actual, expected, error, bound);
  fail(text);
}

const std::vector<NamedTest>& op_tests() {
  static const std::vector<NamedTest> all = [] {
    std::vector<NamedTest> tests;
    for (const auto* more : {&norm_tests(), &rotary_tests(), &activation_tests(), &kv_cache_tests(),
                             &attention_tests(), &matmul_tests(), &dense_tests(), &moe_tests(), &lora_tests(),
                             &recurrence_tests(), &sampling_tests()}) {
      tests.insert(tests.end(), more->begin(), more->end());
    }
    return tests;
  }();
  return all;
}

}  // namespace conformance
