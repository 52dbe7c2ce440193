// Rows of numbers with gaps between them, and the sizes that the element-wise tests go through.

#pragma once

#include "support.h"

namespace conformance {

inline constexpr int64_t kSizes[] = {1,  2,  3,  7,   8,   15,  16,  17,   31,   33,
                                     63, 64, 65, 100, 127, 255, 576, 1152, 1153, 2049};

// rows of `width` elements, `gap` elements apart, the gaps holding something that must stay.
template <class T>
struct Matrix {
  Array<T> memory;
  int64_t rows, width, stride;

  Matrix(int64_t rows_, int64_t width_, int64_t gap, bool at_start)
      : memory(rows_ == 0 ? 0 : (rows_ - 1) * (width_ + gap) + width_, at_start),
        rows(rows_),
        width(width_),
        stride(width_ + gap) {
    for (int64_t i = 0; i < memory.size(); ++i) from_float(-77.0f, memory[i]);
  }
  T& at(int64_t row, int64_t column) const { return memory[row * stride + column]; }
  void fill(Random& random, float scale) {
    for (int64_t r = 0; r < rows; ++r) random.fill(&at(r, 0), width, scale);
  }
  void check_gaps(Result& result, const char* what) const {
    for (int64_t i = 0; i < memory.size(); ++i) {
      if (i % stride >= width && to_float(memory[i]) != -77.0f) {
        result.fail(std::string(what) + ": wrote between rows");
        return;
      }
    }
  }
};

}  // namespace conformance
