// Products with floating-point weights, as they are and in panels, for rows of the storage type, beside
// float64.

#include <stdio.h>

#include <algorithm>
#include <vector>

#include "support.h"

namespace conformance {

namespace {

constexpr int64_t kMostRows = 70;

template <class T>
struct Operands {
  int64_t out_features, in_features, x_stride;
  Array<T> x, weight, panels, bias;
  std::vector<double> sums, sizes;  // [kMostRows, out_features]: of products, and of their magnitudes

  Operands(int64_t n, int64_t k, int64_t together, float size, Random& random)
      : out_features(n),
        in_features(k),
        x_stride(k + random.integer(0, 3)),
        x(kMostRows * x_stride - (x_stride - k)),
        weight(n * k),
        panels(panels_elements(n, k)),
        bias(n) {
    random.fill(x.data(), x.size(), size);
    random.fill(weight.data(), weight.size(), 1);
    random.fill(bias.data(), bias.size(), 2 * size);
    std::fill(panels.data(), panels.data() + panels.size(), T{});
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < k; ++i) panels.data()[place_in_panels(c, i, k, together)] = weight[c * k + i];
    }
    for (int64_t r = 0; r < kMostRows; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = to_double(x[r * x_stride + i]) * to_double(weight[c * k + i]);
          sum += product;
          magnitude += fabs(product);
        }
        sums.push_back(sum);
        sizes.push_back(magnitude);
      }
    }
  }
};

template <class T>
void check(Result& result, const Context& context, armllm::WeightForm form, const Operands<T>& operands,
           int64_t rows, bool with_bias) {
  const int64_t n = operands.out_features, k = operands.in_features, stride = n + rows % 3;
  const Array<T> out((rows - 1) * stride + n);
  T untouched;
  from_float(-77, untouched);
  std::fill(out.data(), out.data() + out.size(), untouched);
  armllm::matmul(context.table, form, Type<T>::kStorage,
                 {out.data(),
                  operands.x.data(),
                  with_bias ? operands.bias.data() : nullptr,
                  form == armllm::WeightForm::panels ? operands.panels.data() : operands.weight.data(),
                  nullptr,
                  {n, k, 0, false},
                  rows,
                  stride,
                  operands.x_stride});
  char what[96];
  snprintf(what, sizeof what, "%lld rows, %lld x %lld%s", static_cast<long long>(rows),
           static_cast<long long>(n), static_cast<long long>(k), with_bias ? ", bias" : "");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < stride && r * stride + c < out.size(); ++c) {
      const T got = out[r * stride + c];
      if (c >= n) {
        result.compare(to_double(got), -77, 0, what, r, c);
        continue;
      }
      const auto at = static_cast<size_t>(r * n + c);
      const double b = with_bias ? to_double(operands.bias[c]) : 0, expected = operands.sums[at] + b;
      // BFMMLA rounds to odd, which may cost twice a rounding to nearest.
      const double error =
          2 * sum_error(static_cast<double>(k)) * operands.sizes[at] + 2 * kFloatRound * fabs(expected);
      result.compare_stored(got, expected,
                            error + (fabs(expected) + error) * Type<T>::kRound + Type<T>::kTiny, what, r, c);
    }
  }
  ++result.cases;
}

template <class T, armllm::WeightForm form>
Result test_linear(const Context& context) {
  Result result;
  Random random(context.seed);
  const int64_t together =
      ARMLLM_OF_STORAGE(context.table, panel_matmul, Type<T>::kStorage)->features_together;
  constexpr int64_t kSizes[][2] = {{1, 1},   {2, 3},    {50, 77},   {64, 96},
                                   {80, 32}, {161, 33}, {256, 100}, {40, 2052}};
  for (const auto& [n, k] : kSizes) {
    for (const float size : {1.0f, 0x1p-8f, 200.0f}) {
      // More features than a block of them, which only panels have.
      if (k > 2048 && (form != armllm::WeightForm::panels || size != 1.0f)) continue;
      const Operands<T> operands(n, k, together, size, random);
      for (int64_t rows = 1; rows <= (size == 1.0f ? 17 : 3); ++rows) {
        check(result, context, form, operands, rows, rows % 2 == 0);
      }
      check(result, context, form, operands, 33, true);
      check(result, context, form, operands, kMostRows, false);
    }
  }
  return result;
}

double number_of(uint8_t e4m3) {
  const int exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
  const double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return e4m3 < 128 ? size : -size;
}
template <class T>
T decoded(uint8_t e4m3, float scale) {
  T x;
  from_float(static_cast<float>(number_of(e4m3) * static_cast<double>(scale)), x);
  return x;
}
uint8_t random_e4m3(Random& random) {
  return static_cast<uint8_t>(random.integer(0, 126) + 128 * random.integer(0, 1));
}

