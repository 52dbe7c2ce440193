from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[CppExtension("fixture_torch_setuptools", ["module.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
