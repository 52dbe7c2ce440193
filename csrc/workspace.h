// Scratch memory of the drivers.

#pragma once

#include <stdint.h>
#include <stdlib.h>

#include <memory>
#include <new>

namespace armllm {

// Scratch memory, 64-byte aligned, that stays with the calling thread from call to call.
class Workspace {
 public:
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      void* p = nullptr;
      if (posix_memalign(&p, 64, static_cast<size_t>(bytes)) != 0) throw std::bad_alloc();
      memory_.reset(static_cast<char*>(p));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(char* p) const { free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace armllm
