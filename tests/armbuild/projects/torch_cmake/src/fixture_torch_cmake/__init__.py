import pathlib

import torch

torch.ops.load_library(pathlib.Path(__file__).with_name("ops.so"))
total = torch.ops.fixture_torch_cmake.total
