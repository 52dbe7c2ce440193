// The primitives of the target that includes this, inside its namespace.
// A header that an editor opens alone has no target: it gets the primitives of its machine (.clangd has the
// flags).

#ifndef ARMLLM_INLINE
#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.neon"
#endif
#if defined(__aarch64__)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif
#include "kernels/exp.h"
#endif
