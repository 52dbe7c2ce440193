// How a product is cut into items for threads.

#pragma once

#include <stdint.h>

#include <algorithm>

#include "armllm/kernels.h"
#include "ranges.h"

namespace armllm {

// How many items keep all threads busy to the end.
inline int64_t wanted_items(int threads) { return threads == 1 ? 1 : 4 * static_cast<int64_t>(threads); }

// The scratch memory of each thread, `bytes` apart; null where nobody wants any.
struct ThreadScratch {
  char* first;
  int64_t bytes;

  void* of(int thread) const { return bytes == 0 ? nullptr : first + thread * bytes; }
};

// Blocks of tiles of rows by blocks of panels. A block of panels stays in the second-level cache while tile
// after tile of rows goes over it, and the tiles stay there for the next block of panels; a tile stays in the
// first-level one. About `wanted` items or more, so that no thread waits long for the last one; fewer rows
// than the cache takes only when the panels are too few for that. A block has a multiple of the panels
// that a tile meets at a time: with fewer, the sums of a tile wait for each other.
class ProductItems {
 public:
  ProductItems(const MatmulKernel& kernel, const WeightShape& shape, int64_t rows, int64_t wanted)
      : kernel_(&kernel),
        panels_(ceil_div(shape.out_features, kernel.panel)),
        tiles_(kernel.tiles(shape, rows)) {
    constexpr int64_t kBlockBytes = 256 * 1024, kRowsBytes = 1536 * 1024, kTogetherBytes = 512 * 1024;
    const int64_t bytes = std::max<int64_t>(1, kernel.panel_bytes(shape));
    int64_t block = std::max<int64_t>(1, ceil_div(panels_, wanted));
    if (tiles_ > 1) {  // a single one reads every panel once
      const int64_t together = std::min(kernel.panels_of_tile, std::max<int64_t>(2, kTogetherBytes / bytes));
      block = std::min(block, std::max(together, kBlockBytes / bytes / together * together));
      const int64_t whole = ceil_div(block, together) * together;
      if (ceil_div(panels_, whole) * tiles_ >= wanted) {
        block = whole;
        together_ = together;
      }
    }
    blocks_ = ceil_div(panels_, block);
    const int64_t for_threads = ceil_div(wanted, std::max<int64_t>(1, blocks_));
    // A kernel that decodes panels into its scratch memory does so for each block of rows.
    const int64_t for_cache = kernel.decoded_bytes(shape, rows) != 0
                                  ? 1
                                  : ceil_div(kernel.activation_bytes(shape, rows), kRowsBytes);
    row_blocks_ = std::max<int64_t>(1, std::min(tiles_, std::max(for_threads, for_cache)));
  }
  int64_t count() const { return blocks_ * row_blocks_; }
  // `scratch`: of the thread that calls, or null.
  void run(const MatmulArgs& args, int64_t item, void* scratch) const {
    run(args, item, scratch, kernel_->multiply);
  }
  // With `multiply` in place of the kernel's function.
  template <class Multiply>
  void run(MatmulArgs args, int64_t item, void* scratch, const Multiply& multiply) const {
    args.scratch = scratch;
    const int64_t block = item % blocks_, rows = item / blocks_;
    multiply(args, begin(rows, row_blocks_, tiles_), begin(rows + 1, row_blocks_, tiles_), first_panel(block),
             first_panel(block + 1));
  }

 private:
  // Where a block begins if `blocks` share `count`: the larger ones come first, so that the last are short.
  static int64_t begin(int64_t block, int64_t blocks, int64_t count) {
    return count / blocks * block + std::min(block, count % blocks);
  }
  int64_t first_panel(int64_t block) const {
    return std::min(panels_, begin(block, blocks_, ceil_div(panels_, together_)) * together_);
  }

  const MatmulKernel* kernel_;
  int64_t panels_, tiles_, together_ = 1, blocks_, row_blocks_;
};

}  // namespace armllm
