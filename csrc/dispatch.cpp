#include "armllm/dispatch.h"

#include <stdlib.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace armllm {

namespace {

// Which word, and which bit of it, says that the CPU has a feature.
struct FeatureBit {
  const char* name;
  int word;
  int bit;
};

constexpr bool same(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

#if defined(__aarch64__)

// Linux, arch/arm64/include/uapi/asm/hwcap.h: AT_HWCAP is word 0, AT_HWCAP2 word 1.
constexpr FeatureBit kFeatureBits[] = {
    {"fp", 0, 0},        {"asimd", 0, 1},    {"atomics", 0, 8},   {"fphp", 0, 9},  {"asimdhp", 0, 10},
    {"asimddp", 0, 20},  {"sve", 0, 22},     {"asimdfhm", 0, 23}, {"sve2", 1, 1},  {"svei8mm", 1, 9},
    {"svef32mm", 1, 10}, {"svebf16", 1, 12}, {"i8mm", 1, 13},     {"bf16", 1, 14},
};

uint64_t feature_word(int word) { return getauxval(word == 0 ? AT_HWCAP : AT_HWCAP2); }

#elif defined(__x86_64__)

// Intel SDM volume 2, CPUID: word 0 is leaf 1 ECX, word 1 leaf 7 EBX, word 2 leaf 7 ECX, word 3 leaf 7 EDX,
// word 4 leaf 7.1 EAX. The wide registers also need the operating system to save them (XCR0).
constexpr FeatureBit kFeatureBits[] = {
    {"fma", 0, 12},         {"avx", 0, 28},      {"f16c", 0, 29},     {"avx2", 1, 5},
    {"avx512f", 1, 16},     {"avx512dq", 1, 17}, {"avx512bw", 1, 30}, {"avx512vl", 1, 31},
    {"avx512_vnni", 2, 11}, {"amx_bf16", 3, 22}, {"amx_tile", 3, 24}, {"amx_int8", 3, 25},
    {"avx512_bf16", 4, 5},
};

uint64_t saved_registers() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Whether this process may use AMX's tiles, which Linux asks to be requested, once for all threads (Linux,
// Documentation/arch/x86/xstate.rst).
bool has_tiles(uint64_t saved) {
  constexpr uint64_t kTiles = 0x60000;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  if ((saved & kTiles) != kTiles) return false;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

uint64_t feature_word(int word) {
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;
  constexpr unsigned kNeedsZmm = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  constexpr unsigned kNeedsTiles = 1u << 22 | 1u << 24 | 1u << 25;
  const uint64_t saved = saved_registers();
  unsigned a = 0, b = 0, c = 0, d = 0;
  if ((saved & kYmm) != kYmm) return 0;
  if (word == 0) return __get_cpuid(1, &a, &b, &c, &d) != 0 ? c : 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return 0;
  const bool zmm = (saved & kZmm) == kZmm;
  if (word == 1) return zmm ? b : b & ~kNeedsZmm;
  if (!zmm) return 0;
  if (word == 2) return c;
  if (word == 3) return (d & kNeedsTiles) != 0 && has_tiles(saved) ? d : d & ~kNeedsTiles;
  return a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 ? a : 0;
}

#endif

constexpr bool is_known(const char* name) {
  for (const FeatureBit& f : kFeatureBits) {
    if (same(f.name, name)) return true;
  }
  return false;
}

// Bits of this process's SVE vectors, 0 without SVE.
int sve_bits() {
#if defined(__aarch64__)
  constexpr int kGetVectorLength = 51, kLengthMask = 0xffff;  // Linux, prctl(2): PR_SVE_GET_VL, in bytes
  const int length = prctl(kGetVectorLength);
  return length < 0 ? 0 : (length & kLengthMask) * 8;
#else
  return 0;
#endif
}

}  // namespace

// kTargets, and a check that every feature it names is in kFeatureBits. Written by cmake/kernel_table.py.
#include "kernel_table.inc"

const char* op_name(Op op) {
  static const char* const kNames[] = {
#define ARMLLM_OP_NAME(type, name) #name,
      ARMLLM_OPS(ARMLLM_OP_NAME)
#undef ARMLLM_OP_NAME
  };
  return kNames[static_cast<int>(op)];
}

bool cpu_has(const std::string& feature) {
  for (const FeatureBit& f : kFeatureBits) {
    if (feature == f.name) return (feature_word(f.word) >> f.bit & 1) != 0;
  }
  return false;
}

Choice choose(const std::string& cap, bool (*has)(const std::string& feature)) {
  return choose(cap, has, sve_bits());
}

Choice choose(const std::string& cap, bool (*has)(const std::string& feature), int vector_bits) {
  const std::vector<Target>& all = targets();
  Choice choice{};
  choice.target.resize(kOpCount);
  choice.why.resize(kOpCount);

  size_t last = all.size();
  if (!cap.empty()) {
    std::string names;
    for (size_t i = 0; i < all.size(); ++i) {
      if (cap == all[i].name) last = i + 1;
      names += (i == 0 ? "" : ", ") + std::string(all[i].name);
    }
    if (last == all.size() && cap != all.back().name) {
      choice.problem =
          "ARMLLM_ISA=" + cap + " names no kernel target of this machine and is ignored; it has: " + names;
    }
  }

  for (size_t i = 0; i < all.size(); ++i) {
    const Target& target = all[i];
    std::string missing;
    if (i >= last) missing = "capped by ARMLLM_ISA=" + cap;
    if (!target.compiled) missing = "not compiled in";
    for (const char* feature : target.features) {
      if (missing.empty() && !has(feature)) missing = std::string("the CPU lacks ") + feature;
    }
    // Compilers take every length for a power of two (LLVM Language Reference, vscale).
    if (missing.empty() && target.sve_bits != 0 && (vector_bits & (vector_bits - 1)) != 0) {
      missing = "SVE vectors here have " + std::to_string(vector_bits) + " bits, no power of two";
    }
    if (missing.empty() && vector_bits < target.sve_bits) {
      missing = "SVE vectors here have " + std::to_string(vector_bits) + " bits, fewer than " +
                std::to_string(target.sve_bits);
    }
    if (missing.empty()) target.fill(choice.table);
    for (const Op op : target.ops) {
      const auto index = static_cast<size_t>(op);
      if (missing.empty()) {
        choice.target[index] = target.name;
        choice.why[index].clear();
      } else {
        std::string& why = choice.why[index];
        why += (why.empty() ? "" : "; ") + std::string(target.name) + ": " + missing;
      }
    }
  }
  for (std::string& why : choice.why) {
    if (why.empty()) why = "the best target that has this op";
  }
  return choice;
}

const Choice& dispatched() {
  static const Choice choice = [] {
    const char* cap = getenv("ARMLLM_ISA");
    return choose(cap == nullptr ? "" : cap, cpu_has);
  }();
  return choice;
}

}  // namespace armllm
