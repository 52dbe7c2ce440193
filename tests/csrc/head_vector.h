// What one head sees of a token, in float64 and as integers, and the products of two of them.

#pragma once

#include <math.h>
#include <stdlib.h>

#include <vector>

#include "support.h"

namespace conformance {

// Numbers as the kernel sees them. Of an int8 cache also their integers, which are the numbers where
// `rounded`.
struct HeadVector {
  std::vector<double> x;
  QuantizedVector quantized;  // int8; else of scale 0
  double scale, magnitude;    // of the integers; sum of |x|
  bool rounded;
};
template <class T>
HeadVector seen_as(const T* x, int64_t n, bool int8, bool rounded) {
  HeadVector v{std::vector<double>(static_cast<size_t>(n)), {0, {}}, 0, 0, rounded};
  if (int8) v.quantized = quantize_vector(x, n);
  v.scale = static_cast<double>(v.quantized.scale);
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    v.x[at] = rounded ? v.scale * v.quantized.q[at] : to_double(x[i]);
    v.magnitude += fabs(v.x[at]);
  }
  return v;
}

// The sum of the products, and that of their magnitudes. By integers where these are the numbers: emulators
// are slow at others.
struct Products {
  double sum, magnitude;
};
inline Products multiply(const HeadVector& a, const HeadVector& b) {
  if (a.rounded) {
    int32_t sum = 0, magnitude = 0;
    for (size_t d = 0; d < a.x.size(); ++d) {
      const int32_t product = a.quantized.q[d] * b.quantized.q[d];
      sum += product;
      magnitude += abs(product);
    }
    return {sum * a.scale * b.scale, magnitude * a.scale * b.scale};
  }
  double sum = 0, magnitude = 0;
  for (size_t d = 0; d < a.x.size(); ++d) {
    const double product = a.x[d] * b.x[d];
    sum += product;
    magnitude += fabs(product);
  }
  return {sum, magnitude};
}

// For each place, the sums of |integer| of all vectors before; of numbers before they were rounded half an
// integer more. Those that are not finite count nothing.
inline std::vector<double> sum_integers(const std::vector<HeadVector>& vectors, int64_t together,
                                        int64_t width) {
  std::vector<double> sums(static_cast<size_t>(together * width), 0.0);
  for (const HeadVector& v : vectors) {
    for (size_t d = 0; d < v.x.size(); ++d) {
      const double before = sums[sums.size() - static_cast<size_t>(together * width)];
      const double more = v.rounded ? abs(v.quantized.q[d]) : fabs(v.x[d]) / v.scale + 0.5;
      sums.push_back(before + (v.scale > 0 ? more : 0));
    }
  }
  return sums;
}

}  // namespace conformance
