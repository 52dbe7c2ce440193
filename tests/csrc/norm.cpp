// Norms against float64.
//
// A chain of k roundings is off by at most k * u times its result (Higham, Accuracy and Stability of
// Numerical Algorithms, chapter 3); sums are bounded by sum_error.

#include <algorithm>

#include "matrix.h"

namespace conformance {

namespace {

constexpr double u = kFloatRound;
constexpr float kScales[] = {1.0f, 1e-12f, 1e12f};

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
    result.compare_stored(
        out[i], expected,
        fabs(expected) * relative * 1.01 + (offset != 0 ? weight_error : 0) + Type<T>::kTiny, what, row, i);
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
      const float offset = static_cast<float>(random.integer(0, 1));
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
                                  x.stride, residual.stride, 1e-6f, offset});
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> row;
        for (int64_t i = 0; i < hidden; ++i) {
          const T expected = sums[static_cast<size_t>(r * hidden + i)];
          row.push_back(to_double(expected));
          if (memcmp(&residual.at(r, i), &expected, sizeof(T)) != 0)
            result.fail("residual is not the rounded sum");
        }
        check_norm_row(result, &x.at(r, 0), row, weight.data(), 1e-6f, offset, "x", r);
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

// The mean is off by em = sum_error(n) * mean|x| and its own rounding, each difference by em and a rounding.
// In the variance the differences' errors count twice; the root halves what they make of it.
template <class T>
Result test_layer_norm(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t n : kSizes) {
    for (const int64_t rows : {0, 1, 4}) {
      for (const float mean_of_all : {0.0f, 100.0f}) {
        const float magnitude = kScales[random.integer(0, 2)], eps = 1e-5f;
        Matrix<T> x(rows, n, random.integer(0, 5), random.integer(0, 1) == 1);
        Matrix<T> apart(rows, n, random.integer(0, 5), false);
        const bool in_place = random.integer(0, 3) == 0, with_bias = random.integer(0, 1) == 1;
        const bool adds = random.integer(0, 1) == 1;
        Matrix<T> residual(rows, n, random.integer(0, 5), false);
        Matrix<T>& out = in_place ? x : apart;
        Array<T> weight(n), bias(n, true);
        x.fill(random, magnitude);
        random.fill(weight.data(), n, 1.0f);
        random.fill(bias.data(), n, 1.0f);
        residual.fill(random, magnitude);
        std::vector<double> before;
        std::vector<T> sums;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            from_float(to_float(x.at(r, i)) + mean_of_all * magnitude, x.at(r, i));
            T sum = x.at(r, i);
            if (adds) from_float(to_float(x.at(r, i)) + to_float(residual.at(r, i)), sum);
            sums.push_back(sum);
            before.push_back(to_double(sum));
          }
        }
        armllm::layer_norm(
            context.table, Type<T>::kStorage,
            {out.memory.data(), x.memory.data(), weight.data(), with_bias ? bias.data() : nullptr,
             adds ? residual.memory.data() : nullptr, rows, n, out.stride, x.stride, residual.stride, eps});
        const auto count = static_cast<double>(n);
        for (int64_t r = 0; r < rows; ++r) {
          const double* v = before.data() + r * n;
          double mean = 0, absolute = 0, variance = 0, spread = 0;
          for (int64_t i = 0; i < n; ++i) {
            mean += v[i] / count;
            absolute += fabs(v[i]) / count;
          }
          for (int64_t i = 0; i < n; ++i) {
            variance += (v[i] - mean) * (v[i] - mean) / count;
            spread += fabs(v[i] - mean) / count;
          }
          const double mean_error = sum_error(count) * absolute + 2 * u * fabs(mean);
          const double scale = 1 / sqrt(variance + static_cast<double>(eps));
          const double variance_error = (2 * mean_error * spread + mean_error * mean_error) * scale * scale;
          const double relative = (sum_error(count) + 3 * u + variance_error) / 2 + 6 * u;
          for (int64_t i = 0; i < n; ++i) {
            const double w = to_double(weight[i]), b = with_bias ? to_double(bias[i]) : 0;
            const double scaled = (v[i] - mean) * scale * w, expected = scaled + b;
            const double bound = (fabs(scaled) * relative + mean_error * scale * fabs(w)) * 1.01 +
                                 fabs(expected) * (u + Type<T>::kRound) * 1.01 + Type<T>::kTiny;
            result.compare_stored(out.at(r, i), expected, bound, "out", r, i);
            if (adds && memcmp(&residual.at(r, i), &sums[static_cast<size_t>(r * n + i)], sizeof(T)) != 0) {
              result.fail("residual is not the rounded sum");
            }
          }
        }
        out.check_gaps(result, "out");
        residual.check_gaps(result, "residual");
        ++result.cases;
      }
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& norm_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(rms_norm, test_rms_norm),
      CONFORMANCE_STORAGES(fused_add_rms_norm, test_fused_add_rms_norm),
      CONFORMANCE_STORAGES(layer_norm, test_layer_norm)};
  return tests;
}

}  // namespace conformance
