"""`tensor_parallel_size` "auto": one process, ranks or replicas, by nodes, limits, memory and the model."""

from __future__ import annotations

import json

import pytest

from armllm import LLM, EngineArgs, FlexibleArgumentParser
from armllm.engine import spread
from armllm.engine.spread import Nodes, spread_for
from armllm.errors import RequestError

GIB = 1 << 20  # in kB
LARGE = {  # 8 billion weights, and 250 MB in a layer as int8
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
}  # fmt: skip
SMALL = LARGE | {"hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 32000}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("VLLM_CPU_OMP_THREADS_BIND", "CPU_VISIBLE_MEMORY_NODES", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(tmp_path):
    """machine(nodes, cores of each, GiB of each, files): a tree with these nodes in /sys."""

    def make(nodes, cores=16, memory=64, **files):
        root = tmp_path / "root"
        for node in range(nodes):
            folder = root / f"sys/devices/system/node/node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{node * cores}-{(node + 1) * cores - 1}\n")
            (folder / "meminfo").write_text(f"Node {node} MemFree: {memory * GIB} kB\n")
        files = {"proc/meminfo": f"MemAvailable: {nodes * memory * GIB} kB\n"} | files
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return {"root": root, "allowed": frozenset(range(nodes * cores))}

    return make


@pytest.fixture
def choose(tmp_path):
    """choose(config, place, **options): what is started, and why."""

    def choose(config, place, *, replicas=True, **options):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        given = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16"} | options
        found = spread_for(str(folder), given, "server", replicas=replicas, **place)
        return found.ranks, found.replicas, found.reason

    return choose


def limit(version, cpus):
    if version == 2:
        return {"sys/fs/cgroup/cpu.max": f"{int(cpus * 1e5)} 100000\n"}
    base = "sys/fs/cgroup/cpu/cpu.cfs_"
    return {f"{base}quota_us": f"{int(cpus * 1e5)}\n", f"{base}period_us": "100000\n"}


@pytest.mark.parametrize("config", [LARGE, SMALL])
def test_one_node_is_one_process_whatever_the_model(choose, machine, config):
    assert choose(config, machine(1)) == (1, 1, "1 NUMA node may compute")


@pytest.mark.parametrize("nodes", [2, 8])
def test_a_model_of_large_layers_gets_ranks_and_one_of_small_layers_replicas(choose, machine, nodes):
    place = machine(nodes)
    ranks, replicas, reason = choose(LARGE, place)
    assert (ranks, replicas) == (nodes, 1)
    assert reason == (
        f"each of {nodes} ranks would read {416 // nodes} MiB of a layer, which takes longer than the gathers"
    )
    ranks, replicas, reason = choose(SMALL, place)
    assert (ranks, replicas) == (1, nodes)
    assert "MiB of a layer, too little beside the gathers, and each NUMA node has 64 GiB left" in reason
    ranks, replicas, reason = choose(SMALL, place, replicas=False)
    assert (ranks, replicas) == (1, 1)
    assert f"`armllm serve` would start {nodes} replicas" in reason


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("nodes", "cpus", "expected"),
    [(2, 16, 1), (2, 23, 1), (2, 24, 2), (2, 31, 2), (8, 32, 2), (8, 64, 4), (8, 0.5, 1), (8, 999, 8)],
)
def test_a_limit_on_cpu_time_leaves_the_nodes_that_it_fills(choose, machine, version, nodes, cpus, expected):  # noqa: PLR0917
    place = machine(nodes, **limit(version, cpus))
    ranks, replicas, reason = choose(SMALL, place)
    assert (ranks, replicas) == (1, expected)
    assert choose(LARGE, place)[:2] == (expected, 1)
    assert (f"the limit of {cpus:g} CPUs fills {expected} of {nodes} NUMA nodes" in reason) == (
        expected < nodes
    )


