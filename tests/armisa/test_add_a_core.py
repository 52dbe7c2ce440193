"""A new core is an entry of cores.toml, as docs/contributing/add-a-core.md says: no code knows names."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = """

[[core]]
name = "Neoverse-Z9"
implementer = 0x41
part = 0xdff
features = ["9.0c"]
sve = 256
"""
CPUINFO = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xdff\n"
# Finders that are objects belong to an editable installation, which would give the tree in place of the copy.
SCRIPT = """
import json, sys
from pathlib import Path
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
sys.path.insert(0, sys.argv[1])
import armisa
from armbuild.audit import parse_floor
from armbuild.wheel import planning, project, settings
described = project.read(Path(sys.argv[2]))
plan = planning.plan(settings.Settings(lane="cross", baseline="neoverse-z9"), described)
print(json.dumps({
    "listed": "neoverse-z9" in armisa.target_names(),
    "detected": [core.name for core in armisa.Isa.from_cpuinfo(sys.argv[3]).cores],
    "floor": "bf16" in parse_floor("neoverse-z9"),
    "flags": armisa.compiler_flags(armisa.Isa.from_target("neoverse-z9"), "gcc"),
    "plan": plan.as_dict()["wheels"][0]["file"],
}))
"""


def test_one_entry_is_enough_for_detection_plans_and_audits(tmp_path):
    for package in ("armisa", "armbuild", "armcli"):
        shutil.copytree(ROOT / "src" / package, tmp_path / package)
    with (tmp_path / "armisa/data/cores.toml").open("a") as table:
        table.write(CORE)
    project = ROOT / "tests/armbuild/projects/setuptools"
    command = [sys.executable, "-c", SCRIPT, tmp_path, project, CPUINFO]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["listed"]
    assert found["detected"] == ["Neoverse-Z9"]
    assert found["floor"]
    assert "sve2" in found["flags"]
    assert "+neoverse.z9-" in found["plan"]
