# The machine that is built for, as the compiler sees it: CMAKE_SYSTEM_PROCESSOR can be wrong when cross-compiling.

include(CheckCXXSourceCompiles)

function(armllm_compiles result condition)
  check_cxx_source_compiles("
#if !(${condition})
#error no
#endif
int main() { return 0; }" ${result})
  set(${result} ${${result}} PARENT_SCOPE)
endfunction()

# Older ones lack intrinsics, or crash (docs/kernels.md).
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  message(FATAL_ERROR "armllm needs GCC 12, clang 15 or newer; ${CMAKE_CXX_COMPILER} is "
                      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
endif()

set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
armllm_compiles(ARMLLM_IS_LITTLE_ENDIAN "__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__")
armllm_compiles(ARMLLM_IS_LP64 "defined(__LP64__)")
armllm_compiles(ARMLLM_IS_AARCH64 "defined(__aarch64__)")
armllm_compiles(ARMLLM_IS_X86_64 "defined(__x86_64__)")
unset(CMAKE_TRY_COMPILE_TARGET_TYPE)

if(NOT ARMLLM_IS_LP64)
  message(FATAL_ERROR "armllm needs a 64-bit target (AArch64 or x86-64 Linux); ${CMAKE_CXX_COMPILER} builds for another")
elseif(NOT ARMLLM_IS_LITTLE_ENDIAN)
  message(FATAL_ERROR "armllm needs a little-endian target; ${CMAKE_CXX_COMPILER} builds for a big-endian one")
elseif(ARMLLM_IS_AARCH64)
  set(ARMLLM_MACHINE aarch64)
elseif(ARMLLM_IS_X86_64)
  set(ARMLLM_MACHINE x86_64)
else()
  message(FATAL_ERROR "armllm builds for AArch64 and x86-64 Linux; ${CMAKE_CXX_COMPILER} builds for another machine")
endif()

# A release for AArch64 is -O2 with every compiler: zig, which makes the published wheels, takes -O3 for -O2, and the
# kernels' cycles are counted so. x86-64 keeps CMake's -O3.
if(ARMLLM_MACHINE STREQUAL "aarch64")
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()

# Return addresses are signed (PACIASP) and checked (AUTIASP), which older cores skip as hints. Without BTI: the
# linker marks a library for it only if all objects in it have landing pads, and those of zig's C++ runtime don't.
if(ARMLLM_MACHINE STREQUAL "aarch64")
  set(ARMLLM_BRANCH_PROTECTION -mbranch-protection=pac-ret)
endif()
