// The processes that compute one model together, and the memory through which they give each other their
// parts of a tensor. All make the same calls in the same order.

#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace armllm {

inline constexpr int kMostRanks = 64;
inline constexpr int64_t kSlotBytes = 2 << 20;  // of a part; larger ones go in pieces

// Columns [source, source + width) of a rank's tensor become [target, target + width) of the whole, in
// elements.
struct Columns {
  int64_t source, target, width;
};
using Pieces = std::vector<std::vector<Columns>>;  // by rank

// One rank's end. The memory is a file that all ranks map, of the size that `bytes` says.
class Ranks {
 public:
  // `seconds`: how long a rank may keep the others waiting. Throws std::invalid_argument or
  // std::runtime_error.
  Ranks(int file, int rank, int ranks, double seconds);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  static int64_t bytes(int ranks);
  int rank() const { return rank_; }
  int size() const { return ranks_; }

  // `part`: `rows` rows of this rank's columns, `part_stride` bytes apart; `out` gets the columns of all
  // ranks. With `first_only` that of rank 0 does, and the others' is not written.
  struct Gather {
    void* out;
    const void* part;
    int64_t rows, out_stride, part_stride;  // in bytes
    int64_t element;                        // bytes
    bool first_only = false;
  };
  void gather(const Gather& args, const Pieces& pieces);

  // Rank 0's bytes to all others, which wait for them without a limit.
  void send(const std::string& message);
  std::string receive();

  // Ends all waiting, now and later, at every rank. The first caller's code stays; it is not 0.
  void fail(uint32_t code);
  // What fail was called with, or 0. A rank that let another one wait for too long: kLate + its number.
  uint32_t failure() const;
  static constexpr uint32_t kLate = 1 << 16;

  // Seconds for which a rank has waited awake for others since the start; they count as CPU time.
  double awake(int rank) const;

 private:
  struct Shared;

  char* slot(int rank) const;         // of the current exchange
  void publish();                     // this rank's slot is written
  void wait(int rank, bool bounded);  // until that of `rank` is

  Shared* shared_ = nullptr;
  char* slots_ = nullptr;
  int rank_, ranks_;
  int64_t nanoseconds_;
  uint32_t exchange_ = 0;
};

}  // namespace armllm
