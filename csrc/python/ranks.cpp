// Processes that compute one model together.

#include "armllm/ranks.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

#include "arguments.h"
#include "families.h"
#include "gatherer.h"
#include "recording.h"
#include "tensor.h"

namespace py = pybind11;

namespace armllm {

namespace {

// pieces: for each rank (source, target, width) of its runs of columns. first_only: the whole is for rank 0.
Gatherer make_gatherer(std::shared_ptr<Ranks> ranks,
                       const std::vector<std::vector<std::array<int64_t, 3>>>& pieces, bool first_only) {
  Gatherer result{std::move(ranks), {}};
  result.first_only = first_only;
  if (pieces.size() != static_cast<size_t>(result.ranks->size())) {
    throw std::invalid_argument("pieces are not those of all ranks");
  }
  for (const auto& of_rank : pieces) {
    auto& columns = result.pieces.emplace_back();
    int64_t source = 0;
    for (const auto& [begin, target, width] : of_rank) {
      if (begin != source || target < 0 || width < 0 || width > INT32_MAX || target > INT32_MAX) {
        throw std::invalid_argument("pieces: the columns of a part follow one another");
      }
      source += width;
      columns.push_back({begin, target, width});
      result.whole = std::max(result.whole, target + width);
    }
    if (columns.empty()) throw std::invalid_argument("pieces: every rank has a part");
    if (result.pieces.size() == static_cast<size_t>(result.ranks->rank()) + 1) result.part = source;
  }
  return result;
}

void py_gather_parts(PyObject* const* a) {
  const auto gatherer = py::cast<std::shared_ptr<Gatherer>>(py::handle(a[2]));
  StorageType type;
  Size rows("rows"), columns(gatherer->part), all(gatherer->whole);
  const Tensor part = TensorMatcher({rows, columns}).of(type).match("part", a[1]);
  const Tensor out = TensorMatcher({rows, all}).of(type).written().match("out", a[0]);
  const int64_t element = type == Storage::f32 ? 4 : 2;
  const Ranks::Gather args{
      out.data, part.data,           rows, out.stride[0] * element, part.stride[0] * element,
      element,  gatherer->first_only};
  run_op([=] { gatherer->ranks->gather(args, gatherer->pieces); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("gather_parts", "out, part, gatherer", py_gather_parts),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* ranks_methods() { return methods; }

void bind_ranks(PyObject* module) {
  py::handle m(module);
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Ranks, std::shared_ptr<Ranks>>(m, "Ranks")
      .def(py::init<int, int, int, double>(), py::arg("file"), py::arg("rank"), py::arg("size"),
           py::arg("seconds"), py::pos_only())
      .def_static("bytes", &Ranks::bytes, py::arg("size"), py::pos_only())
      .def_property_readonly("rank", &Ranks::rank)
      .def_property_readonly("size", &Ranks::size)
      .def(
          "send",
          [](Ranks& ranks, const py::bytes& message) {
            const auto bytes = static_cast<std::string>(message);
            const py::gil_scoped_release released;
            ranks.send(bytes);
          },
          py::arg("message"), py::pos_only())
      .def("receive",
           [](Ranks& ranks) {
             std::string message;
             {
               const py::gil_scoped_release released;
               message = ranks.receive();
             }
             return py::bytes(message);
           })
      .def("fail", &Ranks::fail, py::arg("code"), py::pos_only(), Released())
      .def("awake", &Ranks::awake, py::arg("rank"), py::pos_only())
      .def_property_readonly("failure", &Ranks::failure);
  m.attr("Ranks").attr("LATE") = Ranks::kLate;
  py::class_<Gatherer, std::shared_ptr<Gatherer>>(m, "Gatherer")
      .def(py::init(&make_gatherer), py::arg("ranks"), py::arg("pieces"), py::arg("first_only") = false,
           py::pos_only())
      .def_readonly("part", &Gatherer::part)
      .def_readonly("whole", &Gatherer::whole);
}

}  // namespace armllm
