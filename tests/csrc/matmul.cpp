// quantize_rows and the quantized products. Sums of products are compared bit by bit (with scales of 1 they
// are what comes out), everything else with float64.

#include <stdio.h>

#include <algorithm>
#include <memory>

#include "support.h"

namespace conformance {

namespace {

constexpr int64_t kRows = 70;

template <class T>
float stored_as(float value) {
  T stored;
  from_float(value, stored);
  return to_float(stored);
}

int8_t any_integer(int bits, armllm::Values values, Random& random) {
  if (values != armllm::Values::integers) {
    return armllm::kTables[static_cast<int>(values)][random.integer(0, armllm::kTableSize - 1)];
  }
  const int64_t most = bits == 4 ? 7 : 127;
  return static_cast<int8_t>(random.integer(-most - 1, most));
}
int8_t lowest_integer(int bits, armllm::Values values) {
  const int8_t* table = armllm::kTables[static_cast<int>(values)];
  if (values != armllm::Values::integers) return *std::min_element(table, table + armllm::kTableSize);
  return static_cast<int8_t>(bits == 4 ? -8 : -128);
}

template <class T>
struct Operands {
  int bits;
  armllm::WeightShape shape;
  int64_t groups, group, x_stride, q_stride;
  Array<T> x, bias;
  Array<int8_t> q, zeros;
  Array<float> scales, offsets;
  std::vector<double> expected, bound;  // [kRows, out_features]; in float, before storing

  Operands(int bits_, const armllm::WeightShape& s, bool exact, Random& random)
      : bits(bits_),
        shape(s),
        groups(s.group_size == 0 ? 1 : s.in_features / s.group_size),
        group(s.group_size == 0 ? s.in_features : s.group_size),
        x_stride(s.in_features + random.integer(0, 3)),
        q_stride(s.in_features + random.integer(0, 3)),
        x((kRows - 1) * x_stride + s.in_features),
        bias(s.out_features),
        q((s.out_features - 1) * q_stride + s.in_features),
        zeros(s.out_features * groups),
        scales(s.out_features * groups),
        offsets(s.out_features * groups) {
    const int64_t most = bits == 4 ? 7 : 127;
    for (int64_t i = 0; i < q.size(); ++i) q[i] = any_integer(bits, s.values, random);
    // All the lowest: the largest sums there can be.
    std::fill(q.data(), q.data() + s.in_features, lowest_integer(bits, s.values));
    for (int64_t i = 0; i < scales.size(); ++i) {
      scales[i] = exact ? 1.0f : static_cast<float>(random.uniform() + 0.25) * (random.integer(0, 9) != 0);
      if (s.scales == armllm::Storage::f16)
        scales[i] = stored_as<float16>(scales[i] * (i % 7 == 1 ? 0x1p-20f : 1));
      if (s.scales == armllm::Storage::bf16) scales[i] = stored_as<bfloat16>(scales[i]);
      zeros[i] = static_cast<int8_t>(random.integer(-most - 1, bits == 4 ? 8 : most));
      offsets[i] = -scales[i] * zeros[i];
    }
    random.fill(bias.data(), bias.size(), 2);
    random.fill(x.data(), x.size(), 1);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t k = 0; k < s.in_features; ++k) {
        T& value = x[r * x_stride + k];
        if (r % 8 == 3) from_float(0, value);
        if (r % 8 == 4) from_float(k % 2 == 0 ? 127 : -127, value);
        if (r % 8 == 5) from_float(127, value);
        if (exact)
          from_float(k == 0 || r == 0 ? 127.0f : static_cast<float>(random.integer(-127, 127)), value);
      }
    }
    if (exact) {
      for (int64_t i = 0; i < bias.size(); ++i) from_float(0, bias[i]);
    }
    expect(exact);
  }

