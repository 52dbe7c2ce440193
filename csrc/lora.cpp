// The driver of low-rank adapters: rows are sorted by slot, so that those of an adapter share what is read of
// it, and both products of all adapters are two stages of one region.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "ranges.h"
#include "workspace.h"

namespace armllm {

namespace {

constexpr int64_t kItemProducts = 128 * 1024;  // multiply-accumulates that are worth an item
constexpr int64_t kItemsOfThread = 8;          // so many larger ones keep all threads at work
constexpr int64_t kTileRows = 32;              // so many rows of x and y stay in the first-level cache

void check(const LoraArgs& args) {
  int64_t last = 0;
  for (int64_t p = 0; p < args.parts; ++p) {
    if (args.part_ends[p] < last || args.part_ends[p] > args.out_features) {
      throw std::invalid_argument("part_ends[" + std::to_string(p) + "] is " +
                                  std::to_string(args.part_ends[p]) + ", expected " + std::to_string(last) +
                                  " to " + std::to_string(args.out_features));
    }
    last = args.part_ends[p];
  }
  if (last != args.out_features) {
    throw std::invalid_argument("part_ends ends at " + std::to_string(last) + ", but y has " +
                                std::to_string(args.out_features) + " columns");
  }
  for (int64_t i = 0; i < args.slots * args.parts; ++i) {
    if (args.ranks[i] < 0 || args.ranks[i] > args.max_rank) {
      throw std::invalid_argument("ranks[" + std::to_string(i / args.parts) + ", " +
                                  std::to_string(i % args.parts) + "] is " + std::to_string(args.ranks[i]) +
                                  ", expected 0 to " + std::to_string(args.max_rank));
    }
  }
}

// Places [ends[s - 1], ends[s]) of `rows` are the rows of slot s, in their order.
void sort_by_slot(const LoraArgs& args, const int64_t* slots, int64_t count, std::vector<int64_t>& ends,
                  std::vector<int64_t>& rows) {
  ends.assign(static_cast<size_t>(args.slots) + 1, 0);
  for (int64_t t = 0; t < count; ++t) {
    if (slots[t] < -1 || slots[t] >= args.slots) {
      throw std::invalid_argument("slots[" + std::to_string(t) + "] is " + std::to_string(slots[t]) +
                                  ", expected a slot below " + std::to_string(args.slots) +
                                  ", or -1 for none");
    }
    if (slots[t] >= 0) ++ends[static_cast<size_t>(slots[t]) + 1];
  }
  for (size_t s = 1; s < ends.size(); ++s) ends[s] += ends[s - 1];
  rows.resize(static_cast<size_t>(ends.back()));
  for (int64_t t = 0; t < count; ++t) {
    if (slots[t] >= 0) rows[static_cast<size_t>(ends[static_cast<size_t>(slots[t])]++)] = t;
  }
  ends.pop_back();  // each start has become its slot's end
}

// Tiles in a row, as many to an item as are worth one.
class Items {
 public:
  // For at most `products` multiply-accumulates together.
  void clear(int64_t products) {
    tiles_.clear();
    ends_.clear();
    products_ = 0;
    worth_ = std::max(kItemProducts, products / (kItemsOfThread * num_threads()));
  }
  // All of `tile` for its rows, where each of [begin, end) costs `each` products of a row. It is cut at
  // multiples of `multiple`.
  void add(const LoraTile& tile, int64_t each, int64_t multiple) {
    const int64_t rows = tile.row_end - tile.row_begin;
    const int64_t some = ceil_div(worth_, std::max<int64_t>(1, rows * each));
    const int64_t step = ceil_div(some, multiple) * multiple;
    for (int64_t begin = tile.begin; begin < tile.end; begin += step) {
      LoraTile cut = tile;
      cut.begin = begin;
      cut.end = std::min(tile.end, begin + step);
      tiles_.push_back(cut);
      products_ += rows * each * (cut.end - begin);
      if (products_ >= worth_) close();
    }
  }
  void close() {
    if (ends_.empty() ? !tiles_.empty() : ends_.back() < tiles_.size()) ends_.push_back(tiles_.size());
    products_ = 0;
  }
  int64_t count() const { return static_cast<int64_t>(ends_.size()); }
  void run(Lora* kernel, const LoraArgs& args, int64_t item) const {
    const auto i = static_cast<size_t>(item);
    for (size_t t = i == 0 ? 0 : ends_[i - 1]; t < ends_[i]; ++t) kernel(args, tiles_[t]);
  }

 private:
  std::vector<LoraTile> tiles_;
  std::vector<size_t> ends_;
  int64_t products_ = 0, worth_ = kItemProducts;
};

}  // namespace

void add_lora(const KernelTable& table, Storage storage, const LoraArgs& request, const int64_t* slots,
              int64_t rows) {
  thread_local std::vector<int64_t> ends, rows_by_slot;
  thread_local Items shrinking, expanding;
  thread_local Workspace workspace;
  LoraArgs args = request;
  check(args);
  sort_by_slot(args, slots, rows, ends, rows_by_slot);
  if (rows_by_slot.empty()) return;
  args.rows_by_slot = rows_by_slot.data();
  const auto low_floats = static_cast<int64_t>(rows_by_slot.size()) * args.parts * args.max_rank;
  args.low = reinterpret_cast<float*>(workspace.reserve(low_floats * static_cast<int64_t>(sizeof(float))));

  shrinking.clear(low_floats * args.in_features);
  expanding.clear(static_cast<int64_t>(rows_by_slot.size()) * args.max_rank * args.out_features);
  for (int64_t slot = 0, begin = 0; slot < args.slots; ++slot) {
    const int64_t end = ends[static_cast<size_t>(slot)];
    for (; begin < end; begin = std::min(end, begin + kTileRows)) {
      const int64_t last = std::min(end, begin + kTileRows);
      for (int64_t part = 0, column = 0; part < args.parts; column = args.part_ends[part++]) {
        const int64_t rank = args.ranks[slot * args.parts + part], width = args.part_ends[part] - column;
        if (rank == 0) continue;
        constexpr int64_t kFactors = 4, kColumns = 256;  // of whole tiles of any kernel
        shrinking.add({slot, part, begin, last, 0, rank}, args.in_features, kFactors);
        expanding.add({slot, part, begin, last, 0, width}, rank, kColumns);
      }
    }
  }
  shrinking.close();
  expanding.close();
  Lora* const shrink = ARMLLM_OF_STORAGE(table, lora_shrink, storage);
  Lora* const expand = ARMLLM_OF_STORAGE(table, lora_expand, storage);
  // Names of this thread: those of the others are empty.
  const Items &first = shrinking, &second = expanding;
  const auto run_first = [&](int64_t item, int) { first.run(shrink, args, item); };
  const auto run_second = [&](int64_t item, int) { second.run(expand, args, item); };
  const Stage stages[] = {{first.count(), run_first}, {second.count(), run_second}};
  parallel_stages(stages, 2, num_threads());
}

}  // namespace armllm
