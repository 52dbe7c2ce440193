// Norms, rotary embedding and activations against float64.
//
// A chain of k roundings is off by at most k * u times its result (Higham, Accuracy and Stability of
// Numerical Algorithms, chapter 3); sums are bounded by sum_error.

#include <algorithm>

#include "support.h"

namespace conformance {

namespace {

constexpr double u = kFloatRound;
constexpr int64_t kSizes[] = {1,  2,  3,  7,   8,   15,  16,  17,   31,   33,
                              63, 64, 65, 100, 127, 255, 576, 1024, 1025, 2049};
constexpr float kScales[] = {1.0f, 1e-12f, 1e12f};

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

template <class T>
void check_norm_row(Result& result, const T* out, const std::vector<double>& x, const T* weight, float eps,
                    float offset, const char* what, int64_t row) {
  const auto n = static_cast<int64_t>(x.size());
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double scale = 1 / sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
  // The error of the sum of squares, the division by n and the addition count half after the root; then the
  // root, the reciprocal, the weight's offset and two products.
  const double relative = sum_error(static_cast<double>(n)) / 2 + 6 * u + Type<T>::kRound;
  for (int64_t i = 0; i < n; ++i) {
    const double w = to_double(weight[i]) + static_cast<double>(offset);
    // weight + offset cancels: its rounding error is that of the larger operand.
    const double weight_error = u * fabs(x[static_cast<size_t>(i)]) * scale;
    const double expected = x[static_cast<size_t>(i)] * scale * w;
    result.compare(to_double(out[i]), expected,
                   fabs(expected) * relative * 1.01 + (offset != 0 ? weight_error : 0) + Type<T>::kTiny, what,
                   row, i);
  }
}

template <class T>
Result test_rms_norm(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t hidden : kSizes) {
    for (const int64_t rows : {0, 1, 3, 5}) {
      for (const float magnitude : kScales) {
        const bool at_start = random.integer(0, 1) == 1;
        const float offset = random.integer(0, 1) == 1 ? 1.0f : 0.0f;
        Matrix<T> x(rows, hidden, random.integer(0, 9), at_start);
        const bool in_place = random.integer(0, 3) == 0;
        Matrix<T> apart(rows, hidden, random.integer(0, 9), !at_start);
        Matrix<T>& out = in_place ? x : apart;
        Array<T> weight(hidden);
        x.fill(random, magnitude);
        random.fill(weight.data(), hidden, 1.0f);
        std::vector<std::vector<double>> before(static_cast<size_t>(rows));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < hidden; ++i)
            before[static_cast<size_t>(r)].push_back(to_double(x.at(r, i)));
        }
        const float eps = 1e-5f;
        armllm::rms_norm(context.table, Type<T>::kStorage,
                         {out.memory.data(), x.memory.data(), weight.data(), rows, hidden, out.stride,
                          x.stride, eps, offset});
        for (int64_t r = 0; r < rows; ++r) {
          check_norm_row(result, &out.at(r, 0), before[static_cast<size_t>(r)], weight.data(), eps, offset,
                         "out", r);
        }
        out.check_gaps(result, "out");
        ++result.cases;
      }
    }
  }
  // A NaN spoils its own row and no other.
  Matrix<T> x(3, 70, 0, false), out(3, 70, 0, false);
  Array<T> weight(70);
  x.fill(random, 1.0f);
  random.fill(weight.data(), 70, 1.0f);
  from_float(NAN, x.at(1, 69));
  armllm::rms_norm(context.table, Type<T>::kStorage,
                   {out.memory.data(), x.memory.data(), weight.data(), 3, 70, 70, 70, 1e-6f, 0});
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 70; ++i) {
      if ((isnan(to_float(out.at(r, i))) != 0) != (r == 1))
        result.fail("a NaN in row 1 shows, or hides, in row " + std::to_string(r));
    }
  }
  ++result.cases;
  return result;
}

