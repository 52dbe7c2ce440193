import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("armbuild_test_small", Path(__file__).with_name("small.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["armbuild_test_small"] = _module
_spec.loader.exec_module(_module)
