// A mixture of experts, and the ops that only it uses. Quantized experts are compared bit by bit with the
// products of single rows, whose integers matmul.cpp proves; all are compared with float64 besides.

#include <stdio.h>

#include <algorithm>
#include <memory>

#include "support.h"

namespace conformance {

namespace {

using armllm::bits_of;
using armllm::Function;
using armllm::WeightForm;

double of_gate(Function function, double g) {
  switch (function) {
    case Function::gelu_and_mul:
      return g * 0.5 * erfc(-g / sqrt(2.0));
    case Function::gelu_tanh_and_mul:
      return g / (1 + ::exp(-2 * sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    default:
      return g / (1 + ::exp(-g));
  }
}

struct Size {
  int64_t hidden, width, group_size;
  armllm::Values values = armllm::Values::integers;

  armllm::WeightShape shape(int64_t out_features, int64_t in_features, bool zero_points) const {
    const bool table = values != armllm::Values::integers;
    return {out_features, in_features, group_size, zero_points, table ? Storage::bf16 : Storage::f32, values};
  }
};

// An expert's matrix, quantized or not, its values, and the size of the terms that make each: a zero point is
// taken off in floating point, so that a value of 0 can be the difference of two rounded numbers.
template <class T>
struct Weight {
  armllm::WeightShape shape;
  std::vector<double> values, sizes;
  Array<char> stored;

  static int64_t stored_bytes(const Context& context, WeightForm form, const armllm::WeightShape& s) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    if (form == WeightForm::dense) return s.out_features * s.in_features * kBytes;
    if (form == WeightForm::panels) return panels_elements(s.out_features, s.in_features) * kBytes;
    return (armllm::packed_bytes(context.table, bits_of(form), s) + 63) / 64 * 64;
  }

  Weight(const Context& context, WeightForm form, const armllm::WeightShape& s, Random& random)
      : shape(s),
        values(static_cast<size_t>(s.out_features * s.in_features)),
        sizes(values.size()),
        stored(stored_bytes(context, form, s)) {
    const int64_t n = s.out_features, k = s.in_features;
    const int bits = bits_of(form);
    const float size = 1.5f / sqrtf(static_cast<float>(k));
    if (bits == 0) {
      const Array<T> weight(n * k);
      random.fill(weight.data(), n * k, size);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = to_double(weight.data()[i]);
        sizes[i] = fabs(values[i]);
      }
      T* to = reinterpret_cast<T*>(stored.data());
      if (form == WeightForm::dense) {
        std::copy(weight.data(), weight.data() + n * k, to);
      } else {
        std::fill(to, to + panels_elements(n, k), T{});
        const int64_t together =
            ARMLLM_OF_STORAGE(context.table, panel_matmul, Type<T>::kStorage)->features_together;
        for (int64_t i = 0; i < n * k; ++i) to[place_in_panels(i / k, i % k, k, together)] = weight[i];
      }
      return;
    }
    const int64_t groups = s.group_size == 0 ? 1 : k / s.group_size, most = bits == 4 ? 7 : 127;
    const Array<int8_t> q(n * k), zeros(n * groups);
    const Array<float> scales(n * groups), offsets(n * groups);
    for (int64_t i = 0; i < n * groups; ++i) {
      scales[i] = size / static_cast<float>(most) * static_cast<float>(random.uniform() + 0.5);
      if (s.scales == Storage::bf16) scales[i] = exp2f(floorf(log2f(scales[i])));
      zeros[i] = static_cast<int8_t>(s.zero_points ? random.integer(-3, 3) : 0);
      offsets[i] = -scales[i] * zeros[i];
    }
    for (int64_t i = 0; i < n * k; ++i) {
      q[i] = s.values == armllm::Values::integers
                 ? static_cast<int8_t>(random.integer(-most - 1, most))
                 : armllm::kTables[static_cast<int>(s.values)][random.integer(0, armllm::kTableSize - 1)];
      const int64_t g = i / k * groups + i % k * groups / k;
      const auto scale = static_cast<double>(scales[g]);
      values[static_cast<size_t>(i)] = scale * (q[i] - zeros[g]);
      sizes[static_cast<size_t>(i)] = scale * (fabs(q[i]) + fabs(zeros[g]));
    }
    armllm::pack_weight(
        context.table, bits,
        {stored.data(), q.data(), scales.data(), s.zero_points ? offsets.data() : nullptr, s, k});
  }
};

// out = values * x and how much a rounding of each product's terms may change it.
template <class T>
void product(const Weight<T>& weight, const std::vector<double>& x, const std::vector<double>& x_error,
             std::vector<double>& out, std::vector<double>& error) {
  const auto n = static_cast<size_t>(weight.shape.out_features),
             k = static_cast<size_t>(weight.shape.in_features);
  out.assign(n, 0);
  error.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    double size = 0;
    for (size_t j = 0; j < k; ++j) {
      const double w = weight.values[i * k + j];
      out[i] += w * x[j];
      size += weight.sizes[i * k + j] * (fabs(x[j]) + x_error[j]);
      error[i] += fabs(w) * x_error[j];
    }
    // BFMMLA rounds to odd, which may cost twice a rounding to nearest.
    error[i] += 2 * sum_error(static_cast<double>(k)) * size;
  }
}

template <class T>
struct Model {
  WeightForm form;
  int bits;
  Size size;
  Function function;
  std::vector<Weight<T>> gate_up, down;
  std::vector<const void*> gate_up_stored, down_stored;

