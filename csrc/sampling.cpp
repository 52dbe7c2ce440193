// The driver of sampling: a thread does a row. Kernels read all logits, for the greatest and the weights of
// chunks; what is chosen of these is few, and is chosen here, in double.

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "product.h"
#include "ranges.h"
#include "workspace.h"

namespace armllm {

namespace {

// How far below the greatest logit, in temperatures, most of the weight is looked for.
constexpr double kReaches[] = {4, 10, 20};
constexpr int64_t kCostOfLogit = 8;  // beside an element that is only copied
constexpr float kLeastTemperature = 1e-30f, kGreatestTemperature = 1e30f;

void check(const SampleArgs& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    if (!(a.temperatures[row] >= kLeastTemperature && a.temperatures[row] <= kGreatestTemperature)) {
      throw std::invalid_argument("temperatures[" + std::to_string(row) + "] is " +
                                  std::to_string(a.temperatures[row]) +
                                  ", expected a number from 1e-30 to 1e30");
    }
    if (!(a.uniforms[row] >= 0 && a.uniforms[row] < 1)) {
      throw std::invalid_argument("uniforms[" + std::to_string(row) + "] is " +
                                  std::to_string(a.uniforms[row]) + ", expected a number in [0, 1)");
    }
  }
}

// One row, and the scratch memory for it.
class Row {
 public:
  static int64_t scratch_bytes(int64_t vocab_size) {
    // maxima, sums, the weights of a chunk, candidates and one that is written in vain
    return (2 * ceil_div(vocab_size, kLogitChunk) + kLogitChunk + vocab_size + 1) * 4 / 64 * 64 + 64;
  }

  Row(const KernelTable& table, const SampleArgs& a, int64_t row, void* scratch)
      : table_(table),
        logits_(a.logits + row * a.logits_stride),
        size_(a.vocab_size),
        chunks_(ceil_div(size_, kLogitChunk)),
        maxima_(static_cast<float*>(scratch)),
        sums_(maxima_ + chunks_),
        weights_(sums_ + chunks_),
        candidates_(weights_ + kLogitChunk),
        temperature_(static_cast<double>(a.temperatures[row])) {
    table_.chunk_maxima_f32({maxima_, nullptr, logits_, size_, 0, 0, 0}, 0, chunks_);
    greatest_ = *std::max_element(maxima_, maxima_ + chunks_);
    is_sound_ = std::isfinite(greatest_) &&
                std::none_of(maxima_, maxima_ + chunks_, [](float x) { return std::isnan(x); });
  }

  // Whether the row is as it must be, as far as its maxima show: what is not has no order.
  bool is_sound() const { return is_sound_; }

  // The least logit that is kept.
  float least(int64_t top_k, double top_p, double min_p) {
    float least = -INFINITY;
    if (min_p > 0) least = std::min(greatest_, below_greatest(-std::log(min_p)));
    int64_t count = -1;
    if (top_k > 0 && top_k < size_) {
      count = likeliest(top_k);
      if (count == 0) return least;
      least = std::max(least, *std::min_element(candidates_, candidates_ + count));
    }
    if (top_p >= 1) return least;
    double total;
    if (count >= 0) {
      const auto is_left = [least](float x) { return x >= least; };
      count = std::partition(candidates_, candidates_ + count, is_left) - candidates_;
      total = weight(candidates_, count);
    } else {
      total = weight(logits_, size_, least);
      count = most(least, top_p * total);
    }
    return count == 0 ? least : std::max(least, last_of_nucleus(count, top_p * total));
  }

  int64_t draw(float least, double uniform) {
    const double target = uniform * weight(logits_, size_, least);
    double before = 0;
    const int64_t chunk = first_beyond(sums_, chunks_, target, before);
    const float* logits = logits_ + chunk * kLogitChunk;
    const int64_t size = std::min(kLogitChunk, size_ - chunk * kLogitChunk);
    table_.chunk_weights_f32({sums_, weights_, logits, size, greatest_, inverse_temperature(), least}, 0, 1);
    return chunk * kLogitChunk + first_beyond(weights_, size, target, before);
  }

