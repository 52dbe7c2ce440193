// Layers with a state per sequence, beside float64: a decode, a prompt and a sequence without tokens.

#include <stdio.h>

#include <vector>

#include "matrix.h"
#include "support.h"

namespace conformance {

namespace {

constexpr int64_t kSlots = 4;
constexpr int64_t kOwn[] = {2, 0, 3};  // slots of the sequences; nobody has 1

struct Batch {
  Array<int64_t> slots{3};
  Array<int32_t> starts{4};
  int64_t tokens;
  explicit Batch(int64_t prompt) : tokens(1 + prompt) {
    for (int64_t s = 0; s < 3; ++s) slots[s] = kOwn[s];
    starts[0] = 0;
    starts[1] = starts[2] = 1;
    starts[3] = static_cast<int32_t>(tokens);
  }
  armllm::Sequences sequences() const { return {slots.data(), starts.data(), 3}; }
};

double silu(double x) { return x / (1 + exp(-x)); }

template <class T>
void check_conv(Result& result, const Context& context, int64_t prompt, int64_t channels, int64_t width,
                Random& random) {
  const Batch batch(prompt);
  const int64_t before = width - 1, per_slot = before * channels;
  const bool activated = channels % 3 != 0;
  Matrix<T> x(batch.tokens, channels, width % 3, false), out(batch.tokens, channels, 1, true);
  x.fill(random, 1);
  const Array<float> taps(width * channels), bias(channels);
  random.fill(taps.data(), taps.size(), 1);
  random.fill(bias.data(), bias.size(), 1);
  const Array<T> states(kSlots * per_slot);
  random.fill(states.data(), states.size(), 1);
  const std::vector<T> old(states.data(), states.data() + states.size());
  armllm::causal_conv(
      context.table, Type<T>::kStorage,
      {out.memory.data(), x.memory.data(), taps.data(), width % 2 == 0 ? bias.data() : nullptr, states.data(),
       batch.sequences(), channels, width, out.stride, x.stride, activated},
      batch.tokens, kSlots);
  char what[64];
  snprintf(what, sizeof what, "%lld channels, width %lld", static_cast<long long>(channels),
           static_cast<long long>(width));
  std::vector<T> wanted = old;
  for (int64_t s = 0; s < 3; ++s) {
    const int64_t first = batch.starts[s], count = batch.starts[s + 1] - first, slot = kOwn[s];
    const auto input = [&](int64_t t, int64_t c) {
      return t < 0 ? old[static_cast<size_t>(slot * per_slot + (before + t) * channels + c)]
                   : x.at(first + t, c);
    };
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < count; ++t) {
        double sum = width % 2 == 0 ? static_cast<double>(bias[c]) : 0, terms = fabs(sum);
        for (int64_t j = 0; j < width; ++j) {
          const double product =
              to_double(input(t - before + j, c)) * static_cast<double>(taps[j * channels + c]);
          sum += product;
          terms += fabs(product);
        }
        const double y = activated ? silu(sum) : sum;
        // silu is at most 1.1 times as steep as its argument; docs/kernels.md bounds the function.
        const double error = 1.1 * sum_error(static_cast<double>(width + 1)) * terms +
                             (10 * kFloatRound + 2.8e-9 * fabs(sum)) * fabs(y) + 4e-37;
        result.compare_stored(out.at(first + t, c), y,
                              error + (fabs(y) + error) * Type<T>::kRound + 2 * Type<T>::kTiny, what,
                              first + t, c);
      }
      for (int64_t j = 0; j < before; ++j) {
        wanted[static_cast<size_t>(slot * per_slot + j * channels + c)] = input(count - before + j, c);
      }
    }
  }
  if (memcmp(wanted.data(), states.data(), wanted.size() * sizeof(T)) != 0) {
    result.fail(std::string(what) + ": the states are not the last inputs");
  }
  out.check_gaps(result, what);
  ++result.cases;
}

template <class T>
Result test_conv(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t prompt : {1, 2, 3, 20}) {
    for (const int64_t channels : {1, 7, 64, 257, 300}) {
      for (const int64_t width : {2, 4, 5}) check_conv<T>(result, context, prompt, channels, width, random);
    }
  }
  check_conv<T>(result, context, 20, 33, armllm::kMaxConvWidth, random);
  return result;
}

