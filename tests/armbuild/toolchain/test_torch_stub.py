import os
import subprocess
import sys

from armbuild.host import pythons
from armbuild.toolchain import crossenv, torch_stub
from armbuild.wheel.lanes import cross


def test_torch_is_taken_out_of_the_build_requirements_and_its_helpers_put_in():
    assert torch_stub.split(["setuptools", "Torch>=2"]) == (
        ["setuptools", *torch_stub.BUILD_TIME],
        "Torch>=2",
    )
    assert torch_stub.split(["torch>=2", "torch==2.10.0"]) == ([*torch_stub.BUILD_TIME], "torch==2.10.0,>=2")
    assert torch_stub.split(["setuptools", "torchvision"]) == (["setuptools", "torchvision"], None)


def test_the_stand_in_answers_for_the_target_and_refuses_to_run_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    asked = []

    def install(packages, _python, folder, **_others):
        asked.extend(packages)
        (folder / "torch/utils").mkdir(parents=True)
        (folder / "torch/version.py").write_text("__version__ = '2.10.0'\ncuda = None\n")
        (folder / "torch/torch_version.py").write_text(
            "from torch.version import __version__\nTorchVersion = str\n"
        )
        (folder / "torch/utils/cpp_extension.py").write_text("import torch\nhome = __file__\n")

    monkeypatch.setattr(torch_stub.target_packages, "install", install)
    stub, site, cmake = torch_stub.make(
        "torch>=2; python_version > '3'", pythons.find(), log=tmp_path / "log"
    )
    assert asked == ["torch<2.11,>=2"]
    code = (
        "import torch, torch.utils.cpp_extension as e\n"
        "print(torch.__version__, e.home, torch.cuda.is_available(),"
        " torch.utils.cmake_prefix_path, torch.compiled_with_cxx11_abi())\n"
        "print(torch.__file__, 'OpenMP' in torch._C._parallel_info())\n"
        "with torch.monitor._WaitCounter('x').guard(): pass\ntorch.cuda.synchronize()"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(stub)},
        capture_output=True,
        text=True,
        check=False,
    )
    home = site / "torch"
    assert cmake == home / "share/cmake"
    assert done.stdout.split() == [
        "2.10.0",
        f"{home}/utils/cpp_extension.py",
        "False",
        f"{home}/share/cmake",
        "True",
        f"{home}/__init__.py",
        "True",
    ]
    assert "torch.cuda.synchronize: this torch is the target's" in done.stderr


def test_a_cuda_build_of_torch_gets_a_cmake_package_of_its_cpu_part(tmp_path, monkeypatch):
    """The build's own file looks for CUDA, and stops. What torch brings is no project's."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))

    def install(_packages, _python, folder, **_others):
        (folder / "torch/lib").mkdir(parents=True)
        (folder / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
        for name in ("torch_cuda", "torch", "torch_cpu", "c10"):
            (folder / f"torch/lib/lib{name}.so").touch()
        (folder / "torch/share/cmake/Torch").mkdir(parents=True)
        (folder / "torch/share/cmake/Torch/TorchConfig.cmake").write_text('message(FATAL_ERROR "no CUDA")\n')

    monkeypatch.setattr(torch_stub.target_packages, "install", install)
    variables = cross.with_torch({"PYTHONPATH": ""}, "torch>=2.11", pythons.find(), tmp_path)
    site = variables[crossenv.TARGET_SITE]
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(user LANGUAGES NONE)\n"
        "find_package(Torch CONFIG REQUIRED)\n"
        "get_target_property(place torch_cpu IMPORTED_LOCATION)\n"
        "get_target_property(links torch INTERFACE_LINK_LIBRARIES)\n"
        "find_library(brought c10)\n"
        'message(STATUS "found ${Torch_VERSION} ${place} ${links} ${TORCH_LIBRARIES} ${brought}")\n'
    )
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "build"],
        env={**variables, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    libraries = f"{site}/torch/lib/libtorch_cpu.so torch_cpu;c10 torch brought-NOTFOUND"
    assert f"found 2.11.0 {libraries}" in done.stdout, done.stderr
