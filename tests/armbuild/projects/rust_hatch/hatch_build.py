import subprocess
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        subprocess.run(["cargo", "build", "--release", "--offline"], cwd=self.root, check=True)
        name = "fixture_rust" + sysconfig.get_config_var("EXT_SUFFIX")
        build_data["force_include"]["target/release/libfixture_rust.so"] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