  Model(const Context& context, WeightForm form_, const Size& s, bool zero_points, Function function_,
        int64_t experts, Random& random)
      : form(form_), bits(bits_of(form)), size(s), function(function_) {
    for (int64_t e = 0; e < experts; ++e) {
      gate_up.emplace_back(context, form, s.shape(2 * s.width, s.hidden, zero_points), random);
      down.emplace_back(context, form, s.shape(s.hidden, s.width, false), random);
    }
    for (int64_t e = 0; e < experts; ++e) {
      gate_up_stored.push_back(gate_up[static_cast<size_t>(e)].stored.data());
      down_stored.push_back(down[static_cast<size_t>(e)].stored.data());
    }
  }

  // One token by one expert with single rows of the same table's ops: float [hidden].
  std::vector<float> single(const Context& context, const T* x, int64_t expert) const {
    const auto e = static_cast<size_t>(expert);
    const Array<float> wide(size.hidden), products(2 * size.width), activated(size.width), out(size.hidden);
    for (int64_t i = 0; i < size.hidden; ++i) wide[i] = to_float(x[i]);
    armllm::matmul(context.table, form, Storage::f32,
                   {products.data(), wide.data(), nullptr, gate_up_stored[e], nullptr, gate_up[e].shape, 1,
                    2 * size.width, size.hidden});
    armllm::activation(context.table, function, Storage::f32,
                       {activated.data(), products.data(), 1, size.width, size.width, 2 * size.width});
    armllm::matmul(context.table, form, Storage::f32,
                   {out.data(), activated.data(), nullptr, down_stored[e], nullptr, down[e].shape, 1,
                    size.hidden, size.width});
    return std::vector<float>(out.data(), out.data() + size.hidden);
  }

  // The same in float64, with what rounding may change.
  void exact(const T* x, int64_t expert, std::vector<double>& out, std::vector<double>& error) const {
    const ShortVectors for_reference;
    const auto e = static_cast<size_t>(expert);
    const auto width = static_cast<size_t>(size.width);
    std::vector<double> row(static_cast<size_t>(size.hidden)), none(row.size()), products, product_error;
    float largest = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = to_double(x[i]);
      largest = std::max(largest, fabsf(to_float(x[i])));
    }
    if (bits != 0) {
      const float scale = largest / 127.0f;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = scale == 0
                     ? 0
                     : static_cast<double>(scale) * static_cast<double>(nearbyintf(to_float(x[i]) / scale));
      }
    }
    product(gate_up[e], row, none, products, product_error);
    std::vector<double> activated(width), activated_error(width);
    double most = 0;
    for (size_t i = 0; i < width; ++i) {
      const double g = products[i], u = products[width + i], f = of_gate(function, g);
      const double g_error = product_error[i], u_error = product_error[width + i];
      // No slope of a gate is above 1.13; eight units for exp, quotients and what is around them.
      const double f_error = 1.13 * g_error + 8 * kExpError * (fabs(f) + g_error) + Type<float>::kTiny;
      activated[i] = f * u;
      activated_error[i] = f_error * (fabs(u) + u_error) + fabs(f) * u_error + 4 * kFloatRound * fabs(f * u);
      if (bits == 0)
        activated_error[i] += Type<T>::kRound * (fabs(f * u) + activated_error[i]) + Type<T>::kTiny;
      most = std::max(most, fabs(activated[i]) + activated_error[i]);
    }
    if (bits != 0) {  // half a step, and what an error before it can make of that
      for (size_t i = 0; i < width; ++i) activated_error[i] += most / 127.0 * 0.5001;
    }
    product(down[e], activated, activated_error, out, error);
  }
};

