// The driver of a mixture of experts. Pairs of a token and an expert are sorted by expert, so that each
// product serves all tokens of its expert; whatever lies between the products stays in the workspace, and
// none of it is written twice.

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "product.h"
#include "ranges.h"
#include "routing.h"
#include "workspace.h"

namespace armllm {

namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

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
      args.float_rows = true;  // unless they are quantized, see gather
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

// One call: its experts in batches, the memory between its steps, and the steps.
class Mixture {
 public:
  Mixture(const KernelTable& table, WeightForm form, Storage storage, Activation* activation,
          const MoeArgs& args)
      : table_(table),
        storage_(storage),
        is_quantized_(bits_of(form) != 0),
        kernel_(matmul_kernel(table, form, is_quantized_ ? Storage::f32 : storage)),
        activation_(activation),
        args_(args),
        hidden_(args.gate_up_shape.in_features),
        part_(args.gate_up_shape.out_features / 2),
        width_(args.down_shape.in_features),
        out_columns_(args.down_shape.out_features),
        routing_(sort_by_expert(args)) {
    for (const Batch& batch : batches(routing_, 2 * width_ * kFloat)) {  // the same at all ranks
      experts_.push_back({batch,
                          {kernel_, args.gate_up_shape, routing_, batch, args.gate_up},
                          {kernel_, args.down_shape, routing_, batch, args.down}});
    }
    divide_memory();
  }

