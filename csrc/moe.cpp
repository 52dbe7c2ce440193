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
#include "ranges.h"
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

// Groups [begin, end) of a routing, which are rows [first, first + rows) of the sorted ones.
struct Batch {
  size_t begin, end;
  int64_t first, rows;
};

// Experts whose rows, `row_bytes` each, lie in memory together: no more than the last caches hold, but one
// expert at least.
std::vector<Batch> batches(const Routing& routing, int64_t row_bytes) {
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

// One of the two products of every expert of a batch.
class GroupedProduct {
 public:
  GroupedProduct(const MatmulKernel& kernel, const WeightShape& shape, const Routing& routing,
                 const Batch& batch, const void* const* weights)
      : kernel_(kernel), routing_(routing), batch_(batch) {
    for (size_t g = batch.begin; g < batch.end; ++g) {
      const Group& group = routing.groups[g];
      MatmulArgs args{};
      args.weight = weights[group.expert];
      args.shape = shape;
      args.rows = group.rows;
      args.out_stride = shape.out_features;
      args.float_rows = true;  // unless they are quantised, see gather
      calls_.push_back(args);
      bytes_ += aligned(kernel.activation_bytes(shape, group.rows));
      scratch_bytes_ = std::max(scratch_bytes_, kernel.scratch_bytes(shape, group.rows));
    }
  }
  int64_t activation_bytes() const { return bytes_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // `out` has the rows of the batch.
  void place(char* activations, float* out) {
    for (MatmulArgs& call : calls_) {
      call.activations = activations;
      call.out = out;
      activations += aligned(kernel_.activation_bytes(call.shape, call.rows));
      out += call.rows * call.out_stride;
    }
  }
  // Calls body(args, group, begin, end) for the rows [begin, end) of `args` that rows [from, to) of the batch
  // are.
  template <class Body>
  void for_rows(int64_t from, int64_t to, const Body& body) const {
    from += batch_.first;
    to += batch_.first;
    while (from < to) {
      const auto g = static_cast<size_t>(routing_.group_of[static_cast<size_t>(from)]);
      const Group& group = routing_.groups[g];
      const int64_t end = std::min(to, group.first + group.rows);
      body(calls_[g - batch_.begin], group, from - group.first, end - group.first);
      from = end;
    }
  }
  // Every expert has its share of the items, a busy one as many as keep all threads busy.
  void run(const ThreadScratch& scratch, int threads) const {
    const int64_t wanted = wanted_items(threads);
    int64_t all_tiles = 0;
    for (const MatmulArgs& call : calls_) all_tiles += kernel_.tiles(call.shape, call.rows);
    std::vector<ProductItems> items;
    std::vector<int64_t> ends;
    for (const MatmulArgs& call : calls_) {
      const int64_t tiles = kernel_.tiles(call.shape, call.rows);
      items.emplace_back(kernel_, call.shape, call.rows, ceil_div(wanted * tiles, all_tiles));
      ends.push_back((ends.empty() ? 0 : ends.back()) + items.back().count());
    }
    parallel_for(ends.empty() ? 0 : ends.back(), threads, [&](int64_t item, int thread) {
      const auto g = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), item) - ends.begin());
      items[g].run(calls_[g], item - (g == 0 ? 0 : ends[g - 1]), scratch.of(thread));
    });
  }

 private:
  const MatmulKernel& kernel_;
  const Routing& routing_;
  Batch batch_;
  std::vector<MatmulArgs> calls_;
  int64_t bytes_ = 0, scratch_bytes_ = 0;
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

void add(float* row, const float* bias, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] += bias[i];
}

