// The driver of a mixture of experts. Pairs of a token and an expert are sorted by expert, so that each
// product serves all tokens of its expert; whatever lies between the products stays in the workspace, and
// none of it is written twice.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "product.h"
#include "workspace.h"

namespace armllm {

namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

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

Routing sort_by_expert(const MoeArgs& args) {
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

// One of the two products of every expert that has tokens.
class GroupedProduct {
 public:
  GroupedProduct(const MatmulKernel& kernel, const WeightShape& shape, const std::vector<Group>& groups,
                 const void* const* weights)
      : kernel_(kernel), groups_(groups) {
    for (const Group& group : groups) {
      MatmulArgs args{};
      args.weight = weights[group.expert];
      args.shape = shape;
      args.rows = group.rows;
      args.out_stride = shape.out_features;
      calls_.push_back(args);
      bytes_ += aligned(kernel.activation_bytes(shape, group.rows));
    }
  }
  int64_t activation_bytes() const { return bytes_; }
  int64_t out_bytes(int64_t rows) const {
    return calls_.empty() ? 0 : rows * calls_[0].shape.out_features * static_cast<int64_t>(sizeof(float));
  }
  void place(char* activations, float* out) {
    for (size_t g = 0; g < calls_.size(); ++g) {
      calls_[g].activations = activations;
      calls_[g].out = out + groups_[g].first * calls_[g].out_stride;
      activations += aligned(kernel_.activation_bytes(calls_[g].shape, calls_[g].rows));
    }
  }
  // Calls body(args, begin, end) for the rows [begin, end) of `args` that the sorted rows [from, to) are.
  template <class Body>
  void for_rows(const Routing& routing, int64_t from, int64_t to, const Body& body) const {
    while (from < to) {
      const auto g = static_cast<size_t>(routing.group_of[static_cast<size_t>(from)]);
      const Group& group = groups_[g];
      const int64_t end = std::min(to, group.first + group.rows);
      body(calls_[g], group, from - group.first, end - group.first);
      from = end;
    }
  }
  // Every expert has its share of the items, a busy one as many as keep all threads busy.
  void run() const {
    const int threads = num_threads();
    const int64_t wanted = threads == 1 ? 1 : 4 * static_cast<int64_t>(threads);
    int64_t all_tiles = 0;
    for (const MatmulArgs& call : calls_) all_tiles += kernel_.tiles(call.shape, call.rows);
    std::vector<ProductItems> items;
    std::vector<int64_t> ends;
    for (const MatmulArgs& call : calls_) {
      const int64_t tiles = kernel_.tiles(call.shape, call.rows);
      items.emplace_back(kernel_, call.shape, call.rows, ceil_div(wanted * tiles, all_tiles));
      ends.push_back((ends.empty() ? 0 : ends.back()) + items.back().count());
    }
    parallel_for(ends.empty() ? 0 : ends.back(), 0, [&](int64_t item, int) {
      const auto g = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), item) - ends.begin());
      items[g].run(calls_[g], item - (g == 0 ? 0 : ends[g - 1]));
    });
  }

 private:
  const MatmulKernel& kernel_;
  const std::vector<Group>& groups_;
  std::vector<MatmulArgs> calls_;
  int64_t bytes_ = 0;
};

Activation* gated(const KernelTable& table, Function function) {
  switch (function) {
    case Function::silu_and_mul:
      return table.silu_and_mul_f32;
    case Function::gelu_and_mul:
      return table.gelu_and_mul_f32;
    case Function::gelu_tanh_and_mul:
      return table.gelu_tanh_and_mul_f32;
    default:
      throw std::invalid_argument("function is not silu_and_mul, gelu_and_mul or gelu_tanh_and_mul");
  }
}

// Splits rows into ranges of about `elements` elements.
template <class Body>
void in_ranges(int64_t rows, int64_t width, int64_t elements, const Body& body) {
  const int64_t each = std::max<int64_t>(1, elements / std::max<int64_t>(1, width));
  parallel_for(ceil_div(rows, each), 0, [&](int64_t item, int thread) {
    body(item * each, std::min(rows, (item + 1) * each), thread);
  });
}

}  // namespace