struct Routing {
  std::vector<int64_t> ids;
  std::vector<float> weights;
};

template <class T>
void check(Result& result, const Context& context, const Model<T>& model, int64_t tokens, int64_t per_token,
           const Routing& routing, Random& random) {
  const int64_t hidden = model.size.hidden, stride = hidden + tokens % 3,
                experts = static_cast<int64_t>(model.down.size());
  const Array<T> x(tokens == 0 ? 0 : (tokens - 1) * stride + hidden);
  const Array<T> out(x.size());
  random.fill(x.data(), x.size(), 1);
  T untouched;
  from_float(-77, untouched);
  std::fill(out.data(), out.data() + out.size(), untouched);
  const Array<int64_t> ids(tokens * per_token);
  const Array<float> weights(tokens * per_token);
  std::copy(routing.ids.begin(), routing.ids.end(), ids.data());
  std::copy(routing.weights.begin(), routing.weights.end(), weights.data());
  armllm::moe(context.table, model.form, Type<T>::kStorage, model.function,
              {out.data(), x.data(), ids.data(), weights.data(), model.gate_up_stored.data(),
               model.down_stored.data(), model.gate_up[0].shape, model.down[0].shape, tokens, per_token,
               experts, stride, stride});
  char what[128];
  snprintf(what, sizeof what, "%lld tokens, %lld of %lld experts, %lld x %lld, groups of %lld%s",
           static_cast<long long>(tokens), static_cast<long long>(per_token), static_cast<long long>(experts),
           static_cast<long long>(hidden), static_cast<long long>(model.size.width),
           static_cast<long long>(model.size.group_size),
           model.gate_up[0].shape.zero_points ? ", zero points" : "");
  const auto n = static_cast<size_t>(hidden);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> same(n), size(n), expected(n), bound(n), one, error;
    for (int64_t j = 0; j < per_token; ++j) {
      const int64_t expert = ids[t * per_token + j];
      if (expert < 0) continue;
      const auto share = static_cast<double>(weights[t * per_token + j]);
      if (model.bits != 0) {
        const std::vector<float> row = model.single(context, &x[t * stride], expert);
        for (size_t i = 0; i < n; ++i) {
          same[i] += share * static_cast<double>(row[i]);
          size[i] += fabs(share * static_cast<double>(row[i]));
        }
      }
      model.exact(&x[t * stride], expert, one, error);
      for (size_t i = 0; i < n; ++i) {
        expected[i] += share * one[i];
        bound[i] += fabs(share) *
                    (error[i] + (fabs(one[i]) + error[i]) * static_cast<double>(per_token + 1) * kFloatRound);
      }
    }
    for (int64_t i = 0; i < stride && t * stride + i < out.size(); ++i) {
      const T got = out[t * stride + i];
      if (i >= hidden) {
        result.compare(to_double(got), -77, 0, what, t, i);
        continue;
      }
      const auto at = static_cast<size_t>(i);
      const double stored = (fabs(expected[at]) + bound[at]) * Type<T>::kRound + Type<T>::kTiny;
      result.compare_stored(got, expected[at], bound[at] + stored, what, t, i);
      if (model.bits != 0) {
        const double sum = size[at] * static_cast<double>(per_token) * kFloatRound;
        const double rounded = (fabs(same[at]) + sum) * Type<T>::kRound + Type<T>::kTiny;
        result.compare_stored(got, same[at], sum + rounded, what, t, i);
      }
    }
  }
  ++result.cases;
}

// Different experts for a token, some of them missing.
Routing random_routing(int64_t tokens, int64_t per_token, int64_t experts, Random& random) {
  Routing routing;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t first = random.integer(0, experts - 1);
    for (int64_t j = 0; j < per_token; ++j) {
      routing.ids.push_back(random.integer(0, 9) == 0 || t % 7 == 5 ? -1 : (first + j) % experts);
      routing.weights.push_back(static_cast<float>(random.uniform() - 0.25));
    }
  }
  return routing;
}
// All tokens to one expert, which every target's largest tile must meet.
Routing one_expert(int64_t tokens, int64_t expert) {
  return {std::vector<int64_t>(static_cast<size_t>(tokens), expert),
          std::vector<float>(static_cast<size_t>(tokens), 1.0f)};
}

