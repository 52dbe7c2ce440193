"""A vLLM of the tests' own: what a module of the plugin imports of it, without the package."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types

import pytest


@contextlib.contextmanager
def plugin_module(name, names, *others):
    """Import a module of the plugin, where vLLM is ``names``: the attributes of each of its modules.

    ``others`` are modules of the plugin that this one imports, and that import vLLM.
    """
    ours = [f"armllm.vllm_plugin.{one}" for one in (name, *others)]
    with pytest.MonkeyPatch.context() as patch:
        for path, attributes in names.items():
            parts = path.split(".")
            for count in range(1, len(parts)):
                parent = ".".join(parts[:count])
                if parent not in names:
                    patch.setitem(sys.modules, parent, types.ModuleType(parent))
            module = types.ModuleType(path)
            vars(module).update(attributes)
            patch.setitem(sys.modules, path, module)
        for one in ours:
            sys.modules.pop(one, None)
        yield importlib.import_module(ours[0])
        for one in ours:
            del sys.modules[one]
