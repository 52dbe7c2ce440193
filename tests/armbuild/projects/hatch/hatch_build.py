from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension


class CompileHook(BuildHookInterface):
    def initialize(self, version, build_data):
        extension = Extension("fixture_hatch._core", ["src/core.c"], py_limited_api=False)
        command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
        command.build_lib = str(Path(self.root, "build/lib"))
        command.build_temp = str(Path(self.root, "build/temp"))
        command.ensure_finalized()
        command.run()
        for output in command.get_outputs():
            build_data["force_include"][output] = f"fixture_hatch/{Path(output).name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