 private:
  float inverse_temperature() const { return static_cast<float>(1 / temperature_); }
  float below_greatest(double distance) const {
    return static_cast<float>(static_cast<double>(greatest_) - distance * temperature_);
  }

  // The sum of the weights of some logits; those of chunks are in sums_.
  double weight(const float* logits, int64_t size, float least = -INFINITY) {
    const int64_t chunks = ceil_div(size, kLogitChunk);
    table_.chunk_weights_f32({sums_, nullptr, logits, size, greatest_, inverse_temperature(), least}, 0,
                             chunks);
    double sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += static_cast<double>(sums_[c]);
    return sum;
  }

  // The first index at which the sum, from `before` on, exceeds the target, else the last of any weight;
  // `before` becomes the sum of those before it.
  static int64_t first_beyond(const float* weights, int64_t size, double target, double& before) {
    int64_t last = 0;
    double sum = before;
    for (int64_t i = 0; i < size; ++i) {
      if (weights[i] == 0) continue;
      last = i;
      before = sum;
      sum += static_cast<double>(weights[i]);
      if (sum > target) break;
    }
    return last;
  }

  // Logits of `bound` or more become the candidates; returns how many they are.
  int64_t collect(float bound) {
    int64_t count = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      if (maxima_[chunk] < bound) continue;
      const int64_t end = std::min(size_, (chunk + 1) * kLogitChunk);
      for (int64_t i = chunk * kLogitChunk; i < end; ++i) {
        candidates_[count] = logits_[i];
        count += logits_[i] >= bound ? 1 : 0;
      }
    }
    return count;
  }

  // The `count` greatest logits become the candidates. As many chunks have a maximum of the bound or more.
  int64_t likeliest(int64_t count) {
    float bound = -INFINITY;
    if (count <= chunks_) {
      std::copy(maxima_, maxima_ + chunks_, sums_);
      std::nth_element(sums_, sums_ + count - 1, sums_ + chunks_, std::greater<>());
      bound = sums_[count - 1];
    }
    const int64_t found = collect(bound);
    if (found <= count) return found;
    std::nth_element(candidates_, candidates_ + count - 1, candidates_ + found, std::greater<>());
    return count;
  }

  // The likeliest tokens, enough to make up the weight, become the candidates: in a trained model few.
  int64_t most(float least, double wanted) {
    for (const double reach : kReaches) {
      const float bound = below_greatest(reach);
      if (bound <= least) break;
      const int64_t count = collect(bound);
      if (weight(candidates_, count) >= wanted) return count;
    }
    return collect(least);
  }

  // A candidate is kept if those before it, from the greatest on, do not make up the weight yet.
  float last_of_nucleus(int64_t count, double wanted) {
    int64_t begin = 0, end = count;
    double before = 0;
    while (end - begin > 1) {
      const int64_t middle = begin + (end - begin) / 2;
      std::nth_element(candidates_ + begin, candidates_ + middle, candidates_ + end, std::greater<>());
      const double with = before + weight(candidates_ + begin, middle - begin);
      if (with >= wanted) {
        end = middle;
      } else {
        before = with;
        begin = middle;
      }
    }
    return candidates_[begin];
  }

  const KernelTable& table_;
  const float* logits_;
  int64_t size_, chunks_;
  float *maxima_, *sums_, *weights_, *candidates_;
  double temperature_;
  float greatest_;
  bool is_sound_;
};

}  // namespace

void sample(const KernelTable& table, const SampleArgs& args) {
  check(args);
  thread_local Workspace workspace;
  const int threads = num_threads();
  const int64_t bytes = Row::scratch_bytes(args.vocab_size);
  const ThreadScratch scratch{workspace.reserve(threads * bytes), bytes};
  parallel_ranges(
      args.rows, kCostOfLogit * args.vocab_size, kSimpleElements,
      [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
          args.token_ids[i] = 0;
          Row row(table, args, i, scratch.of(thread));
          if (!row.is_sound()) continue;
          const float least = row.least(args.top_k[i], args.top_p[i], args.min_p[i]);
          args.token_ids[i] = row.draw(least, args.uniforms[i]);
        }
      },
      threads);
}

}  // namespace armllm
