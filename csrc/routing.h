// Which tokens go to which expert, sorted for products that serve all tokens of an expert.

#pragma once

#include <stdint.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/ops.h"

namespace armllm {

// The pairs of one expert are rows [first, first + rows) of the sorted ones.
struct Group {
  int64_t expert, first, rows;
};

// Pairs in the order of experts, those of an expert in the order of tokens.
struct Routing {
  std::vector<Group> groups;      // of experts that have tokens
  std::vector<int32_t> tokens;    // of each row
  std::vector<int32_t> rows;      // [tokens, per_token]: which row; -1: none
  std::vector<int32_t> group_of;  // each row's index in `groups`
};

inline Routing sort_by_expert(const MoeArgs& args) {
  const int64_t pairs = args.tokens * args.per_token;
  if (pairs > INT32_MAX) throw std::invalid_argument("expert_ids has more than 2^31 - 1 elements");
  std::vector<int64_t> next(static_cast<size_t>(args.num_experts));
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t expert = args.expert_ids[i];
    if (expert < -1 || expert >= args.num_experts) {
      throw std::invalid_argument("expert_ids[" + std::to_string(i / args.per_token) + ", " +
                                  std::to_string(i % args.per_token) + "] is " + std::to_string(expert) +
                                  ", expected an expert below " + std::to_string(args.num_experts) +
                                  ", or -1 for none");
    }
    if (expert >= 0) ++next[static_cast<size_t>(expert)];
  }
  Routing routing;
  int64_t first = 0;
  for (int64_t expert = 0; expert < args.num_experts; ++expert) {
    const int64_t count = next[static_cast<size_t>(expert)];
    if (count > 0) routing.groups.push_back({expert, first, count});
    next[static_cast<size_t>(expert)] = first;
    first += count;
  }
  routing.tokens.resize(static_cast<size_t>(first));
  routing.rows.assign(static_cast<size_t>(pairs), -1);
  for (int64_t i = 0; i < pairs; ++i) {
    if (args.expert_ids[i] < 0) continue;
    const int64_t row = next[static_cast<size_t>(args.expert_ids[i])]++;
    routing.tokens[static_cast<size_t>(row)] = static_cast<int32_t>(i / args.per_token);
    routing.rows[static_cast<size_t>(i)] = static_cast<int32_t>(row);
  }
  routing.group_of.resize(static_cast<size_t>(first));
  for (size_t g = 0; g < routing.groups.size(); ++g) {
    const Group& group = routing.groups[g];
    std::fill_n(routing.group_of.begin() + group.first, group.rows, static_cast<int32_t>(g));
  }
  return routing;
}

// Groups [begin, end) of a routing, which are rows [first, first + rows) of the sorted ones.
struct Batch {
  size_t begin, end;
  int64_t first, rows;
};

// Experts whose rows, `row_bytes` each, lie in memory together: no more than the last caches hold, but one
// expert at least.
inline std::vector<Batch> batches(const Routing& routing, int64_t row_bytes) {
  constexpr int64_t kBatchBytes = 16 * 1024 * 1024;
  std::vector<Batch> all;
  for (size_t g = 0; g < routing.groups.size(); ++g) {
    const Group& group = routing.groups[g];
    if (all.empty() || (all.back().rows + group.rows) * row_bytes > kBatchBytes) {
      all.push_back({g, g, group.first, 0});
    }
    all.back().end = g + 1;
    all.back().rows += group.rows;
  }
  return all;
}

}  // namespace armllm
