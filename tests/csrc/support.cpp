#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
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

void from_float(float x, float& out) { out = x; }
void from_float(float x, bfloat16& out) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t kept = bits >> 16, dropped = bits & 0xffff;
  if (isnan(x)) {
    out.bits = static_cast<uint16_t>(kept | 0x40);
  } else {
    const bool up = dropped > 0x8000 || (dropped == 0x8000 && (kept & 1) != 0);
    out.bits = static_cast<uint16_t>(kept + (up ? 1 : 0));
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
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return static_cast<float>(sum);
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
    std::vector<NamedTest> tests = elementwise_tests();
    tests.insert(tests.end(), attention_tests().begin(), attention_tests().end());
    return tests;
  }();
  return all;
}

}  // namespace conformance
