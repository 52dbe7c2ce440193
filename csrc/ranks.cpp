#include "armllm/ranks.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "armllm/threads.h"
#include "patience.h"

namespace armllm {

namespace {

constexpr int64_t kPage = 1 << 16;           // of the machines with the largest pages
constexpr int64_t kParallelBytes = 1 << 18;  // from here on threads share a copy
constexpr int64_t kNap = 100000000;          // nanoseconds: a failure that was missed is seen after these

thread_local Patience patience;

int64_t round_up(int64_t size) { return (size + kPage - 1) / kPage * kPage; }

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, int64_t nanoseconds) {
  const timespec limit{static_cast<time_t>(nanoseconds / 1000000000),
                       static_cast<long>(nanoseconds % 1000000000)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Rows of a copy, by several threads if it is large.
template <class Row>
void for_rows(int64_t rows, int64_t row_bytes, const Row& row) {
  const int64_t per_item = std::max<int64_t>(1, kParallelBytes / 4 / std::max<int64_t>(1, row_bytes));
  if (rows * row_bytes < kParallelBytes) {
    for (int64_t r = 0; r < rows; ++r) row(r);
    return;
  }
  parallel_for((rows + per_item - 1) / per_item, 0, [&](int64_t item, int) {
    const int64_t end = std::min(rows, (item + 1) * per_item);
    for (int64_t r = item * per_item; r < end; ++r) row(r);
  });
}

// Rows of so many bytes; those that follow one another on both sides are one copy.
void copy_rows(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t rows,
               int64_t bytes) {
  if (to_stride == bytes && from_stride == bytes && rows * bytes < kParallelBytes) {
    memcpy(to, from, static_cast<size_t>(rows * bytes));
    return;
  }
  for_rows(rows, bytes, [&](int64_t r) {
    memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(bytes));
  });
}

int64_t width_of(const std::vector<Columns>& columns) {
  int64_t width = 0;
  for (const Columns& one : columns) width += one.width;
  return width;
}

}  // namespace

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// A cache line for each rank: how many exchanges it has written its slot for, on which others may sleep.
struct Ranks::Shared {
  struct alignas(64) Progress {
    std::atomic<uint32_t> published, sleepers;
  };
  struct alignas(64) Waited {
    std::atomic<int64_t> awake;  // nanoseconds
  };
  alignas(64) std::atomic<uint32_t> failed;
  Progress of[kMostRanks];
  Waited waited[kMostRanks];  // apart: others look at `of` while they wait
};

int64_t Ranks::bytes(int ranks) { return round_up(sizeof(Shared)) + ranks * 2 * kSlotBytes; }

Ranks::Ranks(int file, int rank, int ranks, double seconds)
    : rank_(rank), ranks_(ranks), nanoseconds_(static_cast<int64_t>(seconds * 1e9)) {
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                ": at most " + std::to_string(kMostRanks) + " ranks, numbered from 0");
  }
  if (!(seconds > 0) || seconds > 1e6) throw std::invalid_argument("seconds must be above 0 and at most 1e6");
  struct stat status{};
  if (fstat(file, &status) != 0 || status.st_size < bytes(ranks)) {
    throw std::invalid_argument("the file of the ranks has not " + std::to_string(bytes(ranks)) + " bytes");
  }
  void* memory =
      mmap(nullptr, static_cast<size_t>(bytes(ranks)), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::runtime_error(std::string("the ranks' memory: ") + strerror(errno));
  shared_ = static_cast<Shared*>(memory);  // a new file's zeros are its first state
  slots_ = static_cast<char*>(memory) + round_up(sizeof(Shared));
}

Ranks::~Ranks() { munmap(shared_, static_cast<size_t>(bytes(ranks_))); }

// Two slots per rank in turn. Who writes one has seen all others publish the exchange before, which they did
// after they had read what lay in it.
char* Ranks::slot(int rank) const {
  return slots_ + (rank * 2 + static_cast<int>(exchange_ & 1)) * kSlotBytes;
}