struct Shape {
  int64_t prompt, heads, key_heads, key_dim, value_dim;
};

// One head of one sequence in float64, with a bound for its error: the magnitudes of all terms follow the
// same rule, and each token adds its roundings.
class Head {
 public:
  Head(int64_t keys, int64_t columns)
      : keys_(keys), columns_(columns), state_(static_cast<size_t>(keys * columns)), size_(state_) {}
  double& state(int64_t k, int64_t c) { return state_[static_cast<size_t>(k * columns_ + c)]; }
  double& size(int64_t k, int64_t c) { return size_[static_cast<size_t>(k * columns_ + c)]; }

  // out and terms: what the query reads, and the magnitudes of its terms.
  void step(const std::vector<double>& key, const std::vector<double>& query,
            const std::vector<double>& value, double decay, double strength, bool delta,
            std::vector<double>& out, std::vector<double>& terms) {
    for (int64_t c = 0; c < columns_; ++c) {
      double found = 0, found_size = 0;
      for (int64_t k = 0; k < keys_; ++k) {
        state(k, c) *= decay;
        size(k, c) *= decay;
        found += key[static_cast<size_t>(k)] * state(k, c);
        found_size += fabs(key[static_cast<size_t>(k)]) * size(k, c);
      }
      const double v = value[static_cast<size_t>(c)];
      const double u = strength * (v - (delta ? found : 0));
      const double u_size = fabs(strength) * (fabs(v) + (delta ? found_size : 0));
      double y = 0, y_size = 0;
      for (int64_t k = 0; k < keys_; ++k) {
        state(k, c) += key[static_cast<size_t>(k)] * u;
        size(k, c) += fabs(key[static_cast<size_t>(k)]) * u_size;
        y += query[static_cast<size_t>(k)] * state(k, c);
        y_size += fabs(query[static_cast<size_t>(k)]) * size(k, c);
      }
      out[static_cast<size_t>(c)] = y;
      terms[static_cast<size_t>(c)] = y_size;
    }
  }

 private:
  int64_t keys_, columns_;
  std::vector<double> state_, size_;
};

template <class T>
std::vector<double> row_of(const T* x, int64_t n, bool unit, double length) {
  std::vector<double> row(static_cast<size_t>(n));
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    row[static_cast<size_t>(i)] = to_double(x[i]);
    squares += row[static_cast<size_t>(i)] * row[static_cast<size_t>(i)];
  }
  if (!unit) return row;
  for (double& value : row) value *= length / sqrt(squares + static_cast<double>(1e-6f));
  return row;
}