  void expect(bool exact) {
    const int64_t n = shape.out_features, k = shape.in_features;
    expected.resize(static_cast<size_t>(kRows * n));
    bound.resize(expected.size());
    std::vector<int32_t> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < kRows; ++r) {
      float largest = 0;
      for (int64_t i = 0; i < k; ++i) largest = std::max(largest, fabsf(to_float(x[r * x_stride + i])));
      const float scale = largest / 127.0f;
      for (int64_t i = 0; i < k; ++i) {
        row[static_cast<size_t>(i)] =
            scale == 0 ? 0 : static_cast<int32_t>(nearbyintf(to_float(x[r * x_stride + i]) / scale));
      }
      for (int64_t c = 0; c < n; ++c) {
        double sum = 0, size = 0;
        for (int64_t g = 0; g < groups; ++g) {
          int64_t products = 0, activations = 0;
          for (int64_t i = g * group; i < (g + 1) * group; ++i) {
            products += row[static_cast<size_t>(i)] * q[c * q_stride + i];
            activations += row[static_cast<size_t>(i)];
          }
          const double s = static_cast<double>(scales[c * groups + g]);
          const double z = shape.zero_points ? static_cast<double>(zeros[c * groups + g]) : 0;
          sum += s * (static_cast<double>(products) - z * static_cast<double>(activations));
          size += fabs(s * static_cast<double>(products)) + fabs(s * z * static_cast<double>(activations));
        }
        const double b = to_double(bias[c]), whole = sum * static_cast<double>(scale) + b;
        const auto at = static_cast<size_t>(r * n + c);
        expected[at] = whole;
        // Per group a product and a sum, twice with zero points; then the row's scale and the bias.
        const double roundings = static_cast<double>(groups) * (shape.zero_points ? 4 : 2) + 3;
        bound[at] =
            exact ? 0 : (size * static_cast<double>(scale) + fabs(b)) * roundings * kFloatRound * 1.01;
      }
    }
  }
};

// Packs as the operands say, then with scales as floats and integers as they are: the same numbers, so that
// all results have the same bits.
template <class T>
void check_plainly_stored(Result& result, const Context& context, const Operands<T>& operands, int64_t rows) {
  std::vector<T> outputs[2];
  armllm::WeightShape shape = operands.shape;
  for (auto& out : outputs) {
    const int64_t bytes = armllm::packed_bytes(context.table, operands.bits, shape);
    const Array<char> packed((bytes + 63) / 64 * 64);
    armllm::pack_weight(context.table, operands.bits,
                        {packed.data(), operands.q.data(), operands.scales.data(),
                         shape.zero_points ? operands.offsets.data() : nullptr, shape, operands.q_stride});
    out.resize(static_cast<size_t>(rows * shape.out_features));
    armllm::matmul(context.table, form_of(operands.bits), Type<T>::kStorage,
                   {out.data(), operands.x.data(), nullptr, packed.data(), nullptr, shape, rows,
                    shape.out_features, operands.x_stride});
    shape.scales = armllm::Storage::f32;
    shape.values = armllm::Values::integers;
  }
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    result.compare(to_double(outputs[0][i]), to_double(outputs[1][i]), 0, "plainly stored", rows,
                   static_cast<int64_t>(i));
  }
  ++result.cases;
}

