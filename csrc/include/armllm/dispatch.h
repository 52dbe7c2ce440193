// Which target's kernel each op uses: chosen once, when the library is loaded.

#pragma once

#include <string>
#include <vector>

#include "armllm/kernels.h"

namespace armllm {

enum class Op : int {
#define ARMLLM_OP(type, name) name,
  ARMLLM_OPS(ARMLLM_OP)
#undef ARMLLM_OP
      count
};
inline constexpr int kOpCount = static_cast<int>(Op::count);
const char* op_name(Op op);

// A target of this machine, compiled in or not, as kernels.toml says it.
struct Target {
  const char* name;
  bool compiled;
  std::vector<const char*> features;
  int sve_bits;                // the shortest SVE vectors that it is for, in bits, a power of two; 0: none
  void (*fill)(KernelTable&);  // sets the entries of the target's ops
  std::vector<Op> ops;
};
const std::vector<Target>& targets();

// Whether the operating system and the CPU offer the feature (a name as in /proc/cpuinfo).
bool cpu_has(const std::string& feature);

struct Choice {
  KernelTable table;
  std::vector<std::string> target;  // per op
  std::vector<std::string> why;     // per op: why a better target was not chosen
  std::string problem;              // a cap that names no target of this machine; empty when all is well
};
// The last target in the table that was compiled in, that `has` all its features and SVE vectors long enough
// (those of this process, unless said otherwise), that is not above `cap` and that has the op. An empty or
// unknown cap caps nothing.
Choice choose(const std::string& cap, bool (*has)(const std::string& feature));
Choice choose(const std::string& cap, bool (*has)(const std::string& feature), int vector_bits);

// The choice for this process: this CPU, capped by the environment variable ARMLLM_ISA.
const Choice& dispatched();

}  // namespace armllm
