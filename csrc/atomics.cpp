#include "atomics.h"

#include "armllm/dispatch.h"

namespace armllm {

#if defined(__aarch64__)

namespace {

// The audit allows LSE in this section (src/armbuild/audit/floor.py): nothing but the check below leads to
// it.
#if defined(__clang__)
#define ARMLLM_LSE __attribute__((target("lse"), section("armllm_lse"), noinline))
#else
#define ARMLLM_LSE __attribute__((target("+lse"), section("armllm_lse"), noinline))
#endif

ARMLLM_LSE int64_t lse_add(int64_t* value, int64_t n) {
  return __atomic_fetch_add(value, n, __ATOMIC_RELAXED);
}
ARMLLM_LSE void lse_add_release(int64_t* value, int64_t n) { __atomic_fetch_add(value, n, __ATOMIC_RELEASE); }

const bool cpu_has_lse = cpu_has("atomics");

}  // namespace

bool has_lse() { return cpu_has_lse; }

int64_t Counter::add(int64_t n) {
  return cpu_has_lse ? lse_add(&value_, n) : __atomic_fetch_add(&value_, n, __ATOMIC_RELAXED);
}
void Counter::add_release(int64_t n) {
  if (cpu_has_lse) {
    lse_add_release(&value_, n);
  } else {
    __atomic_fetch_add(&value_, n, __ATOMIC_RELEASE);
  }
}

#else

bool has_lse() { return false; }
int64_t Counter::add(int64_t n) { return __atomic_fetch_add(&value_, n, __ATOMIC_RELAXED); }
void Counter::add_release(int64_t n) { __atomic_fetch_add(&value_, n, __ATOMIC_RELEASE); }

#endif

}  // namespace armllm
