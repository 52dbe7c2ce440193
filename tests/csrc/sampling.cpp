// Greatest logits and weights of chunks, beside float64.

#include <stdio.h>

#include <algorithm>
#include <vector>

#include "support.h"

namespace conformance {

namespace {

constexpr int64_t kChunk = armllm::kLogitChunk;

// A row of logits, some of them -infinity, and the parts that a test asks for: all chunks but the first.
struct Row {
  Array<float> logits;
  int64_t chunks, begin;
  float greatest = -INFINITY;

  Row(int64_t size, Random& random)
      : logits(size), chunks((size + kChunk - 1) / kChunk), begin(chunks > 1 ? 1 : 0) {
    random.fill(logits.data(), size, 4);
    for (int64_t i = 0; i < size; i += 7) {
      if (random.integer(0, 3) == 0) logits[i] = -INFINITY;
    }
    logits[random.integer(0, size - 1)] = 9;
    for (int64_t i = 0; i < size; ++i) greatest = std::max(greatest, logits[i]);
  }
  int64_t end_of(int64_t chunk) const { return std::min(logits.size(), (chunk + 1) * kChunk); }
};

constexpr int64_t kRows[] = {1, 3, 17, 255, 256, 257, 300, 512, 1000, 1031};
constexpr float kUntouched = -12345;

Result test_maxima(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t size : kRows) {
    const Row row(size, random);
    const Array<float> out(row.chunks);
    std::fill(out.data(), out.data() + row.chunks, kUntouched);
    context.table.chunk_maxima_f32({out.data(), nullptr, row.logits.data(), size, 0, 0, 0}, row.begin,
                                   row.chunks);
    for (int64_t chunk = 0; chunk < row.chunks; ++chunk) {
      const float* x = row.logits.data();
      const float wanted =
          chunk < row.begin ? kUntouched : *std::max_element(x + chunk * kChunk, x + row.end_of(chunk));
      if (out[chunk] != wanted) result.fail("the greatest logit of a chunk is another one");
    }
    ++result.cases;
  }
  return result;
}

void check_weights(Result& result, const Context& context, const Row& row, float temperature, float least) {
  const int64_t size = row.logits.size();
  const Array<float> sums(row.chunks), alone(row.chunks), weights(size);
  std::fill(weights.data(), weights.data() + size, kUntouched);
  armllm::LogitChunksArgs args{sums.data(),     weights.data(), row.logits.data(), size, row.greatest,
                               1 / temperature, least};
  context.table.chunk_weights_f32(args, row.begin, row.chunks);
  args.out = alone.data();
  args.weights = nullptr;
  context.table.chunk_weights_f32(args, row.begin, row.chunks);
  char what[64];
  snprintf(what, sizeof what, "%lld logits, temperature %g", static_cast<long long>(size),
           static_cast<double>(temperature));
  for (int64_t i = 0; i < row.begin * kChunk; ++i) {
    result.compare(static_cast<double>(weights[i]), static_cast<double>(kUntouched), 0, what, 0, i);
  }
  for (int64_t chunk = row.begin; chunk < row.chunks; ++chunk) {
    const int64_t first = chunk * kChunk;
    double sum = 0, error = 0;
    for (int64_t i = first; i < row.end_of(chunk); ++i) {
      const double below = (static_cast<double>(row.logits[i]) - static_cast<double>(row.greatest)) /
                           static_cast<double>(temperature);
      const double weight = row.logits[i] < least ? 0 : exp(below);
      // The difference, the reciprocal and the product round; exp.h bounds the rest.
      const double bound =
          weight == 0 ? 0
                      : weight * (kExpError + fabs(below) * (kExpArgumentError + 3 * kFloatRound)) + 4e-38;
      result.compare(static_cast<double>(weights[i]), weight, bound, what, chunk, i);
      sum += weight;
      error += bound;
    }
    const auto n = static_cast<double>(row.end_of(chunk) - first);
    result.compare(static_cast<double>(sums[chunk]), sum, error + sum_error(n) * sum, what, chunk, -1);
    if (sums[chunk] != alone[chunk]) result.fail("a sum depends on whether weights are wanted");
  }
  ++result.cases;
}

Result test_weights(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t size : kRows) {
    const Row row(size, random);
    for (const float temperature : {1.0f, 0.01f, 0.7f, 30.0f}) {
      for (const float least : {-INFINITY, 1.5f, 9.0f}) {
        check_weights(result, context, row, temperature, least);
      }
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& sampling_tests() {
  static const std::vector<NamedTest> tests = {
      {"chunk_maxima_f32", test_maxima},
      {"chunk_weights_f32", test_weights},
  };
  return tests;
}

}  // namespace conformance