void Ranks::publish() {
  Shared::Progress& mine = shared_->of[rank_];
  mine.published.store(exchange_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // who goes to sleep has one, too
  if (mine.sleepers.load(std::memory_order_relaxed) != 0) futex_wake(&mine.published);
}

void Ranks::wait(int rank, bool bounded) {
  Shared::Progress& other = shared_->of[rank];
  const auto is_done = [&] {
    const uint32_t published = other.published.load(std::memory_order_acquire);
    return static_cast<int32_t>(published - exchange_) >= 0 || failure() != 0;
  };
  const auto spin = [&] {
    const int64_t since = nanoseconds(CLOCK_MONOTONIC);
    const bool done = patience.spin(is_done);
    shared_->waited[rank_].awake.fetch_add(nanoseconds(CLOCK_MONOTONIC) - since, std::memory_order_relaxed);
    return done;
  };
  if (!is_done() && !spin()) {  // who is last reads no clock
    const int64_t since = nanoseconds(CLOCK_MONOTONIC);
    ++other.sleepers;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (;;) {
      const uint32_t seen = other.published;
      if (is_done()) break;
      const int64_t left = nanoseconds_ - (nanoseconds(CLOCK_MONOTONIC) - since);
      if (bounded && left <= 0) {
        fail(kLate + static_cast<uint32_t>(rank));
        break;
      }
      futex_wait(&other.published, seen, bounded ? std::min(left, kNap) : kNap);
    }
    --other.sleepers;
    patience.slept(since);
  }
  if (failure() != 0) throw std::runtime_error("the ranks were stopped");
}

void Ranks::fail(uint32_t code) {
  uint32_t none = 0;
  shared_->failed.compare_exchange_strong(none, code);
  for (int rank = 0; rank < ranks_; ++rank) futex_wake(&shared_->of[rank].published);
}

double Ranks::awake(int rank) const {
  if (rank < 0 || rank >= ranks_) throw std::invalid_argument("there is no rank " + std::to_string(rank));
  return 1e-9 * static_cast<double>(shared_->waited[rank].awake.load(std::memory_order_relaxed));
}

uint32_t Ranks::failure() const { return shared_->failed.load(std::memory_order_relaxed); }

void Ranks::gather(const Gather& args, const Pieces& pieces) {
  int64_t widest = 0;
  for (const auto& columns : pieces) widest = std::max(widest, width_of(columns) * args.element);
  if (widest == 0) return;
  const int64_t most_columns = std::min(widest, kSlotBytes);  // bytes of a row that go at a time
  const int64_t most_rows = kSlotBytes / most_columns;
  const int64_t mine = width_of(pieces[static_cast<size_t>(rank_)]) * args.element;

  for (int64_t row = 0; row < args.rows; row += most_rows) {
    const int64_t rows = std::min(most_rows, args.rows - row);
    char* const out = static_cast<char*>(args.out) + row * args.out_stride;
    const char* const part = static_cast<const char*>(args.part) + row * args.part_stride;
    for (int64_t begin = 0; begin < widest; begin += most_columns) {
      const int64_t end = std::min(begin + most_columns, widest);
      // Columns [begin, end) of a rank's part, whose rows lie `stride` bytes apart at `from`, to their
      // places.
      const auto place = [&](int rank, const char* from, int64_t stride) {
        for_rows(rows, end - begin, [&](int64_t r) {
          for (const Columns& one : pieces[static_cast<size_t>(rank)]) {
            const int64_t source = one.source * args.element;
            const int64_t low = std::max(begin, source);
            const int64_t high = std::min(end, source + one.width * args.element);
            if (low >= high) continue;
            memcpy(out + r * args.out_stride + one.target * args.element + (low - source),
                   from + r * stride + (low - begin), static_cast<size_t>(high - low));
          }
        });
      };
      ++exchange_;
      char* const written = slot(rank_);
      const int64_t size = std::min(end, mine) - begin;
      if (size > 0 && !(args.first_only && rank_ == 0)) {
        copy_rows(written, size, part + begin, args.part_stride, rows, size);
      }
      publish();
      const bool wants = rank_ == 0 || !args.first_only;
      if (wants) place(rank_, part + begin, args.part_stride);
      for (int step = 1; step < ranks_; ++step) {
        const int rank = (rank_ + step) % ranks_;
        wait(rank, true);
        if (!wants) continue;
        const int64_t width = width_of(pieces[static_cast<size_t>(rank)]) * args.element;
        place(rank, slot(rank), std::min(end, width) - begin);
      }
    }
  }
}

void Ranks::send(const std::string& message) {
  const auto length = static_cast<uint64_t>(message.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += message;
  for (size_t begin = 0; begin < bytes.size(); begin += kSlotBytes) {
    ++exchange_;
    memcpy(slot(rank_), bytes.data() + begin,
           std::min(bytes.size() - begin, static_cast<size_t>(kSlotBytes)));
    publish();
    for (int rank = 1; rank < ranks_; ++rank) wait(rank, true);
  }
}

std::string Ranks::receive() {
  std::string bytes;
  uint64_t length = 0;
  do {
    const bool first = bytes.empty();
    ++exchange_;
    publish();
    wait(0, !first);
    if (first) memcpy(&length, slot(0), sizeof length);
    const uint64_t left = sizeof length + length - bytes.size();
    bytes.append(slot(0), std::min(left, static_cast<uint64_t>(kSlotBytes)));
    for (int rank = 1; rank < ranks_; ++rank) {
      if (rank != rank_) wait(rank, true);
    }
  } while (bytes.size() < sizeof length + length);
  return bytes.substr(sizeof length);
}

}  // namespace armllm
