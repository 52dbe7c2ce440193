// Rows cut into ranges for threads.

#pragma once

#include <stdint.h>

#include <algorithm>

#include "armllm/threads.h"

namespace armllm {

inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Waking a thread costs about as much as some 16,000 elements of a simple op, half as many of a product's.
constexpr int64_t kSimpleElements = 16384, kProductElements = 8192;

// Ranges of the `rows`, each of about `elements` elements, `width` in a row, that begin at multiples of
// `multiple` rows.
struct Ranges {
  Ranges(int64_t all, int64_t width, int64_t elements, int64_t multiple = 1) : rows(all) {
    const int64_t some = std::max<int64_t>(1, elements / std::max<int64_t>(1, width));
    each = ceil_div(some, multiple) * multiple;
  }
  int64_t count() const { return ceil_div(rows, each); }
  int64_t begin(int64_t item) const { return item * each; }
  int64_t end(int64_t item) const { return std::min(rows, (item + 1) * each); }

  int64_t rows, each;
};

// Calls body(begin, end, thread) for these ranges. `threads` as in parallel_for.
template <class Function>
void parallel_ranges(int64_t rows, int64_t width, int64_t elements, const Function& body, int threads = 0,
                     int64_t multiple = 1) {
  const Ranges ranges(rows, width, elements, multiple);
  parallel_for(ranges.count(), threads,
               [&](int64_t item, int thread) { body(ranges.begin(item), ranges.end(item), thread); });
}

}  // namespace armllm
