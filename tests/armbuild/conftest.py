import importlib.util
import sys
from pathlib import Path

# helpers of these tests, importable by name under pytest's importlib mode
for _name in ("wheels", "arm_machine"):
    _spec = importlib.util.spec_from_file_location(
        f"armbuild_test_{_name}", Path(__file__).with_name(f"{_name}.py")
    )
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[f"armbuild_test_{_name}"] = _module
    _spec.loader.exec_module(_module)
