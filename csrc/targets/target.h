// Included first by every target: how its code stays apart from all other code.
//
// Only the table entries of a target are real functions; each lies in the section `armllm.<target>` (the
// audit reads these names). Everything else is forced inline into them, because GCC before 14 ignores the
// section of a function template. All of it has internal linkage, so that no linker can pick one target's
// copy for another.

#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "armllm/kernels.h"
#include "armllm/layouts.h"

#if defined(__SANITIZE_ADDRESS__)
// A sanitizer's checks in every copy take the compiler minutes.
#define ARMLLM_INLINE static inline
#define ARMLLM_MEMBER inline
#define ARMLLM_LAMBDA
#else
#define ARMLLM_INLINE static inline __attribute__((always_inline))
#define ARMLLM_MEMBER inline __attribute__((always_inline))
#define ARMLLM_LAMBDA __attribute__((always_inline))
#endif
#define ARMLLM_ENTRY __attribute__((section(ARMLLM_SECTION), noinline))
// Names an inner loop for tools/cycles.py and count_instructions.py, by a label: once per `n` vectors of
// elements, or with the number of rows. Nothing in a build for use.
#if defined(ARMLLM_MARK_LOOPS)
#define ARMLLM_LOOP(name, n) __asm__ volatile("armllm_loop." name ".%c0.%=:" : : "i"(n))
// Weights of so many bits: the features of a block, the panels that take it one after the other, and the
// bytes of a tile's activations from which on features come in blocks.
#define ARMLLM_BLOCK(bits, features, panels, bytes)                                             \
  __asm__ volatile("armllm_block.%c0.%c1.%c2.%c3.%=:"                                           \
                   :                                                                            \
                   : "i"(bits), "i"(static_cast<int>(features)), "i"(static_cast<int>(panels)), \
                     "i"(static_cast<int>(bytes)))
#else
#define ARMLLM_LOOP(name, n)
#define ARMLLM_BLOCK(bits, features, panels, bytes)
#endif
#if defined(__clang__)
#define ARMLLM_UNROLL _Pragma("unroll")
#else
#define ARMLLM_UNROLL _Pragma("GCC unroll 16")
#endif
