// Drivers of the ops that keep a state per sequence: checks, and items for threads.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "checks.h"
#include "ranges.h"

namespace armllm {

namespace {

constexpr int64_t kTapCost = 4;  // of an element of a convolution beside one that is copied

void check(const Sequences& sequences, int64_t tokens, int64_t num_slots, const char* of) {
  check_query_start_loc(sequences.starts, sequences.count, tokens, of);
  for (int64_t s = 0; s < sequences.count; ++s) {
    if (sequences.slots[s] < 0 || sequences.slots[s] >= num_slots) {
      throw std::invalid_argument(item("slots", s, sequences.slots[s]) + ", but states has " +
                                  std::to_string(num_slots) + " slots");
    }
  }
  std::vector<int64_t> sorted(sequences.slots, sequences.slots + sequences.count);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw std::invalid_argument("slots has " + std::to_string(*twice) +
                                " twice, but each sequence needs one of its own");
  }
}

// Sequences of many tokens make dear items, those of one token cheap ones: a range has the mean.
template <class Args>
void run(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t tokens, int64_t chunks,
         int64_t cost_of_token) {
  const int64_t sequences = args.sequences.count;
  const int64_t mean = ceil_div(tokens, std::max<int64_t>(1, sequences));
  parallel_ranges(sequences * chunks, mean * cost_of_token, kSimpleElements,
                  [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
}

}  // namespace

void causal_conv(const KernelTable& table, Storage storage, const CausalConvArgs& args, int64_t tokens,
                 int64_t num_slots) {
  check(args.sequences, tokens, num_slots, "x");
  run(ARMLLM_OF_STORAGE(table, causal_conv, storage), args, tokens, ceil_div(args.channels, kConvChannels),
      std::min(args.channels, kConvChannels) * (kTapCost + args.width));
}

void state_scan(const KernelTable& table, Storage storage, const StateScanArgs& args, int64_t tokens,
                int64_t num_slots) {
  check(args.sequences, tokens, num_slots, "query");
  run(ARMLLM_OF_STORAGE(table, state_scan, storage), args, tokens,
      args.heads * ceil_div(args.value_dim, kScanColumns),
      args.key_dim * std::min(args.value_dim, kScanColumns));
}

}  // namespace armllm
