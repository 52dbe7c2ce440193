// Rotary embedding against float64.

#include <algorithm>

#include "matrix.h"

namespace conformance {

namespace {

constexpr double u = kFloatRound;

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
              result.compare_stored(now.at(row, i), expected, bound, what, row, i);
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

}  // namespace

const std::vector<NamedTest>& rotary_tests() {
  static const std::vector<NamedTest> tests = {CONFORMANCE_STORAGES(rotary_embedding, test_rotary_embedding)};
  return tests;
}

}  // namespace conformance
