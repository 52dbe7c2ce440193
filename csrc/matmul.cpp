// The driver of the products: the activations are put in order or quantized once, then blocks of panels and
// tiles.

#include <optional>
#include <stdexcept>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "product.h"
#include "ranges.h"
#include "workspace.h"

namespace armllm {

namespace {

// Products of int8 by int8 sum to less than 2^31 up to here.
constexpr int64_t kMaxChannel = 131072;

// A product with E4M3: some panels at a time become panels of the storage type in a thread's scratch memory,
// and meet all rows of an item there. So its results have the bits of a product with the decoded weight.
class Fp8Product {
 public:
  Fp8Product(const KernelTable& table, const MatmulKernel& kernel, Storage storage, const WeightShape& shape)
      : kernel_(kernel),
        decode_(ARMLLM_OF_STORAGE(table, decode_fp8, storage)),
        size_(bytes_of(storage)),
        elements_(panel_elements(shape.in_features)) {
    // In the second-level cache; a single row wants several panels side by side.
    constexpr int64_t kBytes = 512 * 1024, kLeast = 2, kMost = 8;
    const int64_t bytes = std::max<int64_t>(64, elements_ * size_);
    together_ = std::min(std::max(kLeast, kBytes / bytes), kMost);
  }

  int64_t scratch_bytes() const { return together_ * elements_ * size_; }

  void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                int64_t panel_end) const {
    for (int64_t first = panel_begin; first < panel_end; first += together_) {
      const int64_t count = std::min(together_, panel_end - first), column = first * kPanelColumns;
      for (int64_t i = 0; i < count; ++i)
        decode(a, first + i, static_cast<char*>(a.scratch) + i * elements_ * size_);
      MatmulArgs part = a;
      part.weight = a.scratch;
      part.scratch = nullptr;  // the kernel has none of its own
      part.shape.group_size = 0;
      part.shape.out_features = std::min(count * kPanelColumns, a.shape.out_features - column);
      part.out = static_cast<char*>(a.out) + column * size_;
      if (a.bias != nullptr) part.bias = static_cast<const char*>(a.bias) + column * size_;
      kernel_.multiply(part, tile_begin, tile_end, 0, count);
    }
  }

 private:
  void decode(const MatmulArgs& a, int64_t panel, char* to) const {
    const int64_t features = elements_ / kPanelColumns, together = kernel_.features_together;
    const int64_t group = a.shape.group_size == 0 ? features : a.shape.group_size;
    const int64_t groups = a.shape.group_size == 0 ? 1 : ceil_div(a.shape.in_features, group);
    const uint8_t* const from = static_cast<const uint8_t*>(a.weight) + panel * elements_;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * group, end = std::min(features, begin + group);
      float scales[kFp8Scales];
      for (int64_t i = 0; i < kFp8Scales; ++i) {
        const int64_t row = panel * kPanelColumns + i / together % kPanelColumns;
        scales[i] = row < a.shape.out_features ? a.fp8_scales[row * groups + g] : 0;
      }
      decode_({to + begin * kPanelColumns * size_, from + begin * kPanelColumns, scales,
               (end - begin) * kPanelColumns});
    }
  }

  const MatmulKernel& kernel_;
  DecodeFp8* decode_;
  int64_t size_, elements_, together_;
};

// Whether a product can read the rows where they lie.
bool reads_in_place(const MatmulKernel& kernel, const MatmulArgs& a) {
  const int64_t bytes = a.shape.in_features * static_cast<int64_t>(sizeof(float));
  return kernel.takes_rows && a.x_stride == a.shape.in_features &&
         kernel.activation_bytes(a.shape, 1) == bytes;
}

MatmulArgs of_head(Storage storage, MatmulArgs args, const Heads& heads, int64_t head) {
  const int64_t size = bytes_of(storage);
  const int64_t elements = args.shape.out_features / kPanelColumns * panel_elements(args.shape.in_features);
  args.x = static_cast<const char*>(args.x) + head * heads.x_stride * size;
  args.out = static_cast<char*>(args.out) + head * heads.out_stride * size;
  args.weight = static_cast<const char*>(args.weight) + head * elements * size;
  return args;
}

