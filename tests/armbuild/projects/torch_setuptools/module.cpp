#include <torch/extension.h>

#include <stdexcept>
#include <string>
#include <vector>

torch::Tensor total(const std::vector<torch::Tensor>& parts, const std::string& name) {
  if (parts.empty()) throw std::invalid_argument("nothing to add for " + name);
  torch::Tensor sum = torch::zeros_like(parts[0]);
  for (const torch::Tensor& part : parts) sum += part;
  return sum;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("total", &total); }
