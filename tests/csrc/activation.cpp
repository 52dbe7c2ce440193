// Activations and conversions against float64.

#include <algorithm>

#include "matrix.h"

namespace conformance {

namespace {

constexpr double u = kFloatRound;

// A function, and by how much its float result may be off: as a share of the result, and absolutely where an
// exponential overflows or vanishes.
struct Reference {
  double (*exact)(double);
  double (*error)(double);
};

// exp's own error, and what an argument that is off by so many roundings changes; further out than 90 exp is
// 0 or infinite anyway.
double exp_error(double argument, double roundings) {
  return kExpError + std::min(fabs(argument), 90.0) * (kExpArgumentError + roundings * u);
}

double sigmoid(double x) { return 1 / (1 + exp(-x)); }
double tanh_argument(double x) { return 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double tail(double x) { return 0.5 * erfc(fabs(x) / sqrt(2.0)); }

constexpr double kVanishing = 4e-37;

const Reference kSilu = {
    [](double x) { return x * sigmoid(x); },
    [](double x) { return fabs(x * sigmoid(x)) * (exp_error(x, 0) + 5 * u) + kVanishing; }};
const Reference kQuickGelu = {[](double x) { return x * sigmoid(1.702 * x); },
                              [](double x) {
                                const double relative = 5 * u + exp_error(1.702 * x, 2);
                                return fabs(x * sigmoid(1.702 * x)) * relative + kVanishing;
                              }};
const Reference kGeluTanh = {[](double x) { return x * sigmoid(tanh_argument(x)); },
                             [](double x) {
                               const double relative = 5 * u + exp_error(tanh_argument(x), 5);
                               return fabs(x * sigmoid(tanh_argument(x))) * relative + kVanishing;
                             }};
// activation.h: the polynomial's error 1.3e-7, sixteen roundings on the way to the tail of the distribution,
// and that of z^2 inside exp.
const Reference kGelu = {[](double x) { return x * (x < 0 ? tail(x) : 1 - tail(x)); },
                         [](double x) {
                           const double of_tail = 1.3e-7 + 16 * u + exp_error(x * x / 2, 1);
                           const double share = x < 0 ? 0 : 1 - tail(x);
                           return fabs(x) * (tail(x) * of_tail + 2 * u * share) + kVanishing;
                         }};
const Reference kRelu = {[](double x) { return x < 0 ? 0 : x; }, [](double) { return 0.0; }};

template <class T>
Result test_activation(const Context& context, const Reference& reference, armllm::Function function,
                       bool gated) {
  Result result;
  Random random(context.seed);
  for (const int64_t width : kSizes) {
    for (const int64_t rows : {0, 1, 4}) {
      for (const float magnitude : {1.0f, 1e-20f, 40.0f, 1e15f}) {
        Matrix<T> x(rows, gated ? 2 * width : width, random.integer(0, 5), random.integer(0, 1) == 1);
        Matrix<T> apart(rows, width, random.integer(0, 5), random.integer(0, 1) == 1);
        Matrix<T>& out = !gated && random.integer(0, 3) == 0 ? x : apart;
        x.fill(random, magnitude);
        if (rows == 4) {
          from_float(NAN, x.at(1, 0));
          from_float(INFINITY, x.at(2, width / 2));
          from_float(-INFINITY, x.at(3, width / 2));
          from_float(-0.0f, x.at(0, width - 1));
        }
        const std::vector<T> before(x.memory.data(), x.memory.data() + x.memory.size());
        armllm::activation(context.table, function, Type<T>::kStorage,
                           {out.memory.data(), x.memory.data(), rows, width, out.stride, x.stride});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < width; ++i) {
            const T* row = before.data() + r * x.stride;
            const double g = to_double(row[i]), up = gated ? to_double(row[width + i]) : 1;
            const double expected = reference.exact(g) * up;
            const double bound = (reference.error(g) * fabs(up) + fabs(expected) * (gated ? u : 0)) * 1.01 +
                                 fabs(expected) * Type<T>::kRound * 1.01 + Type<T>::kTiny;
            result.compare_stored(out.at(r, i), expected, bound, "out", r, i);
          }
        }
        out.check_gaps(result, "out");
        ++result.cases;
      }
    }
  }
  return result;
}

template <class T, const Reference& reference, armllm::Function function, bool gated>
Result test_function(const Context& context) {
  return test_activation<T>(context, reference, function, gated);
}

// Every value of 16 bits, and floats of every magnitude, ties among them: bit for bit.
template <class From, class To>
Result test_convert(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t width : {1, 3, 17, 1151, 1153, 65536}) {
    const int64_t rows = width < 65536 ? 3 : 1;
    Matrix<From> x(rows, width, random.integer(0, 3), random.integer(0, 1) == 1);
    Matrix<To> out(rows, width, random.integer(0, 3), random.integer(0, 1) == 1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        if (sizeof(From) == 2) {
          const auto bits = static_cast<uint16_t>(width == 65536 ? i : random.integer(0, 65535));
          memcpy(&x.at(r, i), &bits, sizeof bits);
          continue;
        }
        auto bits = static_cast<uint32_t>(random.next() >> 32);
        const int64_t kind = random.integer(0, 3);
        if (kind == 1) bits = (bits & 0x87ffffff) | 0x30000000;  // about binary16's range
        if (kind == 2) bits = (bits & 0xfffff000) | 0x1000;      // half way between two of binary16
        if (kind == 3) bits = (bits & 0xffff0000) | 0x8000;      // half way between two of bfloat16
        memcpy(&x.at(r, i), &bits, sizeof bits);
      }
    }
    armllm::convert(context.table, Type<To>::kStorage, Type<From>::kStorage,
                    {out.memory.data(), x.memory.data(), rows, width, out.stride, x.stride});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        To expected;
        const float value = to_float(x.at(r, i));
        from_float(value, expected);
        const To got = out.at(r, i);
        if (isnan(value) ? !isnan(to_float(got)) : memcmp(&got, &expected, sizeof got) != 0) {
          result.fail(std::to_string(value) + " became " + std::to_string(to_float(got)) + ", not " +
                      std::to_string(to_float(expected)));
        }
      }
    }
    out.check_gaps(result, "out");
    ++result.cases;
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& activation_tests() {
  using armllm::Function;
#define ACTIVATION(op, reference, gated)                                      \
  {#op "_f32", test_function<float, reference, Function::op, gated>},         \
      {#op "_f16", test_function<float16, reference, Function::op, gated>}, { \
    #op "_bf16", test_function<bfloat16, reference, Function::op, gated>      \
  }
  static const std::vector<NamedTest> tests = {
      ACTIVATION(silu_and_mul, kSilu, true),
      ACTIVATION(gelu_and_mul, kGelu, true),
      ACTIVATION(gelu_tanh_and_mul, kGeluTanh, true),
      ACTIVATION(gelu, kGelu, false),
      ACTIVATION(gelu_tanh, kGeluTanh, false),
      ACTIVATION(quick_gelu, kQuickGelu, false),
      ACTIVATION(relu, kRelu, false),
      {"convert_f32_to_f16", test_convert<float, float16>},
      {"convert_f32_to_bf16", test_convert<float, bfloat16>},
      {"convert_f16_to_f32", test_convert<float16, float>},
      {"convert_f16_to_bf16", test_convert<float16, bfloat16>},
      {"convert_bf16_to_f32", test_convert<bfloat16, float>},
      {"convert_bf16_to_f16", test_convert<bfloat16, float16>},
  };
#undef ACTIVATION
  return tests;
}

}  // namespace conformance