template <class T>
Result test_moe(const Context& context, WeightForm form) {
  Result result;
  const int bits = bits_of(form);
  Random random(context.seed);
  std::vector<Size> sizes = {{77, 50, 0}, {1, 3, 0}, {33, 160, 0}};
  if (bits != 0) sizes.insert(sizes.end(), {{64, 96, 32}, {192, 64, 64}, {128, 128, 128}});
  if (bits == 8) sizes.push_back({64, 160, 32, armllm::Values::e2m1});
  constexpr int64_t kExperts = 5;
  constexpr Function kFunctions[] = {Function::silu_and_mul, Function::gelu_and_mul,
                                     Function::gelu_tanh_and_mul};
  int number = 0;
  for (const Size& size : sizes) {
    for (const bool zero_points : {false, true}) {
      if (zero_points && (bits == 0 || size.values != armllm::Values::integers)) continue;
      const Model<T> model(context, form, size, zero_points, kFunctions[number++ % 3], kExperts, random);
      for (const int64_t tokens : {0, 1, 2, 9, 33}) {
        check(result, context, model, tokens, 3, random_routing(tokens, 3, kExperts, random), random);
      }
      check(result, context, model, 3, 0, {}, random);
      check(result, context, model, 4, 2, {{-1, -1, 0, -1, -1, 4, -1, -1}, std::vector<float>(8, 0.5f)},
            random);
      if (size.hidden != 77 && size.hidden != 64) continue;
      for (int64_t tokens = 1; tokens <= 17; ++tokens) {
        check(result, context, model, tokens, 1, one_expert(tokens, tokens % kExperts), random);
      }
    }
  }
  return result;
}

template <class T>
Result test_w4a8(const Context& context) {
  return test_moe<T>(context, WeightForm::int4);
}
template <class T>
Result test_w8a8(const Context& context) {
  return test_moe<T>(context, WeightForm::int8);
}
template <class T>
Result test_dense(const Context& context) {
  return test_moe<T>(context, WeightForm::dense);
}
template <class T>
Result test_panels(const Context& context) {
  return test_moe<T>(context, WeightForm::panels);
}

template <class T>
Result test_weighted_sum(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t width : {0, 1, 3, 8, 17, 100, 257}) {
    for (const int64_t terms : {0, 1, 2, 8}) {
      constexpr int64_t kTokens = 5, kRows = 7;
      const int64_t stride = width + 3;
      const Array<float> x((kRows - 1) * stride + width), weights(kTokens * (terms + 1));
      const Array<int32_t> rows(kTokens * terms);
      const Array<T> out(kTokens * width);
      random.fill(x.data(), x.size(), 1);
      random.fill(weights.data(), weights.size(), 1);
      for (int64_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(random.integer(-2, kRows - 1));
      armllm::WeightedSum* kernel = ARMLLM_OF_STORAGE(context.table, weighted_sum, Type<T>::kStorage);
      const armllm::WeightedSumArgs args{out.data(), x.data(), weights.data(), rows.data(), kTokens,
                                         terms,      width,    width,          stride,      terms + 1};
      kernel(args, 0, 2);
      kernel(args, 2, kTokens);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          double sum = 0, size = 0;
          for (int64_t j = 0; j < terms; ++j) {
            const int64_t row = rows[t * terms + j];
            if (row < 0) continue;
            const double term =
                static_cast<double>(weights[t * (terms + 1) + j]) * static_cast<double>(x[row * stride + i]);
            sum += term;
            size += fabs(term);
          }
          const double error = size * static_cast<double>(terms + 1) * kFloatRound;
          result.compare_stored(out[t * width + i], sum,
                                error + (fabs(sum) + error) * Type<T>::kRound + Type<T>::kTiny,
                                "weighted sum", t, i);
        }
      }
      ++result.cases;
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& moe_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(weighted_sum, test_weighted_sum),
      CONFORMANCE_STORAGES(dense_matmul, test_dense),
      {"panel_matmul_f32", test_panels<float>, "moe_panels_f32"},
      {"panel_matmul_f16", test_panels<float16>, "moe_panels_f16"},
      {"panel_matmul_bf16", test_panels<bfloat16>, "moe_panels_bf16"},
      // Whatever tokens are stored as, the products are those for float.
      {"matmul_w8a8_f32", test_w8a8<float>, "moe_w8a8_f32"},
      {"matmul_w8a8_f32", test_w8a8<float16>, "moe_w8a8_f16"},
      {"matmul_w8a8_f32", test_w8a8<bfloat16>, "moe_w8a8_bf16"},
      {"matmul_w4a8_f32", test_w4a8<float>, "moe_w4a8_f32"},
      {"matmul_w4a8_f32", test_w4a8<float16>, "moe_w4a8_f16"},
      {"matmul_w4a8_f32", test_w4a8<bfloat16>, "moe_w4a8_bf16"},
  };
  return tests;
}

}  // namespace conformance
