"""Renames hooks and attributes of vLLM, each in a process of its own, and prints the parts that need it."""

import importlib
import inspect
import json
import os
import sys

from vllm.model_executor.custom_op import op_registry_oot

from armllm import vllm_plugin


def rename(holder, name):
    if hasattr(holder, name):
        delattr(holder, name)
        return
    for method in filter(inspect.isfunction, vars(holder).values()):
        code = method.__code__
        names, constants = (
            tuple(f"{name}_" if one == name else one for one in each)
            for each in (code.co_names, code.co_consts)
        )
        method.__code__ = code.replace(co_names=names, co_consts=constants)


holders = []
for module, path in json.loads(sys.argv[1]):
    holder = importlib.import_module(module)
    *classes, name = path.split(".")
    for one in classes:
        holder = getattr(holder, one)
    holders.append((holder, name))
for holder, name in holders:
    if os.fork() == 0:
        rename(holder, name)
        vllm_plugin.register()
        problems = sorted(one.part for one in vllm_plugin.activate() if one.is_problem)
        ours = {f"armllm.vllm_plugin.{vllm_plugin.PARTS[part]}" for part in problems}
        half = sorted(name for name, one in op_registry_oot.items() if one.__module__ in ours)
        assert not half, half  # a part that is not active has replaced nothing
        print("PARTS", *problems, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
