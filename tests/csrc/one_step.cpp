// Runs the ops of a decode step of a small Llama, for tools/count_bytes.py, which counts what its loads and
// stores bring from memory.
//
//   one_step TARGET FORM GROUP_SIZE SEQUENCES CONTEXT
//
// FORM is panels, int4 or int8; storage is bfloat16. GROUP_SIZE is a number, or like 32-bf16 for scales in
// bfloat16. A first step is not counted: it leaves the cache as the
// one before leaves it. All weights and all of the KV cache are 0, which no kernel looks at. Weights and KV
// cache lie at addresses that the counter knows. It prints what a step must read of them at least, by op.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"

extern "C" {
// A store to element i says that op i begins; to element 0, that nothing is counted from here.
volatile char count_ops[16];
}

namespace {

enum Op {
  kNothing,
  kNorm,
  kQkv,
  kRotary,
  kWrite,
  kAttention,
  kOutput,
  kGateUp,
  kActivation,
  kDown,
  kHead,
  kOps
};
const char* const kNames[kOps] = {"",          "norm",   "qkv",     "rotary",     "write_kv_cache",
                                  "attention", "output", "gate_up", "activation", "down",
                                  "head"};

constexpr int64_t kHidden = 1024, kIntermediate = 2816, kLayers = 2, kVocabulary = 8192;
constexpr int64_t kHeads = 16, kKvHeads = 4, kHeadDim = 64, kBlock = 16;
constexpr int64_t kQuery = kHeads * kHeadDim, kKey = kKvHeads * kHeadDim, kQkvWidth = kQuery + 2 * kKey;

// Memory at an address that the counter knows, filled up from its start.
class Arena {
 public:
  Arena(uint64_t address, int64_t bytes) {
    void* const wanted = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    next_ = static_cast<char*>(mmap(wanted, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    if (next_ != wanted) throw std::runtime_error("no memory at the address of the weights or the KV cache");
    end_ = next_ + bytes;
  }
  char* take(int64_t bytes) {
    char* const first = next_;
    next_ += (bytes + 63) / 64 * 64;
    if (next_ > end_) throw std::bad_alloc();
    return first;
  }

 private:
  char* next_;
  char* end_;
};

using Numbers = std::vector<uint16_t>;  // bfloat16

struct Layer {
  char *norm, *second_norm, *qkv, *output, *gate_up, *down, *cache;
};

class Step {
 public:
  Step(const armllm::KernelTable& table, const std::string& form, const std::string& group, int64_t sequences,
       int64_t context)
      : table_(table),
        form_(form == "int4"   ? armllm::WeightForm::int4
              : form == "int8" ? armllm::WeightForm::int8
                               : armllm::WeightForm::panels),
        group_(atoll(group.c_str())),
        scales_(group.find("-bf16") == std::string::npos ? armllm::Storage::f32 : armllm::Storage::bf16),
        n_(sequences),
        context_(context),
        x_(as_numbers(n_ * kHidden)),
        residual_(as_numbers(n_ * kHidden)),
        qkv_(as_numbers(n_ * kQkvWidth)),
        attended_(as_numbers(n_ * kQuery)),
        wide_(as_numbers(n_ * 2 * kIntermediate)),
        narrow_(as_numbers(n_ * kIntermediate)),
        logits_(as_numbers(n_ * kVocabulary)),
        angles_(static_cast<size_t>(context * kHeadDim), 1.0F),
        positions_(static_cast<size_t>(n_), context - 1),
        lengths_(static_cast<size_t>(n_), static_cast<int32_t>(context)) {
    const int64_t blocks = context / kBlock;
    shape_ = {kKvHeads, kHeadDim, kBlock};
    layout_ = armllm::kv_cache_layout(table_, armllm::Storage::bf16, armllm::KvCacheType::plain, shape_);
    for (int64_t i = 0; i <= n_; ++i) starts_.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i < n_ * blocks; ++i) blocks_.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i < n_; ++i) slots_.push_back((i + 1) * context - 1);
    Arena weights(uint64_t{1} << 36, int64_t{1} << 30), caches(uint64_t{1} << 37, int64_t{1} << 30);
    for (int64_t i = 0; i < kLayers; ++i) {
      Layer layer{};
      layer.norm = vector(weights);
      layer.second_norm = vector(weights);
      layer.qkv = weight(weights, kQkv, kQkvWidth, kHidden);
      layer.output = weight(weights, kOutput, kHidden, kQuery);
      layer.gate_up = weight(weights, kGateUp, 2 * kIntermediate, kHidden);
      layer.down = weight(weights, kDown, kHidden, kIntermediate);
      const int64_t bytes = n_ * blocks * layout_.block_bytes;
      layer.cache = caches.take(bytes);
      least_[kAttention] += bytes;
      layers_.push_back(layer);
    }
    last_norm_ = vector(weights);
    head_ = weight(weights, kHead, kVocabulary, kHidden);
  }

  void run(bool counted) {
    counted_ = counted;
    for (const Layer& layer : layers_) {
      norm(layer.norm);
      multiply(kQkv, layer.qkv, x_, qkv_, kQkvWidth, kHidden);
      attend(layer);
      multiply(kOutput, layer.output, attended_, x_, kHidden, kQuery);
      norm(layer.second_norm);
      multiply(kGateUp, layer.gate_up, x_, wide_, 2 * kIntermediate, kHidden);
      begin(kActivation);
      armllm::activation(table_, armllm::Function::silu_and_mul, armllm::Storage::bf16,
                         {narrow_.data(), wide_.data(), n_, kIntermediate, kIntermediate, 2 * kIntermediate});
      multiply(kDown, layer.down, narrow_, x_, kHidden, kIntermediate);
    }
    norm(last_norm_);
    multiply(kHead, head_, x_, logits_, kVocabulary, kHidden);
    begin(kNothing);
  }

