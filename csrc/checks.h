// What drivers check of indices, in the words of the messages.

#pragma once

#include <stdint.h>

#include <stdexcept>
#include <string>

namespace armllm {

// "name[index] is value", the beginning of a message.
inline std::string item(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

// starts[count + 1] of sequences whose `tokens` are rows of the tensor `of`: from 0, never falling.
inline void check_query_start_loc(const int32_t* starts, int64_t count, int64_t tokens, const char* of) {
  constexpr const char* kName = "query_start_loc";
  if (starts[0] != 0) throw std::invalid_argument(item(kName, 0, starts[0]) + ", not 0");
  for (int64_t s = 1; s <= count; ++s) {
    if (starts[s] < starts[s - 1]) {
      throw std::invalid_argument(item(kName, s, starts[s]) + ", less than the entry before");
    }
  }
  if (starts[count] != tokens) {
    throw std::invalid_argument(item(kName, count, starts[count]) + ", but " + of + " has " +
                                std::to_string(tokens) + " tokens");
  }
}

}  // namespace armllm