void moe(const KernelTable& table, int bits, Storage storage, Function function, const MoeArgs& args) {
  if (bits != 0) {
    check_weight(bits, args.gate_up_shape);
    check_weight(bits, args.down_shape);
  }
  constexpr int64_t kElements = 8192;  // worth a thread's while
  const int64_t hidden = args.gate_up_shape.in_features, width = args.down_shape.in_features;
  const MatmulKernel& kernel =
      bits == 0 ? *ARMLLM_OF_STORAGE(table, dense_matmul, storage) : matmul_kernel(table, bits, Storage::f32);
  Activation* activate = gated(table, function);
  const Routing routing = sort_by_expert(args);
  const auto rows = static_cast<int64_t>(routing.tokens.size());
  GroupedProduct gate_up(kernel, args.gate_up_shape, routing.groups, args.gate_up);
  GroupedProduct down(kernel, args.down_shape, routing.groups, args.down);

  const int64_t activation_bytes = std::max(gate_up.activation_bytes(), down.activation_bytes());
  const int64_t out_bytes = aligned(std::max(gate_up.out_bytes(rows), down.out_bytes(rows)));
  const int64_t activated_bytes = aligned(width * static_cast<int64_t>(sizeof(float)));
  const int64_t q_bytes = bits == 0 ? 0 : aligned(args.tokens * hidden);
  const int64_t scale_bytes = bits == 0 ? 0 : aligned(args.tokens * static_cast<int64_t>(sizeof(float)));
  thread_local Workspace workspace;
  char* memory = workspace.reserve(activation_bytes + out_bytes + q_bytes + scale_bytes +
                                   num_threads() * activated_bytes);
  char* const activations = memory;
  float* const products = reinterpret_cast<float*>(activations + activation_bytes);
  int8_t* const q = reinterpret_cast<int8_t*>(reinterpret_cast<char*>(products) + out_bytes);
  float* const scales = reinterpret_cast<float*>(q + q_bytes);
  char* const activated = reinterpret_cast<char*>(scales) + scale_bytes;

  // Each token is rounded once, however many experts it goes to.
  GatherArgs from{args.x, nullptr, nullptr, args.x_stride};
  if (bits != 0) {
    quantize_rows(table, storage, {q, scales, nullptr, args.x, args.tokens, hidden, hidden, args.x_stride});
    from = {q, scales, nullptr, hidden};
  }
  gate_up.place(activations, products);
  in_ranges(rows, hidden, kElements, [&](int64_t begin, int64_t end, int) {
    gate_up.for_rows(routing, begin, end,
                     [&](const MatmulArgs& call, const Group& group, int64_t first, int64_t last) {
                       GatherArgs gather = from;
                       gather.ids = routing.tokens.data() + group.first;
                       kernel.gather(call, gather, first, last);
                     });
  });
  gate_up.run();

  // A row is activated in memory of the thread's own, and from there rounded into its place.
  down.place(activations, products);
  in_ranges(rows, 2 * width, kElements, [&](int64_t begin, int64_t end, int thread) {
    float* const row = reinterpret_cast<float*>(activated + thread * activated_bytes);
    down.for_rows(routing, begin, end,
                  [&](const MatmulArgs& given, const Group& group, int64_t first, int64_t last) {
                    MatmulArgs call = given;
                    call.x = row;
                    call.x_stride = 0;
                    for (int64_t r = first; r < last; ++r) {
                      activate({row, products + (group.first + r) * 2 * width, 1, width, width, 2 * width}, 0,
                               ceil_div(width, kActivationChunk));
                      kernel.quantize(call, r, r + 1);
                    }
                  });
  });
  down.run();

  const WeightedSumArgs sum{args.out,
                            products,
                            args.expert_weights,
                            routing.rows.data(),
                            args.tokens,
                            args.per_token,
                            hidden,
                            args.out_stride,
                            hidden,
                            args.per_token};
  WeightedSum* add = ARMLLM_OF_STORAGE(table, weighted_sum, storage);
  in_ranges(args.tokens, hidden * std::max<int64_t>(1, args.per_token), 2 * kElements,
            [&](int64_t begin, int64_t end, int) { add(sum, begin, end); });
}

}  // namespace armllm