// Turns gate and up so that silu(gate) * up is the clamped function: with h = alpha * gate,
// gate * sigmoid(alpha * gate) * (up + 1) = silu(h) * (up + 1) / alpha. A NaN stays one.
void clamp(float* row, int64_t width, float alpha, float limit) {
  float* const up = row + width;
  const float inverse = 1 / alpha;
  for (int64_t i = 0; i < width; ++i) {
    const float g = row[i] > limit ? limit : row[i];
    const float below = up[i] > limit ? limit : up[i];
    row[i] = g * alpha;
    up[i] = ((below < -limit ? -limit : below) + 1) * inverse;
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size) - its steps share the memory that it divides at the start
void moe(const KernelTable& table, WeightForm form, Storage storage, Function function, const MoeArgs& args) {
  const int bits = bits_of(form);
  if (bits != 0) {
    check_weight(bits, args.gate_up_shape);
    check_weight(bits, args.down_shape);
  }
  const int64_t hidden = args.gate_up_shape.in_features, width = args.down_shape.in_features;
  const MatmulKernel& kernel = matmul_kernel(table, form, bits == 0 ? storage : Storage::f32);
  const bool clamped = args.alpha != 0;
  Activation* activate = clamped ? table.silu_and_mul_f32 : gated(table, function);
  const Routing routing = sort_by_expert(args);
  const auto rows = static_cast<int64_t>(routing.tokens.size());
  const int64_t product_row_bytes = 2 * width * static_cast<int64_t>(sizeof(float));
  int64_t activation_bytes = 0, product_bytes = 0, scratch_bytes = 0;
  struct Products {
    Batch batch;
    GroupedProduct gate_up, down;
  };
  std::vector<Products> all;
  for (const Batch& batch : batches(routing, product_row_bytes)) {
    all.push_back({batch,
                   {kernel, args.gate_up_shape, routing, batch, args.gate_up},
                   {kernel, args.down_shape, routing, batch, args.down}});
    activation_bytes = std::max(
        {activation_bytes, all.back().gate_up.activation_bytes(), all.back().down.activation_bytes()});
    product_bytes = std::max(product_bytes, aligned(batch.rows * product_row_bytes));
    scratch_bytes =
        std::max({scratch_bytes, all.back().gate_up.scratch_bytes(), all.back().down.scratch_bytes()});
  }
  const int64_t result_bytes = aligned(rows * hidden * static_cast<int64_t>(sizeof(float)));
  const int64_t activated_bytes = aligned(width * static_cast<int64_t>(sizeof(float)));
  const int64_t q_bytes = bits == 0 ? 0 : aligned(args.tokens * hidden);
  const int64_t scale_bytes = bits == 0 ? 0 : aligned(args.tokens * static_cast<int64_t>(sizeof(float)));
  thread_local Workspace workspace;
  const int threads = num_threads();
  char* memory = workspace.reserve(activation_bytes + product_bytes + result_bytes + q_bytes + scale_bytes +
                                   threads * (activated_bytes + scratch_bytes));
  char* const activations = memory;
  float* const products = reinterpret_cast<float*>(activations + activation_bytes);
  float* const results = reinterpret_cast<float*>(activations + activation_bytes + product_bytes);
  int8_t* const q = reinterpret_cast<int8_t*>(reinterpret_cast<char*>(results) + result_bytes);
  float* const scales = reinterpret_cast<float*>(q + q_bytes);
  const ThreadScratch activated{reinterpret_cast<char*>(scales) + scale_bytes, activated_bytes};
  const ThreadScratch scratch{activated.first + threads * activated_bytes, scratch_bytes};

  // Each token is rounded once, however many experts it goes to.
  GatherArgs from{args.x, nullptr, nullptr, args.x_stride};
  if (bits != 0) {
    quantize_rows(table, storage, {q, scales, nullptr, args.x, args.tokens, hidden, hidden, args.x_stride});
    from = {q, scales, nullptr, hidden};
  }
  for (auto& [batch, gate_up, down] : all) {
    const int64_t first_row = batch.first;
    const GroupedProduct& up = gate_up;
    gate_up.place(activations, products);
    parallel_ranges(batch.rows, hidden, kProductElements, [&](int64_t begin, int64_t end, int) {
      up.for_rows(begin, end, [&](const MatmulArgs& call, const Group& group, int64_t first, int64_t last) {
        GatherArgs gather = from;
        gather.ids = routing.tokens.data() + group.first;
        kernel.gather(call, gather, first, last);
      });
    });
    gate_up.run(scratch, threads);

    // A row is activated in memory of the thread's own, and from there rounded into its place.
    const GroupedProduct& second = down;
    down.place(activations, results + first_row * hidden);
    parallel_ranges(
        batch.rows, 2 * width, kProductElements,
        [&](int64_t begin, int64_t end, int thread) {
          float* const row = static_cast<float*>(activated.of(thread));
          second.for_rows(
              begin, end, [&](const MatmulArgs& shared, const Group& group, int64_t first, int64_t last) {
                float* product = products + (group.first - first_row + first) * 2 * width;
                MatmulArgs call = shared;
                call.x = row;
                call.x_stride = 0;
                for (int64_t r = first; r < last; ++r, product += 2 * width) {
                  if (args.gate_up_bias != nullptr) {
                    add(product, args.gate_up_bias + group.expert * 2 * width, 2 * width);
                  }
                  if (clamped) clamp(product, width, args.alpha, args.limit);
                  activate({row, product, 1, width, width, 2 * width}, 0, ceil_div(width, kActivationChunk));
                  kernel.quantize(call, r, r + 1);
                }
              });
        },
        threads);
    down.run(scratch, threads);
    if (args.down_bias == nullptr) continue;
    parallel_ranges(batch.rows, hidden, kSimpleElements, [&](int64_t begin, int64_t end, int) {
      second.for_rows(begin, end, [&](const MatmulArgs&, const Group& group, int64_t first, int64_t last) {
        for (int64_t r = group.first + first; r < group.first + last; ++r) {
          add(results + r * hidden, args.down_bias + group.expert * hidden, hidden);
        }
      });
    });
  }

  const WeightedSumArgs sum{
      args.out,        results, args.expert_weights, routing.rows.data(), args.tokens, args.per_token, hidden,
      args.out_stride, hidden,  args.per_token};
  WeightedSum* add = ARMLLM_OF_STORAGE(table, weighted_sum, storage);
  parallel_ranges(args.tokens, hidden * std::max<int64_t>(1, args.per_token), kSimpleElements,
                  [&](int64_t begin, int64_t end, int) { add(sum, begin, end); });
}

}  // namespace armllm