  void run() {
    if (is_quantized_) quantize();
    for (Experts& experts : experts_) {
      gather(experts);
      experts.gate_up.run(scratch_, threads_);
      activate(experts);
      experts.down.run(scratch_, threads_);
      if (args_.down_bias != nullptr) add_down_bias(experts);
    }
    sum();
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  struct Experts {
    Batch batch;
    GroupedProduct gate_up, down;
  };

  void divide_memory() {
    int64_t activations = 0, products = 0, parts = 0, scratch = 0, end = 0;
    for (const Experts& e : experts_) {
      activations = std::max({activations, e.gate_up.activation_bytes(), e.down.activation_bytes()});
      products = std::max(products, e.batch.rows * 2 * part_ * kFloat);
      if (args_.gather) parts = std::max(parts, e.batch.rows);
      scratch = std::max({scratch, e.gate_up.scratch_bytes(), e.down.scratch_bytes()});
    }
    const auto part = [&end](int64_t bytes) { return std::exchange(end, end + aligned(bytes)); };
    const int64_t row = aligned(part_ * kFloat), rows = static_cast<int64_t>(routing_.tokens.size());
    const int64_t at_activations = part(activations), at_products = part(products);
    const int64_t at_parts = part(parts * part_ * kFloat), at_whole = part(parts * width_ * kFloat);
    const int64_t at_results = part(rows * out_columns_ * kFloat);
    const int64_t at_q = part(is_quantized_ ? args_.tokens * hidden_ : 0);
    const int64_t at_scales = part(is_quantized_ ? args_.tokens * kFloat : 0);
    const int64_t at_rows = part(threads_ * row), at_scratch = part(threads_ * scratch);
    thread_local Workspace workspace;
    char* const memory = workspace.reserve(end);
    activations_ = memory + at_activations;
    products_ = reinterpret_cast<float*>(memory + at_products);
    parts_ = reinterpret_cast<float*>(memory + at_parts);
    whole_ = reinterpret_cast<float*>(memory + at_whole);
    results_ = reinterpret_cast<float*>(memory + at_results);
    q_ = reinterpret_cast<int8_t*>(memory + at_q);
    scales_ = reinterpret_cast<float*>(memory + at_scales);
    activated_ = {memory + at_rows, row};
    scratch_ = {memory + at_scratch, scratch};
  }

  // Each token is rounded once, however many experts it goes to.
  void quantize() {
    quantize_rows(table_, storage_,
                  {q_, scales_, nullptr, args_.x, args_.tokens, hidden_, hidden_, args_.x_stride});
  }

  // The rows of x, for gate and up.
  void gather(Experts& experts) {
    experts.gate_up.place(activations_, products_);
    const GatherArgs x = is_quantized_ ? GatherArgs{q_, scales_, nullptr, hidden_}
                                       : GatherArgs{args_.x, nullptr, nullptr, args_.x_stride};
    for_rows(experts, experts.gate_up, hidden_, kProductElements,
             [&](const MatmulArgs& call, const Group& group, int64_t first, int64_t last, int) {
               GatherArgs rows = x;
               rows.ids = routing_.tokens.data() + group.first;
               kernel_.gather(call, rows, first, last);
             });
  }

  // From gate and up the activations for down. A row is activated in memory of the thread's own, and from
  // there rounded into its place; or the rows lie together, for the gather.
  void activate(Experts& experts) {
    experts.down.place(activations_, results_ + experts.batch.first * out_columns_);
    for_rows(experts, experts.down, 2 * part_, kProductElements,
             [&](const MatmulArgs& shared, const Group& group, int64_t first, int64_t last, int thread) {
               const int64_t at = group.first - experts.batch.first + first;
               float* row = args_.gather ? parts_ + at * part_ : static_cast<float*>(activated_.of(thread));
               float* product = products_ + at * 2 * part_;
               MatmulArgs call = shared;
               call.x = row;
               call.x_stride = 0;
               for (int64_t r = first; r < last; ++r, product += 2 * part_) {
                 if (args_.gate_up_bias != nullptr) {
                   add(product, args_.gate_up_bias + group.expert * 2 * part_, 2 * part_);
                 }
                 if (args_.alpha != 0) clamp(product, part_, args_.alpha, args_.limit);
                 activation_({row, product, 1, part_, part_, 2 * part_}, 0,
                             ceil_div(part_, kActivationChunk));
                 if (args_.gather) {
                   row += part_;
                 } else {
                   kernel_.quantize(call, r, r + 1);
                 }
               }
             });
    if (args_.gather) round_whole(experts);
  }

  void round_whole(const Experts& experts) {
    args_.gather(whole_, parts_, experts.batch.rows);
    for_rows(experts, experts.down, width_, kProductElements,
             [&](const MatmulArgs& shared, const Group& group, int64_t first, int64_t last, int) {
               MatmulArgs call = shared;
               call.x = whole_ + (group.first - experts.batch.first) * width_;
               call.x_stride = width_;
               kernel_.quantize(call, first, last);
             });
  }

  void add_down_bias(const Experts& experts) {
    for_rows(experts, experts.down, out_columns_, kSimpleElements,
             [&](const MatmulArgs&, const Group& group, int64_t first, int64_t last, int) {
               for (int64_t r = group.first + first; r < group.first + last; ++r) {
                 add(results_ + r * out_columns_, args_.down_bias + group.expert * out_columns_,
                     out_columns_);
               }
             });
  }

  // Each token's results, weighted.
  void sum() {
    const WeightedSumArgs sum{args_.out,    results_,        args_.expert_weights, routing_.rows.data(),
                              args_.tokens, args_.per_token, out_columns_,         args_.out_stride,
                              out_columns_, args_.per_token};
    WeightedSum* kernel = ARMLLM_OF_STORAGE(table_, weighted_sum, storage_);
    parallel_ranges(args_.tokens, out_columns_ * std::max<int64_t>(1, args_.per_token), kSimpleElements,
                    [&](int64_t begin, int64_t end, int) { kernel(sum, begin, end); });
  }

  // Threads share the rows of a batch, `elements` of `width` at a time: body(args, group, begin, end,
  // thread).
  template <class Body>
  void for_rows(const Experts& experts, const GroupedProduct& product, int64_t width, int64_t elements,
                const Body& body) const {
    parallel_ranges(
        experts.batch.rows, width, elements,
        [&](int64_t begin, int64_t end, int thread) {
          product.for_rows(begin, end,
                           [&](const MatmulArgs& call, const Group& group, int64_t first, int64_t last) {
                             body(call, group, first, last, thread);
                           });
        },
        threads_);
  }

  const KernelTable& table_;
  Storage storage_;
  bool is_quantized_;
  const MatmulKernel& kernel_;
  Activation* activation_;
  const MoeArgs& args_;
  int64_t hidden_, part_, width_, out_columns_;  // see MoeArgs: width_ is `intermediate`
  Routing routing_;
  const int threads_ = num_threads();
  std::vector<Experts> experts_;
  char* activations_;  // of the product that comes next
  float* products_;    // [rows of the batch, 2 * part]: gate and up
  float* parts_;       // [rows of the batch, part], activated, where there is a gather
  float* whole_;       // [rows of the batch, width], gathered
  float* results_;     // [rows, out_columns]: down
  int8_t* q_;          // [tokens, hidden]
  float* scales_;      // [tokens]
  ThreadScratch activated_, scratch_;
};

}  // namespace

void moe(const KernelTable& table, WeightForm form, Storage storage, Function function, const MoeArgs& args) {
  if (const int bits = bits_of(form); bits != 0) {
    check_weight(bits, args.gate_up_shape);
    check_weight(bits, args.down_shape);
  }
  Activation* const activation = args.alpha != 0 ? table.silu_and_mul_f32 : gated(table, function);
  Mixture(table, form, storage, activation, args).run();
}

}  // namespace armllm