template <class T>
Result test_fused_add_rms_norm(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t hidden : kSizes) {
    for (const int64_t rows : {0, 1, 4}) {
      Matrix<T> x(rows, hidden, random.integer(0, 5), false),
          residual(rows, hidden, random.integer(0, 5), true);
      Array<T> weight(hidden);
      const float magnitude = kScales[random.integer(0, 2)];
      x.fill(random, magnitude);
      residual.fill(random, magnitude);
      random.fill(weight.data(), hidden, 1.0f);
      // float + float rounded to storage, bit for bit: this is also the test of every rounding to bfloat16.
      std::vector<T> sums;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < hidden; ++i) {
          T sum;
          from_float(to_float(x.at(r, i)) + to_float(residual.at(r, i)), sum);
          sums.push_back(sum);
        }
      }
      armllm::fused_add_rms_norm(context.table, Type<T>::kStorage,
                                 {x.memory.data(), residual.memory.data(), weight.data(), rows, hidden,
                                  x.stride, residual.stride, 1e-6f, 0});
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> row;
        for (int64_t i = 0; i < hidden; ++i) {
          const T expected = sums[static_cast<size_t>(r * hidden + i)];
          row.push_back(to_double(expected));
          if (memcmp(&residual.at(r, i), &expected, sizeof(T)) != 0)
            result.fail("residual is not the rounded sum");
        }
        check_norm_row(result, &x.at(r, 0), row, weight.data(), 1e-6f, 0.0f, "x", r);
      }
      x.check_gaps(result, "x");
      residual.check_gaps(result, "residual");
      ++result.cases;
    }
  }
  // Rounding of special values: signed zeros, subnormals, ties, the largest values, infinities, NaN.
  const float special[] = {0.0f,     -0.0f,    0x1p-149f, -0x1p-133f, 0x1.01p0f, 0x1.03p0f, 0x1.010002p0f,
                           3.38e38f, -3.4e38f, INFINITY,  -INFINITY,  NAN,       1.0f,      0x1.fffffep127f};
  for (const float a : special) {
    for (const float b : special) {
      constexpr int64_t n = 21;
      Matrix<T> x(1, n, 0, false), residual(1, n, 0, false);
      Array<T> weight(n);
      for (int64_t i = 0; i < n; ++i) {
        from_float(a, x.at(0, i));
        from_float(b, residual.at(0, i));
        from_float(1.0f, weight[i]);
      }
      T expected;
      from_float(to_float(x.at(0, 0)) + to_float(residual.at(0, 0)), expected);
      armllm::fused_add_rms_norm(
          context.table, Type<T>::kStorage,
          {x.memory.data(), residual.memory.data(), weight.data(), 1, n, n, n, 1e-6f, 0});
      for (int64_t i = 0; i < n; ++i) {
        const bool nan = isnan(to_float(expected));
        const T got = residual.at(0, i);
        if (nan ? !isnan(to_float(got)) : memcmp(&got, &expected, sizeof got) != 0) {
          result.fail("residual of " + std::to_string(a) + " + " + std::to_string(b) + " is " +
                      std::to_string(to_float(got)));
        }
      }
      ++result.cases;
    }
  }
  return result;
}