template <class T>
void check_scan(Result& result, const Context& context, const Shape& s, bool delta, Random& random) {
  const Batch batch(s.prompt);
  // Rows of query, key and value lie side by side, as a layer has them.
  const int64_t keys = s.key_heads * s.key_dim, values = s.heads * s.value_dim,
                stride = 2 * keys + values + 3;
  const Array<T> joined(batch.tokens * stride);
  random.fill(joined.data(), joined.size(), 1);
  const T *const query = joined.data(), *const key = query + keys, *const value = key + keys;
  const int64_t blocks = (s.value_dim + armllm::kStateColumns - 1) / armllm::kStateColumns;
  const int64_t floats = armllm::state_floats(s.heads, s.key_dim, s.value_dim);
  const Array<float> log_decay(batch.tokens * s.heads), strength(batch.tokens * s.heads), skip(s.heads);
  for (int64_t i = 0; i < log_decay.size(); ++i) {
    log_decay[i] = -static_cast<float>(random.uniform() * 3);
    strength[i] = static_cast<float>(random.uniform());
  }
  random.fill(skip.data(), skip.size(), 1);
  const Array<float> states(kSlots * floats), out(batch.tokens * values);
  const auto place = [&](int64_t slot, int64_t head, int64_t k, int64_t c) {
    const int64_t block = head * blocks + c / armllm::kStateColumns;
    return slot * floats + (block * s.key_dim + k) * armllm::kStateColumns + c % armllm::kStateColumns;
  };
  for (int64_t i = 0; i < states.size(); ++i) states[i] = 0;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t k = 0; k < s.key_dim; ++k) {
        for (int64_t c = 0; c < s.value_dim; ++c) states[place(slot, h, k, c)] = random.normal();
      }
    }
  }
  const std::vector<float> old(states.data(), states.data() + states.size());
  armllm::state_scan(context.table, Type<T>::kStorage,
                     {out.data(),
                      query,
                      key,
                      value,
                      log_decay.data(),
                      strength.data(),
                      delta ? nullptr : skip.data(),
                      states.data(),
                      batch.sequences(),
                      s.heads,
                      s.key_heads,
                      s.key_dim,
                      s.value_dim,
                      stride,
                      s.key_dim,
                      stride,
                      s.key_dim,
                      stride,
                      s.value_dim,
                      delta},
                     batch.tokens, kSlots);
  char what[96];
  snprintf(what, sizeof what, "%s, %lld keys, %lld columns", delta ? "delta rule" : "selective scan",
           static_cast<long long>(s.key_dim), static_cast<long long>(s.value_dim));
  const auto n = static_cast<size_t>(s.value_dim);
  std::vector<double> y(n), terms(n);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    int64_t q = 0;
    while (q < 3 && kOwn[q] != slot) ++q;
    const int64_t first = q < 3 ? batch.starts[q] : 0, last = q < 3 ? batch.starts[q + 1] : 0;
    for (int64_t h = 0; h < s.heads; ++h) {
      Head head(s.key_dim, s.value_dim);
      for (int64_t k = 0; k < s.key_dim; ++k) {
        for (int64_t c = 0; c < s.value_dim; ++c) {
          head.state(k, c) = static_cast<double>(old[static_cast<size_t>(place(slot, h, k, c))]);
          head.size(k, c) = fabs(head.state(k, c));
        }
      }
      // Of a token: two sums over the keys, exp, unit vectors (a sum and a root each), and six roundings.
      const double of_token = 4 * sum_error(static_cast<double>(s.key_dim)) + kExpError + 12 * kFloatRound +
                              3 * kExpArgumentError;
      const int64_t shared = h / (s.heads / s.key_heads);
      for (int64_t t = first; t < last; ++t) {
        const std::vector<double> k = row_of(key + t * stride + shared * s.key_dim, s.key_dim, delta, 1);
        const std::vector<double> r = row_of(query + t * stride + shared * s.key_dim, s.key_dim, delta,
                                             1 / sqrt(static_cast<double>(s.key_dim)));
        const std::vector<double> v = row_of(value + t * stride + h * s.value_dim, s.value_dim, false, 1);
        head.step(k, r, v, exp(static_cast<double>(log_decay[t * s.heads + h])),
                  static_cast<double>(strength[t * s.heads + h]), delta, y, terms);
        const double share = static_cast<double>(t - first + 1) * of_token;
        for (int64_t c = 0; c < s.value_dim; ++c) {
          const auto i = static_cast<size_t>(c);
          const double passed = delta ? 0 : static_cast<double>(skip[h]) * v[i];
          result.compare(static_cast<double>(out[(t * s.heads + h) * s.value_dim + c]), y[i] + passed,
                         share * terms[i] + 2 * kFloatRound * fabs(passed), what, t, h * s.value_dim + c);
        }
      }
      const double share = static_cast<double>(last - first) * of_token;
      for (int64_t k = 0; k < s.key_dim; ++k) {
        for (int64_t c = 0; c < blocks * armllm::kStateColumns; ++c) {
          const bool is_padding = c >= s.value_dim;
          result.compare(static_cast<double>(states[place(slot, h, k, c)]), is_padding ? 0 : head.state(k, c),
                         is_padding ? 0 : share * head.size(k, c), what, slot, c);
        }
      }
    }
  }
  ++result.cases;
}

template <class T>
Result test_scan(const Context& context) {
  Result result;
  Random random(context.seed);
  const Shape shapes[] = {
      {1, 1, 1, 1, 1},   {9, 2, 1, 17, 33},    {3, 4, 2, 64, 64},
      {2, 2, 2, 5, 100}, {20, 2, 2, 128, 128}, {8, 3, 3, armllm::kMaxStateKeys, 16},
  };
  for (const Shape& shape : shapes) {
    for (const bool delta : {true, false}) check_scan<T>(result, context, shape, delta, random);
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& recurrence_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(causal_conv, test_conv),
      CONFORMANCE_STORAGES(state_scan, test_scan),
  };
  return tests;
}

}  // namespace conformance
