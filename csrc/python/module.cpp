// The extension module armllm._kernels: the families of ops, and what the process chose for them.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/layouts.h"
#include "armllm/threads.h"
#include "families.h"
#include "recording.h"
#include "tensor.h"

namespace py = pybind11;

namespace armllm {

namespace {

void py_use_torch(PyObject* const* a) { use_torch(a[0], a[1], a[2]); }

py::dict report() {
  py::dict result;
  const Choice& choice = dispatched();
  for (size_t i = 0; i < static_cast<size_t>(kOpCount); ++i) {
    py::dict entry;
    entry["target"] = choice.target[i];
    entry["why"] = choice.why[i];
    result[op_name(static_cast<Op>(i))] = entry;
  }
  return result;
}

std::vector<std::string> compiled_targets() {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.compiled) names.emplace_back(target.name);
  }
  return names;
}

// By name of the target.
std::map<std::string, std::string> weight_layouts() {
  std::map<std::string, std::string> names;
  for (const TargetLayout& known : kTargetLayouts) names[known.target] = known.layout->name;
  return names;
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("use_torch", "tensor_type, tensor, negative", py_use_torch),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Kernels of armllm, with their checks. Use armllm.kernels, which says what each computes.";
  for (PyMethodDef* family :
       {methods, elementwise_methods(), attention_methods(), matmul_methods(), moe_methods(), lora_methods(),
        recurrence_methods(), sampling_methods(), ranks_methods()}) {
    if (PyModule_AddFunctions(m.ptr(), family) != 0) throw py::error_already_set();
  }
  m.def("weight_layouts", weight_layouts);
  m.def("report", report);
  m.def("targets", compiled_targets);
  m.def("problem", [] { return dispatched().problem; });
  py::class_<Program>(m, "Program").def("run", &Program::run, py::call_guard<py::gil_scoped_release>());
  m.def("start_recording", start_recording);
  m.def("take_recording", take_recording);
  m.def("stop_recording", stop_recording);
  bind_ranks(m.ptr());
  m.def("set_num_threads", set_num_threads, py::arg("threads"), py::pos_only());
  m.def("get_num_threads", num_threads);
  m.def("use_own_threads", use_own_threads, py::arg("own"), py::pos_only());
  m.def("count_threads", count_threads, py::arg("on"), py::pos_only());
  m.def("thread_counts", [] {
    const ThreadCounts counts = thread_counts();
    return py::make_tuple(counts.regions, counts.meetings, counts.updates);
  });
  m.def("thread_backend", [] { return std::string(thread_backend()); });
}

}  // namespace armllm