template <class T>
Result test_rotary_embedding(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t head_dim : {2, 8, 10, 24, 64, 80, 128, 256}) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t tokens : {0, 1, 6}) {
        const int64_t rotary_dim = random.integer(0, 2) == 0 ? head_dim : 2 * random.integer(0, head_dim / 2);
        const int64_t query_heads = random.integer(0, 5), key_heads = random.integer(1, 3),
                      positions_max = 40;
        Matrix<T> query(tokens * query_heads, head_dim, random.integer(0, 3), false);
        Matrix<T> key(tokens * key_heads, head_dim, random.integer(0, 3), true);
        Matrix<float> cache(positions_max, rotary_dim, random.integer(0, 3), false);
        Array<int64_t> positions(tokens);
        query.fill(random, 3.0f);
        key.fill(random, 3.0f);
        cache.fill(random, 0.4f);
        for (int64_t t = 0; t < tokens; ++t) positions[t] = random.integer(0, positions_max - 1);
        const std::vector<T> old_query(query.memory.data(), query.memory.data() + query.memory.size());
        const std::vector<T> old_key(key.memory.data(), key.memory.data() + key.memory.size());
        armllm::rotary_embedding(
            context.table, Type<T>::kStorage,
            {positions.data(), query.memory.data(), key.memory.data(), cache.memory.data(), tokens,
             query_heads, key_heads, head_dim, rotary_dim, query.stride * query_heads, query.stride,
             key.stride * key_heads, key.stride, cache.stride, interleaved},
            positions_max);
        const auto check = [&](const Matrix<T>& now, const std::vector<T>& old, int64_t heads,
                               const char* what) {
          for (int64_t row = 0; row < now.rows; ++row) {
            const T* x = old.data() + row * now.stride;
            const int64_t position = positions[row / heads], half = rotary_dim / 2;
            for (int64_t i = 0; i < head_dim; ++i) {
              double expected = to_double(x[i]), bound = 0;
              if (i < rotary_dim) {
                const int64_t pair = interleaved ? i / 2 : i % half;
                const bool first = interleaved ? i % 2 == 0 : i < half;
                const int64_t other = interleaved ? i ^ 1 : first ? i + half : i - half;
                const double c = to_double(cache.at(position, pair)),
                             s = to_double(cache.at(position, half + pair));
                const double turned = (first ? -1 : 1) * to_double(x[other]) * s;
                bound = 2 * u * (fabs(expected * c) + fabs(turned)) * 1.01;
                expected = expected * c + turned;
                bound += fabs(expected) * Type<T>::kRound * 1.01 + Type<T>::kTiny;
              }
              result.compare(to_double(now.at(row, i)), expected, bound, what, row, i);
            }
          }
          now.check_gaps(result, what);
        };
        check(query, old_query, query_heads, "query");
        check(key, old_key, key_heads, "key");
        ++result.cases;
      }
    }
  }
  return result;
}

template <class T>
Result test_silu_and_mul(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t width : kSizes) {
    for (const int64_t rows : {0, 1, 3}) {
      for (const float magnitude : {1.0f, 1e-20f, 40.0f, 1e15f}) {
        Matrix<T> x(rows, 2 * width, random.integer(0, 5), random.integer(0, 1) == 1);
        Matrix<T> out(rows, width, random.integer(0, 5), random.integer(0, 1) == 1);
        x.fill(random, magnitude);
        if (rows == 3) {
          from_float(NAN, x.at(1, 0));
          from_float(INFINITY, x.at(2, width / 2));
          from_float(-0.0f, x.at(0, width - 1));
        }
        armllm::silu_and_mul(context.table, Type<T>::kStorage,
                             {out.memory.data(), x.memory.data(), rows, width, out.stride, x.stride});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < width; ++i) {
            const double g = to_double(x.at(r, i)), up = to_double(x.at(r, width + i));
            const double expected = g / (1 + exp(-g)) * up;
            // exp, then three roundings; where exp(-g) overflows the result is zero instead of at least
            // -4e-37.
            const double bound = fabs(expected) * (kExpError + 3 * u + Type<T>::kRound) * 1.01 +
                                 4e-37 * fabs(up) + Type<T>::kTiny;
            result.compare(to_double(out.at(r, i)), expected, bound, "out", r, i);
          }
        }
        out.check_gaps(result, "out");
        ++result.cases;
      }
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& elementwise_tests() {
  static const std::vector<NamedTest> tests = {
      {"rms_norm_f32", test_rms_norm<float>},
      {"rms_norm_bf16", test_rms_norm<bfloat16>},
      {"fused_add_rms_norm_f32", test_fused_add_rms_norm<float>},
      {"fused_add_rms_norm_bf16", test_fused_add_rms_norm<bfloat16>},
      {"rotary_embedding_f32", test_rotary_embedding<float>},
      {"rotary_embedding_bf16", test_rotary_embedding<bfloat16>},
      {"silu_and_mul_f32", test_silu_and_mul<float>},
      {"silu_and_mul_bf16", test_silu_and_mul<bfloat16>},
  };
  return tests;
}

}  // namespace conformance
