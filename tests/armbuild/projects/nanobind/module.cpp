#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#ifndef __aarch64__
#error compiled for the build machine
#endif

NB_MODULE(_core, m) {
  m.def("join", [](const std::vector<int>& values) {
    std::string text;
    for (int value : values) text += std::to_string(value) + ";";
    return text;
  });
}