template <class T>
void check_product(Result& result, const Context& context, const Operands<T>& operands, int64_t rows,
                   bool with_bias) {
  const armllm::WeightShape& s = operands.shape;
  const int64_t bytes = armllm::packed_bytes(context.table, operands.bits, s);
  const Array<char> packed((bytes + 63) / 64 * 64);
  armllm::pack_weight(context.table, operands.bits,
                      {packed.data(), operands.q.data(), operands.scales.data(),
                       s.zero_points ? operands.offsets.data() : nullptr, s, operands.q_stride});
  const int64_t stride = s.out_features + rows % 3;
  const Array<T> out((rows - 1) * stride + s.out_features);
  T untouched;
  from_float(-77, untouched);
  std::fill(out.data(), out.data() + out.size(), untouched);
  armllm::matmul(context.table, form_of(operands.bits), Type<T>::kStorage,
                 {out.data(), operands.x.data(), with_bias ? operands.bias.data() : nullptr, packed.data(),
                  nullptr, s, rows, stride, operands.x_stride});
  char what[96];
  snprintf(what, sizeof what, "%lld rows, %lld x %lld, groups of %lld%s", static_cast<long long>(rows),
           static_cast<long long>(s.out_features), static_cast<long long>(s.in_features),
           static_cast<long long>(s.group_size), s.zero_points ? ", zero points" : "");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < stride && r * stride + c < out.size(); ++c) {
      const T got = out[r * stride + c];
      if (c >= s.out_features) {
        result.compare(to_double(got), -77, 0, what, r, c);
        continue;
      }
      const auto at = static_cast<size_t>(r * s.out_features + c);
      const double expected = operands.expected[at] - (with_bias ? 0 : to_double(operands.bias[c]));
      const double float_bound = operands.bound[at];
      const double stored =
          float_bound == 0 ? 0 : (fabs(expected) + float_bound) * Type<T>::kRound + Type<T>::kTiny;
      result.compare_stored(got, expected, float_bound + stored, what, r, c);
    }
  }
  ++result.cases;
}

// With a given scale of 1, rows of whole numbers come through as they are, those beyond 127 as 127.
template <class T>
void check_given_scale(Result& result, const Context& context, int bits, const armllm::WeightShape& s,
                       Random& random) {
  constexpr int64_t kMost = 17;
  const int64_t groups = s.group_size == 0 ? 1 : s.in_features / s.group_size;
  const int64_t largest = bits == 4 ? 7 : 127, k = s.in_features;
  const Array<int8_t> q(s.out_features * k);
  for (int64_t i = 0; i < q.size(); ++i) q[i] = static_cast<int8_t>(random.integer(-largest - 1, largest));
  std::fill(q.data(), q.data() + k, static_cast<int8_t>(-largest - 1));
  const Array<float> scales(s.out_features * groups);
  for (int64_t i = 0; i < scales.size(); ++i) scales[i] = 1;
  const Array<T> x(kMost * k);
  for (int64_t i = 0; i < x.size(); ++i) {
    from_float(i % 5 == 0 ? 1e4f : i % 7 == 0 ? -1e4f : static_cast<float>(random.integer(-127, 127)), x[i]);
  }
  std::fill(x.data(), x.data() + k, x[0]);  // the largest sums there can be
  const int64_t bytes = armllm::packed_bytes(context.table, bits, s);
  const Array<char> packed((bytes + 63) / 64 * 64);
  armllm::pack_weight(context.table, bits, {packed.data(), q.data(), scales.data(), nullptr, s, k});
  for (int64_t rows = 1; rows <= kMost; ++rows) {
    const Array<T> out(rows * s.out_features);
    armllm::matmul(context.table, form_of(bits), Type<T>::kStorage,
                   {out.data(), x.data(), nullptr, packed.data(), nullptr, s, rows, s.out_features, k, 1.0f});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < s.out_features; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += std::clamp(to_double(x[r * k + i]), -127.0, 127.0) * static_cast<double>(q[c * k + i]);
        }
        result.compare_stored(out[r * s.out_features + c], sum, fabs(sum) * Type<T>::kRound, "given scale", r,
                              c);
      }
    }
  }
  ++result.cases;
}