def test_a_cpuset_and_visible_nodes_leave_nodes_out(choose, machine, monkeypatch):
    place = machine(8)
    assert choose(SMALL, place | {"allowed": frozenset(range(40))})[:2] == (1, 3)
    assert choose(SMALL, place | {"allowed": frozenset(range(38))})[:2] == (1, 2), (
        "6 cores of 16 would be waited for"
    )
    assert choose(SMALL, place | {"allowed": frozenset(range(16))}) == (1, 1, "1 NUMA node may compute")
    monkeypatch.setenv("CPU_VISIBLE_MEMORY_NODES", "2,5,6")
    assert choose(SMALL, place)[:2] == (1, 3)
    assert choose(LARGE, place)[:2] == (1, 3), "8 heads are not cut into 3"


def test_a_model_that_does_not_fit_a_node_gets_ranks(choose, machine):
    place = machine(2, memory=18)
    ranks, replicas, reason = choose(LARGE, place)
    assert (ranks, replicas) == (2, 1)
    assert reason.startswith("weights and cache take 18.7")
    assert choose(LARGE, place, quantization="int8")[0] == 2, "it fits, and layers are large"


def test_a_model_of_small_layers_that_does_not_fit_a_node_gets_ranks(choose, machine):
    place = machine(2, memory=1)
    thin = SMALL | {"num_hidden_layers": 60}
    assert choose(thin, place)[:2] == (2, 1)
    assert choose(thin, place, quantization="int4")[:2] == (1, 2)
    odd = thin | {"num_key_value_heads": 1}
    ranks, replicas, reason = choose(odd, place)
    assert (ranks, replicas) == (1, 1)
    assert "but ranks can't compute it: tensor_parallel_size 2 does not divide" in reason


def test_the_cache_that_was_asked_for_has_to_fit_too(choose, machine, monkeypatch):
    place = machine(2, memory=64)
    assert choose(SMALL, place)[:2] == (1, 2)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "63.5")
    ranks, replicas, reason = choose(SMALL, place)
    assert (ranks, replicas) == (2, 1)
    assert "and a NUMA node has 64 GiB left" in reason


def test_replicas_fit_the_memory_of_a_container(choose, machine):
    cgroup = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{900 << 20}\n",
        "sys/fs/cgroup/memory.current": "0\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
    }
    config = SMALL | {"num_hidden_layers": 16}
    assert choose(config, machine(2, **cgroup))[:2] == (1, 1)


def test_what_ranks_cannot_compute_is_never_cut(choose, machine):
    place = machine(2)
    config = LARGE | {"num_key_value_heads": 1}
    assert choose(config, place)[:2] == (1, 2)
    assert choose(LARGE, place, backend="openvino", load_format="auto")[2] == "openvino computes"


def test_what_auto_does_not_go_with_is_refused(choose, machine, monkeypatch):
    place = machine(2)
    with pytest.raises(RequestError, match="auto and pipeline_parallel_size 2 do not go together"):
        choose(LARGE, place, pipeline_parallel_size=2)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-15|16-31")
    with pytest.raises(RequestError, match="auto chooses CPUs itself: leave out VLLM_CPU_OMP_THREADS_BIND"):
        choose(LARGE, place)


def test_programs_write_auto_as_the_command_line_does(make_checkpoint, monkeypatch, caplog):
    caplog.set_level("INFO", "armllm")
    monkeypatch.setattr(spread, "Nodes", NoNodes)
    folder = str(make_checkpoint().folder)
    llm = LLM(folder, tensor_parallel_size="auto", dtype="float32")
    assert llm.llm_engine.config.tensor_parallel_size == 1
    assert caplog.text.count("tensor_parallel_size auto: one process, since none was seen") == 1
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    for text, size in (("auto", 1), ("2", 2)):
        arguments = EngineArgs.from_cli_args(
            parser.parse_args(["--model", folder, "--tensor-parallel-size", text])
        )
        assert arguments.create_engine_config().tensor_parallel_size == size
    with pytest.raises(RequestError, match="tensor_parallel_size must be a positive integer, not 'many'"):
        LLM(folder, tensor_parallel_size="many")


class NoNodes:
    @staticmethod
    def of(_root, _allowed):
        return Nodes(1, "none was seen", 0, 0)
