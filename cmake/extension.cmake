# The extension module armllm._kernels and build_info.json beside it.

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 3 CONFIG REQUIRED)

pybind11_add_module(_kernels MODULE NO_EXTRAS csrc/python/module.cpp csrc/python/arguments.cpp
                    csrc/python/tensor.cpp csrc/python/elementwise.cpp csrc/python/attention.cpp csrc/python/matmul.cpp
                    csrc/python/lora.cpp csrc/python/moe.cpp csrc/python/ranks.cpp csrc/python/recording.cpp csrc/python/recurrence.cpp csrc/python/sampling.cpp)
target_link_libraries(_kernels PRIVATE armllm_kernels)
target_compile_features(_kernels PRIVATE cxx_std_17)
set_target_properties(_kernels PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
# Pages of 64 KiB exist on Arm servers; relocated data is read-only once the library is loaded.
target_link_options(_kernels PRIVATE -Wl,-z,max-page-size=0x10000 -Wl,-z,relro -Wl,-z,now)
if(ARMLLM_MACHINE STREQUAL "aarch64")
  target_compile_options(_kernels PRIVATE -mno-outline-atomics ${ARMLLM_BRANCH_PROTECTION})
endif()

if(SKBUILD_PROJECT_VERSION_FULL)
  set(version ${SKBUILD_PROJECT_VERSION_FULL})
else()
  file(STRINGS ${PROJECT_SOURCE_DIR}/pyproject.toml version_line REGEX "^version = ")
  string(REGEX REPLACE "^version = \"(.*)\"$" "\\1" version "${version_line}")
endif()
if(ARMLLM_BASELINE)
  set(baseline ${ARMLLM_BASELINE})
elseif(ARMLLM_MACHINE STREQUAL "aarch64")
  set(baseline armv8-a)
else()
  set(baseline x86-64)
endif()
list(JOIN ARMLLM_TARGETS "\", \"" target_list)
configure_file(cmake/build_info.json.in build_info.json @ONLY)

install(TARGETS _kernels LIBRARY DESTINATION armllm)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/build_info.json DESTINATION armllm)