// Products of heads, of which a plain product is one. Only that one has ops beside it, and a weight that is
// not in panels.
void multiply_heads(const KernelTable& table, WeightForm form, Storage storage, const MatmulArgs& first,
                    const Heads& heads, const Beside& beside) {
  const WeightShape& shape = first.shape;
  const bool quantized = bits_of(form) != 0;
  if (quantized) check_weight(bits_of(form), shape);
  MatmulKernel kernel = matmul_kernel(table, form, storage);
  std::optional<Fp8Product> fp8;
  if (form == WeightForm::fp8) {
    fp8.emplace(table, kernel, storage, shape);
    kernel.decoded = fp8->scratch_bytes();
    kernel.decoded_rows = 0;
  }
  if (first.rows == 0 || heads.count == 0 || shape.out_features == 0) return;

  thread_local Workspace workspace;
  const int threads = num_threads();
  const bool in_place = reads_in_place(kernel, first);
  const int64_t activation_bytes =
      in_place ? 0 : ceil_div(kernel.activation_bytes(shape, first.rows), 64) * 64;
  const int64_t scratch_bytes = kernel.scratch_bytes(shape, first.rows);
  char* const memory = workspace.reserve(heads.count * activation_bytes + threads * scratch_bytes);
  const ThreadScratch scratch{memory + heads.count * activation_bytes, scratch_bytes};
  const auto product_of = [&](int64_t head) {
    MatmulArgs args = of_head(storage, first, heads, head);
    args.activations = in_place ? const_cast<void*>(args.x) : memory + head * activation_bytes;
    return args;
  };

  // Whole tiles of any kernel, which some put in order faster than row by row.
  constexpr int64_t kRowsTogether = 32;
  const Ranges ranges(first.rows, shape.in_features, kProductElements, quantized ? 1 : kRowsTogether);
  const auto quantize = [&](int64_t item, int) {
    const int64_t range = item % ranges.count();
    if (beside.norm != nullptr) beside.norm->run(ranges.begin(range), ranges.end(range));
    if (!in_place) {
      kernel.quantize(product_of(item / ranges.count()), ranges.begin(range), ranges.end(range));
    }
  };
  const ProductItems items(kernel, shape, first.rows, ceil_div(wanted_items(threads), heads.count));
  const auto multiply_fp8 = [&](const MatmulArgs& a, int64_t tile_begin, int64_t tile_end,
                                int64_t panel_begin, int64_t panel_end) {
    fp8->multiply(a, tile_begin, tile_end, panel_begin, panel_end);
  };
  const auto multiply = [&](int64_t item, int thread) {
    const MatmulArgs args = product_of(item / items.count());
    if (fp8) return items.run(args, item % items.count(), scratch.of(thread), multiply_fp8);
    items.run(args, item % items.count(), scratch.of(thread));
  };
  const PiecewiseOp* const activation = beside.activation;
  const Ranges chunks(activation == nullptr ? 0 : activation->count,
                      activation == nullptr ? 0 : activation->elements_each, kSimpleElements);
  const auto activate = [&](int64_t item, int) { activation->run(chunks.begin(item), chunks.end(item)); };
  const Stage stages[] = {{heads.count * ranges.count(), quantize},
                          {heads.count * items.count(), multiply},
                          {chunks.count(), activate}};
  const int begin = in_place && beside.norm == nullptr ? 1 : 0, end = activation == nullptr ? 2 : 3;
  parallel_stages(stages + begin, end - begin, threads);
}

}  // namespace

void check_weight(int bits, const WeightShape& shape) {
  if (bits != 4 && bits != 8) throw std::invalid_argument("bits is " + std::to_string(bits) + ", not 4 or 8");
  if (shape.values != Values::integers && (bits != 8 || shape.zero_points)) {
    throw std::invalid_argument("values of a table are integers of 8 bits without zero points");
  }
  const int64_t g = shape.group_size;
  if (g != 0 && ((g != 32 && g != 64 && g != 128) || shape.in_features % g != 0)) {
    throw std::invalid_argument("group_size is " + std::to_string(g) + ", not 32, 64 or 128 dividing the " +
                                std::to_string(shape.in_features) + " input features");
  }
  if (g == 0 && shape.in_features > kMaxChannel) {
    throw std::invalid_argument("in_features is " + std::to_string(shape.in_features) +
                                ", more than a group's exact sum takes (" + std::to_string(kMaxChannel) +
                                ")");
  }
}

void quantize_rows(const KernelTable& table, Storage storage, const QuantizeRowsArgs& args) {
  QuantizeRows* kernel = ARMLLM_OF_STORAGE(table, quantize_rows, storage);
  parallel_ranges(args.rows, args.width, kProductElements,
                  [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
}

const MatmulKernel& matmul_kernel(const KernelTable& table, int bits, Storage storage) {
  return bits == 4 ? *ARMLLM_OF_STORAGE(table, matmul_w4a8, storage)
                   : *ARMLLM_OF_STORAGE(table, matmul_w8a8, storage);
}

const MatmulKernel& matmul_kernel(const KernelTable& table, WeightForm form, Storage storage) {
  const int bits = bits_of(form);
  if (bits != 0) return matmul_kernel(table, bits, storage);
  return form == WeightForm::dense ? *ARMLLM_OF_STORAGE(table, dense_matmul, storage)
                                   : *ARMLLM_OF_STORAGE(table, panel_matmul, storage);
}

int64_t packed_bytes(const KernelTable& table, int bits, const WeightShape& shape) {
  return packed_bytes(*matmul_kernel(table, bits, Storage::f32).layout, bits, shape);
}

bool pack_weight(const KernelTable& table, int bits, const PackWeightArgs& args) {
  return pack_weight(*matmul_kernel(table, bits, Storage::f32).layout, bits, args);
}

void matmul(const KernelTable& table, WeightForm form, Storage storage, const MatmulArgs& args,
            const Beside& beside) {
  multiply_heads(table, form, storage, args, {1, 0, 0}, beside);
}

void head_matmul(const KernelTable& table, Storage storage, const MatmulArgs& first, const Heads& heads) {
  multiply_heads(table, WeightForm::panels, storage, first, heads, {});
}

}  // namespace armllm
