from setuptools import Extension, setup

setup(ext_modules=[Extension("fixture_setuptools._core", ["src/core.c"], define_macros=[("ANSWER", "42")])])
