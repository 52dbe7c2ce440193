// A packed weight of 4 or 8 bits in the layout of this process, as a PackedWeight describes itself.

#pragma once

#include <string>

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "tensor.h"

namespace armllm {

// What the products with weights of so many bits read in this process.
struct CurrentLayout {
  explicit CurrentLayout(int bits)
      : layout(matmul_kernel(dispatched().table, bits, Storage::f32).layout),
        target(dispatched()
                   .target[static_cast<size_t>(bits == 4 ? Op::matmul_w4a8_f32 : Op::matmul_w8a8_f32)]
                   .c_str()) {}
  const WeightLayout* layout;
  const char* target;
};

struct QuantizedWeight {
  const char* name;
  int bits;
  WeightShape shape;
  std::string_view layout, target;

  // (bits, out_features, in_features, group_size, zero_points, scales, values, layout, target)
  QuantizedWeight(const char* argument, PyObject* description) : name(argument) {
    const Description fields(name, description, 9);
    bits = static_cast<int>(fields.number(0));
    shape = {fields.number(1),
             fields.number(2),
             fields.number(3),
             fields.number(4) != 0,
             storage_of("scales", fields.text(5)),
             values_of("values", fields.text(6))};
    layout = fields.text(7);
    target = fields.text(8);
  }

  const void* match(const char* data_name, PyObject* data) const {
    const CurrentLayout here(bits);
    if (layout != here.layout->name) {
      throw std::invalid_argument(std::string(name) + " was packed for target " + std::string(target) +
                                  " (layout " + std::string(layout) + "); this process uses " + here.target +
                                  " (layout " + here.layout->name + "): pack it again");
    }
    Size bytes(packed_bytes(*here.layout, bits, shape));
    return TensorMatcher({bytes}).of(kUint8).aligned().match(data_name, data).data;
  }
};

}  // namespace armllm
