// Low-rank adapters of several slots, beside float64: shrink and expand by one call of the driver.

#include <stdio.h>

#include <numeric>
#include <type_traits>
#include <vector>

#include "matrix.h"
#include "support.h"

namespace conformance {

namespace {

struct Shape {
  int64_t rows, in_features, max_rank;
  std::vector<int64_t> widths;  // of the parts
};

// A row's product with a row of A, and the size of what is added up.
struct Low {
  double sum = 0, terms = 0;
};

template <class T>
struct Adapters {
  const Shape& shape;
  int64_t parts, columns;
  static constexpr int64_t kSlots = 3;
  Array<T> a, b;
  Array<int64_t> ranks, ends, slots;
  Array<float> norms, bias;

  Adapters(const Shape& s, float size, bool dora, Random& random)
      : shape(s),
        parts(static_cast<int64_t>(s.widths.size())),
        columns(std::accumulate(s.widths.begin(), s.widths.end(), int64_t{0})),
        a(kSlots * parts * s.max_rank * s.in_features),
        b(kSlots * s.max_rank * columns),
        ranks(kSlots * parts),
        ends(parts),
        slots(s.rows),
        norms(dora ? kSlots * columns : 0),
        bias(dora ? columns : 0) {
    random.fill(a.data(), a.size(), size);
    random.fill(b.data(), b.size(), 1);
    random.fill(norms.data(), norms.size(), 1);
    random.fill(bias.data(), bias.size(), 1);
    for (int64_t i = 0; i < ranks.size(); ++i) ranks[i] = random.integer(0, s.max_rank);
    ranks[0] = s.max_rank;
    for (int64_t t = 0; t < s.rows; ++t) slots[t] = random.integer(-1, kSlots - 1);
    // Two slots have many rows, so that tiles of all kinds occur.
    for (int64_t t = 0; t < s.rows; t += 2) slots[t] = t % 4 == 0 ? 0 : 2;
    for (int64_t p = 0, end = 0; p < parts; ++p) ends[p] = end += s.widths[static_cast<size_t>(p)];
  }

  // Of one row of x, [parts, max_rank].
  std::vector<Low> lows(const T* x, int64_t row) const {
    std::vector<Low> found(static_cast<size_t>(parts * shape.max_rank));
    const int64_t slot = slots[row];
    for (int64_t part = 0; slot >= 0 && part < parts; ++part) {
      for (int64_t r = 0; r < ranks[slot * parts + part]; ++r) {
        const T* const of_a = &a[((slot * parts + part) * shape.max_rank + r) * shape.in_features];
        Low& low = found[static_cast<size_t>(part * shape.max_rank + r)];
        for (int64_t k = 0; k < shape.in_features; ++k) {
          const double product = to_double(of_a[k]) * to_double(x[k]);
          low.sum += product;
          low.terms += fabs(product);
        }
      }
    }
    return found;
  }

  // y[row, column] before it is rounded, the size of what is added up, and the error of what is rounded on
  // the way.
  void expect(const std::vector<Low>& lows, double before, int64_t row, int64_t column, double& sum,
              double& terms, double& rounded) const {
    sum = before;
    terms = rounded = 0;
    const int64_t slot = slots[row];
    int64_t part = 0;
    while (column >= ends[part]) ++part;
    const int64_t start = part == 0 ? 0 : ends[part - 1], width = ends[part] - start;
    const int64_t rank = slot < 0 ? 0 : ranks[slot * parts + part];
    if (rank == 0) return;
    if (norms.size() > 0) {
      const auto norm = static_cast<double>(norms[slot * columns + column]);
      const double plain = before - static_cast<double>(bias[column]);
      sum += plain * norm;
      terms = (fabs(before) + fabs(static_cast<double>(bias[column]))) * fabs(norm) + fabs(before);
      rounded = fabs(sum) * Type<T>::kRound;  // it is stored once more
    }
    for (int64_t r = 0; r < rank; ++r) {
      const Low& low = lows[static_cast<size_t>(part * shape.max_rank + r)];
      const double of_b =
          to_double(b[(slot * columns + start) * shape.max_rank + r * width + column - start]);
      sum += low.sum * of_b;
      terms += low.terms * fabs(of_b);
      if (std::is_same_v<T, bfloat16>) rounded += fabs(low.sum * of_b) * Type<T>::kRound;  // a bfloat16
    }
    terms += fabs(before);
  }
};

template <class T>
void check(Result& result, const Context& context, const Shape& shape, float size, bool dora,
           Random& random) {
  const Adapters<T> adapters(shape, size, dora, random);
  const int64_t n = shape.in_features, columns = adapters.columns;
  Matrix<T> x(shape.rows, n, shape.rows % 3, false), y(shape.rows, columns, 1 + shape.rows % 2, true);
  x.fill(random, 1);
  y.fill(random, 2);
  std::vector<double> before;
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) before.push_back(to_double(y.at(r, c)));
  }
  armllm::add_lora(
      context.table, Type<T>::kStorage,
      {y.memory.data(), x.memory.data(), adapters.a.data(), adapters.b.data(), adapters.ranks.data(),
       adapters.ends.data(), dora ? adapters.norms.data() : nullptr, dora ? adapters.bias.data() : nullptr,
       Adapters<T>::kSlots, adapters.parts, shape.max_rank, n, columns, y.stride, x.stride},
      adapters.slots.data(), shape.rows);
  char what[96];
  snprintf(what, sizeof what, "%lld features, %lld parts, rank %lld%s", static_cast<long long>(n),
           static_cast<long long>(adapters.parts), static_cast<long long>(shape.max_rank),
           dora ? ", DoRA" : "");
  for (int64_t r = 0; r < shape.rows; ++r) {
    const std::vector<Low> lows = adapters.lows(&x.at(r, 0), r);
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0, terms = 0, rounded = 0;
      adapters.expect(lows, before[static_cast<size_t>(r * columns + c)], r, c, sum, terms, rounded);
      // One sum runs over the features, one over the ranks, where BFDOT rounds to odd; the norm adds three
      // roundings.
      const double error = (2 * sum_error(static_cast<double>(n)) +
                            2 * sum_error(static_cast<double>(shape.max_rank)) + 4 * kFloatRound) *
                               terms +
                           rounded * 1.01;
      const double stored = terms == 0 ? 0 : (fabs(sum) + error) * Type<T>::kRound + 2 * Type<T>::kTiny;
      result.compare_stored(y.at(r, c), sum, error + stored, what, r, c);
    }
  }
  y.check_gaps(result, what);
  ++result.cases;
}

template <class T>
Result test_lora(const Context& context) {
  Result result;
  Random random(context.seed);
  const Shape shapes[] = {
      {1, 1, 1, {1}},           {3, 2, 2, {5, 3}},         {9, 33, 5, {17, 0, 40}}, {40, 77, 9, {70}},
      {70, 300, 4, {264, 130}}, {6, 160, 17, {65, 64, 3}}, {0, 8, 4, {8}},          {90, 40, 67, {96, 33}},
      {5, 8, 513, {40}},  // more ranks than a tile of AMX takes, or all of them
  };
  for (const Shape& shape : shapes) {
    for (const float size : {1.0f, 0x1p-9f}) {
      check<T>(result, context, shape, size, false, random);
      check<T>(result, context, shape, size, true, random);
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& lora_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(lora_shrink, test_lora),
      CONFORMANCE_STORAGES(lora_expand, test_lora),
  };
  return tests;
}

}  // namespace conformance