// Weights that are numbers in a table: shapes whose panels come one at a time and many, for one tile of rows
// and for several, with more features than a block has.
template <class T>
void check_tables(Result& result, const Context& context, Random& random) {
  struct Size {
    int64_t out_features, in_features, group_size;
    armllm::Values values;
  };
  using armllm::Values;
  constexpr bool kIsFloat = sizeof(T) == 4;
  constexpr Size kSizes[] = {{18, 77, 0, Values::iq4_nl},
                             {7, 96, 32, Values::iq4_nl},
                             {39, 192, 64, Values::e2m1},
                             {150, 128, 128, Values::e2m1},
                             {38, 4224, 32, Values::e2m1}};
  for (const Size& size : kSizes) {
    const bool deep = size.in_features > 1000;
    if (deep && !kIsFloat) continue;
    const auto scales = size.group_size == 32 ? armllm::Storage::bf16 : armllm::Storage::f32;
    const armllm::WeightShape shape{size.out_features, size.in_features, size.group_size, false, scales,
                                    size.values};
    const Operands<T> operands(8, shape, false, random);
    for (const int64_t rows : {int64_t{1}, int64_t{5}, int64_t{17}, kRows}) {
      if (!deep) check_product(result, context, operands, rows, true);
      if (kIsFloat) check_plainly_stored(result, context, operands, rows);
    }
  }
}

template <class T, int bits>
Result test_matmul(const Context& context) {
  Result result;
  Random random(context.seed);
  if (sizeof(T) == 4) {
    check_given_scale<T>(result, context, bits, {7, 77, 0, false}, random);
    check_given_scale<T>(result, context, bits, {5, 256, 128, false}, random);
  }
  constexpr bool kIsFloat = sizeof(T) == 4;
  struct Size {
    int64_t out_features, in_features, group_size;
  };
  std::vector<Size> sizes = {{1, 1, 0}, {5, 31, 0}, {18, 77, 0}, {7, 160, 0}};
  for (const int64_t group : {32, 64, 128}) {
    sizes.push_back({18, group, group});
    sizes.push_back({7, 3 * group, group});
  }
  for (const Size& size : sizes) {
    for (const bool zero_points : {false, true}) {
      const armllm::WeightShape shape{size.out_features, size.in_features, size.group_size, zero_points};
      const Operands<T> operands(bits, shape, false, random);
      for (const int64_t rows : {1, 2, 3, 8, 17, 33}) {
        check_product(result, context, operands, rows, random.integer(0, 1) == 1);
      }
      if (!kIsFloat) continue;
      const Operands<T> exact(bits, shape, true, random);
      for (int64_t rows = 1; rows <= 17; ++rows) check_product(result, context, exact, rows, true);
      for (const int64_t rows : {int64_t{64}, kRows}) check_product(result, context, exact, rows, true);
    }
  }
  for (const armllm::Storage scales : {armllm::Storage::f16, armllm::Storage::bf16}) {
    for (const int64_t group : {32, 128}) {
      const Operands<T> narrow(bits, {39, 3 * group, group, group == 32, scales}, false, random);
      for (const int64_t rows : {int64_t{1}, int64_t{5}, kRows}) {
        check_product(result, context, narrow, rows, true);
        check_plainly_stored(result, context, narrow, rows);
      }
    }
  }
  if (bits == 8) check_tables<T>(result, context, random);
  // Enough panels and rows for more than one block of either.
  for (const int64_t group : {0, 32}) {
    const Operands<T> large(bits, {150, 96, group, false}, false, random);
    for (const int64_t rows : {int64_t{1}, int64_t{33}, kRows})
      check_product(result, context, large, rows, true);
  }
  // Enough features for more than one block of them, and panels for more than take a block together.
  for (const int64_t group : {0, 32, 128}) {
    if (!kIsFloat) break;
    const auto scales = group == 128 ? armllm::Storage::bf16 : armllm::Storage::f32;
    const Operands<T> deep(bits, {70, 4224, group, group == 32, scales}, false, random);
    for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{17}, kRows})
      check_product(result, context, deep, rows, true);
  }
  // So many that those of a few rows come in blocks, too.
  for (const int64_t group : {0, 32}) {
    if (!kIsFloat) break;
    const Operands<T> deepest(bits, {3, 12320, group, false}, false, random);
    for (const int64_t rows : {3, 13}) check_product(result, context, deepest, rows, true);
  }
  return result;
}

