import importlib.util
import sys
from pathlib import Path

# helpers of these tests, importable by name under pytest's importlib mode
_spec = importlib.util.spec_from_file_location("armbuild_test_wheels", Path(__file__).with_name("wheels.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["armbuild_test_wheels"] = _module
_spec.loader.exec_module(_module)