// Every number by scales of many sizes.
template <class T>
void check_decoding(Result& result, const Context& context, Random& random) {
  constexpr int64_t kScales = armllm::kFp8Scales;
  for (const int64_t count : {kScales, 4 * kScales, 37 * kScales}) {
    for (const float size : {1.0f, 0x1p-14f, 20.0f}) {
      const Array<uint8_t> x(count);
      const Array<float> scales(kScales);
      const Array<T> out(count);
      random.fill(scales.data(), kScales, size);
      for (int64_t i = 0; i < count; ++i) {
        x[i] = count == 4 * kScales && i % 128 < 127 ? static_cast<uint8_t>(i) : random_e4m3(random);
      }
      ARMLLM_OF_STORAGE(context.table, decode_fp8,
                        Type<T>::kStorage)({out.data(), x.data(), scales.data(), count});
      for (int64_t i = 0; i < count; ++i) {
        const double expected = to_double(decoded<T>(x[i], scales[i % kScales]));
        result.compare(to_double(out[i]), expected, 0, "decoded", i / kScales, i % kScales);
      }
      ++result.cases;
    }
  }
}

// A product has the bits of one with the decoded weight in panels.
template <class T>
void check_fp8_product(Result& result, const Context& context, int64_t n, int64_t k, int64_t group,
                       int64_t rows, Random& random) {
  const int64_t together =
      ARMLLM_OF_STORAGE(context.table, panel_matmul, Type<T>::kStorage)->features_together;
  const int64_t groups = group == 0 ? 1 : (k + group - 1) / group, stride = n + 3;
  const Array<uint8_t> bytes(panels_elements(n, k));
  const Array<float> scales(n * groups);
  const Array<T> x(rows * k), bias(n), panels(panels_elements(n, k)), out(rows * stride),
      expected(rows * stride);
  random.fill(x.data(), x.size(), 1);
  random.fill(bias.data(), n, 1);
  random.fill(scales.data(), scales.size(), 0.01f);
  memset(bytes.data(), 0, static_cast<size_t>(bytes.size()));
  std::fill(panels.data(), panels.data() + panels.size(), T{});
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t place = place_in_panels(c, i, k, together);
      bytes[place] = random_e4m3(random);
      panels[place] = decoded<T>(bytes[place], scales[c * groups + (group == 0 ? 0 : i / group)]);
    }
  }
  std::fill(out.data(), out.data() + out.size(), T{});
  std::fill(expected.data(), expected.data() + expected.size(), T{});
  armllm::MatmulArgs args{
      expected.data(), x.data(), bias.data(), panels.data(), nullptr, {n, k, 0, false}, rows, stride, k};
  armllm::matmul(context.table, armllm::WeightForm::panels, Type<T>::kStorage, args);
  args.out = out.data();
  args.weight = bytes.data();
  args.shape.group_size = group;
  args.fp8_scales = scales.data();
  armllm::matmul(context.table, armllm::WeightForm::fp8, Type<T>::kStorage, args);
  char what[96];
  snprintf(what, sizeof what, "%lld rows, %lld x %lld, groups of %lld", static_cast<long long>(rows),
           static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(group));
  for (int64_t i = 0; i < rows * stride; ++i) {
    result.compare(to_double(out[i]), to_double(expected[i]), 0, what, i / stride, i % stride);
  }
  ++result.cases;
}

template <class T>
Result test_fp8(const Context& context) {
  Result result;
  Random random(context.seed);
  check_decoding<T>(result, context, random);
  for (const int64_t rows : {1, 2, 5, 33}) {
    check_fp8_product<T>(result, context, 1, 1, 0, rows, random);
    check_fp8_product<T>(result, context, 50, 77, 0, rows, random);
    check_fp8_product<T>(result, context, 161, 100, 32, rows, random);
    check_fp8_product<T>(result, context, 64, 256, 128, rows, random);
  }
  check_fp8_product<T>(result, context, 50, 77, 0, armllm::kDecodedRows + 1, random);
  // Panels that are too long for all to be decoded side by side.
  check_fp8_product<T>(result, context, 90, 8200, 0, 3, random);
  return result;
}

}  // namespace

const std::vector<NamedTest>& dense_tests() {
  static const std::vector<NamedTest> tests = {
      {"dense_matmul_f32", test_linear<float, armllm::WeightForm::dense>, "linear_f32"},
      {"dense_matmul_f16", test_linear<float16, armllm::WeightForm::dense>, "linear_f16"},
      {"dense_matmul_bf16", test_linear<bfloat16, armllm::WeightForm::dense>, "linear_bf16"},
      {"panel_matmul_f32", test_linear<float, armllm::WeightForm::panels>, nullptr},
      {"panel_matmul_f16", test_linear<float16, armllm::WeightForm::panels>, nullptr},
      {"panel_matmul_bf16", test_linear<bfloat16, armllm::WeightForm::panels>, nullptr},
      CONFORMANCE_STORAGES(decode_fp8, test_fp8),
  };
  return tests;
}

}  // namespace conformance