// What quantize_rows says of itself, in double where float rounds the same way.
template <class T>
void check_rows(Result& result, const Context& context, Array<T>& x, int64_t rows, int64_t width,
                bool asymmetric) {
  const int64_t stride = rows == 0 ? width : x.size() / rows;
  const Array<int8_t> q(rows * width);
  const Array<float> scales(rows);
  const Array<int32_t> zeros(rows);
  armllm::quantize_rows(
      context.table, Type<T>::kStorage,
      {q.data(), scales.data(), asymmetric ? zeros.data() : nullptr, x.data(), rows, width, width, stride});
  for (int64_t r = 0; r < rows; ++r) {
    float low = 0, high = 0;
    bool finite = true;
    for (int64_t i = 0; i < width; ++i) {
      const float v = to_float(x[r * stride + i]);
      finite = finite && isfinite(v);
      low = std::min(low, v);
      high = std::max(high, v);
    }
    const float largest = std::max(high, -low);
    float scale = asymmetric ? (high * 0.5f - low * 0.5f) / 127.5f : largest / 127.0f, zero = 0;
    if (largest < 0x1p-100f) scale = 0;
    if (scale != 0 && asymmetric) zero = std::clamp(nearbyintf(-128.0f - low / scale), -128.0f, 127.0f);
    if (!finite) {
      scale = NAN;
      zero = 0;
    }
    result.compare(static_cast<double>(scales[r]), static_cast<double>(scale), 0, "scales", r, 0);
    if (asymmetric) result.compare(zeros[r], static_cast<double>(zero), 0, "zeros", r, 0);
    for (int64_t i = 0; i < width; ++i) {
      const float wanted =
          finite && scale != 0
              ? std::clamp(nearbyintf(to_float(x[r * stride + i]) / scale) + zero, -128.0f, 127.0f)
              : 0;
      result.compare(q[r * width + i], static_cast<double>(wanted), 0,
                     asymmetric ? "asymmetric" : "symmetric", r, i);
    }
  }
  ++result.cases;
}

template <class T>
Result test_quantize_rows(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const bool asymmetric : {false, true}) {
    for (const int64_t width : {0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 100, 257}) {
      for (const int64_t rows : {0, 1, 5}) {
        Array<T> x(rows * (width + 1));
        for (const float size : {1.0f, 1e-3f, 1e4f}) {
          random.fill(x.data(), x.size(), size);
          check_rows(result, context, x, rows, width, asymmetric);
        }
      }
      if (width < 3) continue;
      for (const float special : {NAN, INFINITY, -INFINITY, 0x1p-110f, 0x1p100f, 0.0f, -0.0f}) {
        Array<T> x(4 * width);
        random.fill(x.data(), x.size(), 1);
        for (int64_t i = 0; i < width; ++i) from_float(special, x[i]);  // nothing else
        from_float(special, x[2 * width - 1]);                          // at the end of a row
        for (int64_t i = 0; i < width; ++i) from_float(fabsf(to_float(x[2 * width + i])), x[2 * width + i]);
        for (int64_t i = 0; i < width; ++i) from_float(-3 - to_float(x[3 * width + i]), x[3 * width + i]);
        check_rows(result, context, x, 4, width, asymmetric);
      }
    }
  }
  return result;
}

template <class T>
Result test_w4a8(const Context& context) {
  return test_matmul<T, 4>(context);
}
template <class T>
Result test_w8a8(const Context& context) {
  return test_matmul<T, 8>(context);
}

}  // namespace

const std::vector<NamedTest>& matmul_tests() {
  static const std::vector<NamedTest> tests = {CONFORMANCE_STORAGES(quantize_rows, test_quantize_rows),
                                               CONFORMANCE_STORAGES(matmul_w8a8, test_w8a8),
                                               CONFORMANCE_STORAGES(matmul_w4a8, test_w4a8)};
  return tests;
}

}  // namespace conformance
