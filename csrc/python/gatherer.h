// How the parts of one tensor lie in the whole.

#pragma once

#include <stdint.h>

#include <memory>

#include "armllm/ranks.h"

namespace armllm {

struct Gatherer {
  std::shared_ptr<Ranks> ranks;
  Pieces pieces;
  int64_t part = 0, whole = 0;  // columns of this rank, of all
  bool first_only = false;      // the whole is for rank 0
};

}  // namespace armllm