  void print_least() const {
    for (int op = 1; op < kOps; ++op) printf("%s %lld\n", kNames[op], static_cast<long long>(least_[op]));
  }

 private:
  static Numbers as_numbers(int64_t count) { return Numbers(static_cast<size_t>(count), 0x3f80); }

  void begin(Op op) const {
    if (counted_) count_ops[op] = 1;
  }
  char* vector(Arena& arena) {
    least_[kNorm] += kHidden * 2;
    return arena.take(kHidden * 2);
  }
  armllm::WeightShape shape_of(int64_t out_features, int64_t in_features) const {
    return {out_features, in_features, group_, false, scales_};
  }
  char* weight(Arena& arena, Op op, int64_t out_features, int64_t in_features) {
    const int64_t columns = armllm::kPanelColumns;
    const int64_t bytes =
        form_ == armllm::WeightForm::panels
            ? (out_features + columns - 1) / columns * armllm::panel_elements(in_features) * 2
            : armllm::packed_bytes(table_, armllm::bits_of(form_), shape_of(out_features, in_features));
    least_[op] += bytes;
    return arena.take(bytes);
  }

  void norm(const char* weight) {
    begin(kNorm);
    armllm::fused_add_rms_norm(
        table_, armllm::Storage::bf16,
        {x_.data(), residual_.data(), weight, n_, kHidden, kHidden, kHidden, 1e-5F, 0});
  }
  void multiply(Op op, const char* weight, const Numbers& x, Numbers& out, int64_t out_features,
                int64_t in_features) {
    begin(op);
    armllm::MatmulArgs args{};
    args.out = out.data();
    args.x = x.data();
    args.weight = weight;
    args.shape = shape_of(out_features, in_features);
    args.rows = n_;
    args.out_stride = out_features;
    args.x_stride = in_features;
    armllm::matmul(table_, form_, armllm::Storage::bf16, args);
  }
  void attend(const Layer& layer) {
    uint16_t* const key = qkv_.data() + kQuery;
    uint16_t* const value = key + kKey;
    begin(kRotary);
    armllm::rotary_embedding(table_, armllm::Storage::bf16,
                             {positions_.data(), qkv_.data(), key, angles_.data(), n_, kHeads, kKvHeads,
                              kHeadDim, kHeadDim, kQkvWidth, kHeadDim, kQkvWidth, kHeadDim, kHeadDim, false},
                             context_);
    begin(kWrite);
    const int64_t blocks = n_ * context_ / kBlock;
    armllm::write_kv_cache(table_, armllm::Storage::bf16, armllm::KvCacheType::plain,
                           {key, value, layer.cache, slots_.data(), shape_, layout_, n_, kQkvWidth, kHeadDim,
                            kQkvWidth, kHeadDim},
                           blocks);
    begin(kAttention);
    armllm::PagedAttentionArgs args{};
    args.out = attended_.data();
    args.query = qkv_.data();
    args.cache = layer.cache;
    args.block_tables = blocks_.data();
    args.query_start_loc = starts_.data();
    args.seq_lens = lengths_.data();
    args.shape = shape_;
    args.layout = layout_;
    args.num_seqs = n_;
    args.num_query_heads = kHeads;
    args.max_blocks = args.block_table_stride = context_ / kBlock;
    args.out_token_stride = kQuery;
    args.query_token_stride = kQkvWidth;
    args.out_head_stride = args.query_head_stride = kHeadDim;
    args.scale = 0.125F;
    args.sliding_window = INT64_MAX;
    armllm::paged_attention(table_, armllm::Storage::bf16, armllm::KvCacheType::plain, args, blocks, n_);
  }

  const armllm::KernelTable& table_;
  armllm::WeightForm form_;
  int64_t group_;
  armllm::Storage scales_;
  int64_t n_, context_;
  Numbers x_, residual_, qkv_, attended_, wide_, narrow_, logits_;
  std::vector<float> angles_;
  std::vector<int64_t> positions_, slots_;
  std::vector<int32_t> lengths_, starts_, blocks_;
  armllm::KvCacheShape shape_{};
  armllm::KvCacheLayout layout_{};
  std::vector<Layer> layers_;
  char *last_norm_ = nullptr, *head_ = nullptr;
  int64_t least_[kOps] = {};
  bool counted_ = false;
};

void run(char** argv) {
  const std::string target = argv[1], form = argv[2], group = argv[3];
  const int64_t sequences = atoll(argv[4]), context = atoll(argv[5]);
  if (form != "panels" && form != "int4" && form != "int8") throw std::invalid_argument("no form " + form);
  if (sequences < 1 || context < kBlock || context % kBlock != 0) {
    throw std::invalid_argument("SEQUENCES must be 1 or more, CONTEXT a multiple of 16");
  }
  armllm::set_num_threads(1);
  const armllm::Choice choice = armllm::choose(target, armllm::cpu_has);
  if (!choice.problem.empty()) throw std::invalid_argument(choice.problem);
  Step step(choice.table, form, group, sequences, context);
  step.run(false);
  step.run(true);
  step.print_least();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: one_step TARGET FORM GROUP_SIZE SEQUENCES CONTEXT\n");
    return 2;
  }
  try {
    run(argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "one_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
