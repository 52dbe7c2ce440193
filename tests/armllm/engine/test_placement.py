"""Threads go to the performance cores of one NUMA node, or where the user says."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
import torch

from armisa import host
from armllm import LLM, SamplingParams
from armllm.engine import placement, sampler
from armllm.engine.placement import LARGE, decide, divide, place, torch_threads, unconfine
from armllm.errors import RequestError

NAMES = ("OMP_THREADS_BIND", "NUM_OF_RESERVED_CPU")
ALL = 1000  # threads wanted: as many as make sense


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(f"VLLM_CPU_{name}", raising=False)
        monkeypatch.delenv(f"ARMLLM_{name}", raising=False)
    monkeypatch.delenv("CPU_VISIBLE_MEMORY_NODES", raising=False)
    placement._say_once.cache_clear()


@pytest.fixture
def machine(tmp_path):
    """machine(nodes, siblings, capacities, midrs): a tree with these files in /sys."""

    def make(nodes=None, siblings=None, capacities=None, midrs=None):
        files = {f"node/node{node}/cpulist": cpus for node, cpus in (nodes or {}).items()}
        for cpu, text in (siblings or {}).items():
            files[f"cpu/cpu{cpu}/topology/thread_siblings_list"] = text
        for cpu, capacity in enumerate(capacities or ()):
            files[f"cpu/cpu{cpu}/cpu_capacity"] = str(capacity)
        for cpu, midr in enumerate(midrs or ()):
            files[f"cpu/cpu{cpu}/regs/identification/midr_el1"] = f"{midr:#018x}"
        for path, text in files.items():
            file = tmp_path / "sys/devices/system" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        return tmp_path

    return make


def cpus(*numbers):
    return frozenset(numbers)


def test_a_machine_of_equal_cores_is_left_alone(machine):
    found = decide(cpus(*range(64)), ALL, machine({0: "0-63"}))
    assert (found.num_threads, found.cpus, found.node) == (64, None, 0)


def test_the_node_with_most_allowed_cpus_is_taken(machine):
    root = machine({0: "0-31", 1: "32-63"})
    found = decide(cpus(*range(64)), ALL, root)
    assert (found.num_threads, found.cpus, found.node) == (32, frozenset(range(32)), 0)
    found = decide(cpus(*range(28, 64)), ALL, root)
    assert (found.num_threads, found.cpus, found.node) == (32, frozenset(range(32, 64)), 1)


def test_nodes_that_do_not_compute_are_said_once(machine, caplog):
    """Half of the memory's bandwidth would be left alone without a word."""
    root = machine({0: "0-3", 1: "4-7"})
    for allowed in (range(8), range(4), range(8)):
        decide(cpus(*allowed), ALL, root)
    (line,) = caplog.records
    assert "one of 2 NUMA nodes computes: --tensor-parallel-size 2 uses all" in line.message


def test_of_equal_nodes_the_one_with_more_memory_left_is_taken(machine):
    root = machine({0: "0-3", 1: "4-7"})
    for free, node in (((100, 900), 1), ((900, 100), 0), ((500, 500), 0)):
        for number, amount in enumerate(free):
            path = root / f"sys/devices/system/node/node{number}/meminfo"
            path.write_text(f"Node {number} MemTotal: 1000 kB\nNode {number} MemFree: {amount} kB\n")
        assert decide(cpus(*range(8)), ALL, root).node == node
    assert decide(cpus(*range(5)), ALL, root).node == 0, "but more CPUs come first"


def test_visible_nodes_limit_the_choice(machine, monkeypatch):
    root = machine({0: "0-31", 1: "32-39"})
    monkeypatch.setenv("CPU_VISIBLE_MEMORY_NODES", "1")
    assert decide(cpus(*range(40)), ALL, root).cpus == frozenset(range(32, 40))
    monkeypatch.setenv("CPU_VISIBLE_MEMORY_NODES", "0, 1")
    assert decide(cpus(*range(40)), ALL, root).cpus == frozenset(range(32))
    monkeypatch.setenv("CPU_VISIBLE_MEMORY_NODES", "2")
    with pytest.raises(RequestError, match="CPU_VISIBLE_MEMORY_NODES names node 2; here are 0, 1"):
        decide(cpus(*range(40)), ALL, root)
    monkeypatch.setenv("CPU_VISIBLE_MEMORY_NODES", "1")
    with pytest.raises(RequestError, match="not allowed here"):
        decide(cpus(3), ALL, root)


def test_hardware_threads_of_a_core_count_once(machine):
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    root = machine({0: "0-7"}, siblings)
    assert decide(cpus(*range(8)), ALL, root).cpus == cpus(0, 1, 2, 3)
    assert decide(cpus(1, 5, 6), ALL, root).cpus == cpus(1, 6)


def test_little_cores_are_left_out_by_type_or_by_capacity(machine):
    a55, a76, unknown = 0x412FD050, 0x414FD0B0, 0x7F0F0010
    rk3588 = machine({0: "0-7"}, capacities=[530] * 4 + [1024] * 4, midrs=[a55] * 4 + [a76] * 4)
    assert decide(cpus(*range(8)), ALL, rk3588).cpus == cpus(4, 5, 6, 7)
    assert decide(cpus(0, 1), ALL, rk3588).cpus is None, "only little ones are allowed"
    other = machine({0: "0-7"}, capacities=[300] * 4 + [900] * 3 + [1024], midrs=[unknown] * 8)
    assert decide(cpus(*range(8)), ALL, other).cpus == cpus(4, 5, 6, 7)


def test_fewer_threads_are_the_user_s_choice_and_the_quota_s(machine):
    root = machine({0: "0-7"})
    assert decide(cpus(*range(8)), 3, root).num_threads == 3
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("250000 100000\n")
    found = decide(cpus(*range(8)), ALL, root)
    assert (found.num_threads, found.cpus) == (2, None)
    (root / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert decide(cpus(*range(8)), ALL, root).num_threads == 1


def test_reserved_cpus_are_left_to_others(machine, monkeypatch):
    root = machine({0: "0-3"})
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    found = decide(cpus(*range(4)), ALL, root)
    assert (found.num_threads, found.cpus) == (3, cpus(0, 1, 2))
    monkeypatch.setenv("ARMLLM_NUM_OF_RESERVED_CPU", "2")
    assert decide(cpus(*range(4)), ALL, root).num_threads == 2
    for value, words in (("4", "leaves none of the 4 cores"), ("-1", "a number of CPUs"), ("x", "'x'")):
        monkeypatch.setenv("ARMLLM_NUM_OF_RESERVED_CPU", value)
        with pytest.raises(RequestError, match=words):
            decide(cpus(*range(4)), ALL, root)


def test_a_list_says_where_and_how_many(machine, monkeypatch):
    root = machine({0: "0-3", 1: "4-9"})
    for text, expected, node in (("0-2", cpus(0, 1, 2), 0), ("3, 5,8-9", cpus(3, 5, 8, 9), None)):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        found = decide(cpus(*range(10)), 1, root)
        assert (found.cpus, found.num_threads, found.node) == (expected, len(expected), node)
    for text in ("0-3|4-7", "a", "0-", "3-1", "0,,1", "-1"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        with pytest.raises(RequestError, match="must be auto, nobind or a list"):
            decide(cpus(*range(10)), 1, root)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0," * 50_000)
    with pytest.raises(RequestError) as caught:
        decide(cpus(*range(10)), 1, root)
    assert len(str(caught.value)) < 300, "the variable is repeated whole"
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "8-12")
    with pytest.raises(RequestError, match="names CPU 10"):
        decide(cpus(*range(10)), 1, root)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "nodes", [{0: "0-15"}, {0: "0-7", 1: "8-15"}, {node: f"{2 * node}-{2 * node + 1}" for node in range(8)}]
)
@pytest.mark.parametrize("allowed", [cpus(*range(16)), cpus(0, 1, 2, 3, 6, 9, 12, 13)], ids=["all", "cpuset"])
def test_no_two_ranks_share_a_cpu(machine, nodes, size, allowed):
    """With hardware threads, 8 ranks in the cpuset are more than its 5 cores, and have a thread each."""
    siblings = {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(16)}
    for threads in (None, siblings):
        root = machine(nodes, threads)
        found = [decide(allowed, ALL, root, rank=rank, size=size) for rank in range(size)]
        together = [cpu for one in found for cpu in one.cpus]
        assert len(together) == len(set(together))
        assert set(together) <= allowed
        assert all(one.num_threads == len(one.cpus) >= 1 for one in found)
        if sum(not allowed.isdisjoint(host.cpu_list(text)) for text in nodes.values()) >= size:
            assert len({one.node for one in found}) == size
            assert None not in {one.node for one in found}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [(0, 2, 4)]),
        (2, [(0, 2, 4), (6, 7, 8)]),
        (3, [(0, 2), (4, 6), (7, 8)]),
        (6, [(0,), (2,), (4,), (6,), (7,), (8,)]),
    ],
)
def test_cpus_without_a_core_or_a_node(machine, size, expected):
    """Where `lscpu -e` has a "-": CPU 5 is offline, 6 has no topology, 10 and 11 are of no node.

    Node 2 has memory only.
    """
    siblings = {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(12) if cpu not in {5, 6}}
    root = machine({0: "0-4", 1: "6-9", 2: ""}, siblings | {4: "4"}, midrs=[0x413FD0C1] * 5)
    online = cpus(*range(12)) - {5}
    found = [decide(online, ALL, root, rank=rank, size=size).cpus for rank in range(size)]
    assert found == [cpus(*one) for one in expected]
    shares = [share.cpus for share in divide(size, online, root)]
    assert sum(map(len, shares)) == len(frozenset().union(*shares))
    assert frozenset().union(*shares) <= online - {10, 11}
    assert [one <= share for one, share in zip(found, shares, strict=True)] == [True] * size


def test_ranks_beyond_the_cores_or_the_quota_are_warned_about(machine, caplog):
    root = machine({0: "0-1"})
    assert [decide(cpus(0, 1), ALL, root, rank=rank, size=3).cpus for rank in range(3)] == [{0}, {1}, {0}]
    assert caplog.text.count("3 ranks share the CPUs 0-1") == 1
    root = machine({0: "0-7"})
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    assert [decide(cpus(*range(8)), ALL, root, rank=rank, size=2).num_threads for rank in (0, 1)] == [1, 1]
    assert caplog.text.count("the limit of 1.5 CPUs is less than the 2 ranks") == 1
    (root / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert decide(cpus(*range(8)), ALL, root).num_threads == 1
    assert "1 ranks" not in caplog.text


def test_lists_of_ranks(machine, monkeypatch):
    root = machine({0: "0-3", 1: "4-7"})
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3|4,6-7")
    found = [decide(cpus(*range(8)), ALL, root, rank=rank, size=2) for rank in range(2)]
    assert [(one.cpus, one.node, one.num_threads) for one in found] == [
        (cpus(0, 1, 2, 3), 0, 4),
        (cpus(4, 6, 7), 1, 3),
    ]
    for text, words in (
        ("0-3", "or 2 lists of CPUs such as 0-31|32-63, one for each rank"),
        ("0|1|2", "or 2 lists"),
        ("0|", "or 2 lists"),
        ("0-3|3-4", "names CPU 3 in two lists: each rank needs its own CPUs"),
        ("0|8", "names CPU 8, which is not there or not allowed here; allowed are 0-7"),
    ):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        with pytest.raises(RequestError, match=re.escape(words)):
            decide(cpus(*range(8)), ALL, root, rank=1, size=2)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    assert decide(cpus(*range(8)), 8, root, rank=1, size=2).num_threads == 4


def test_nobind_leaves_everything_to_openmp(machine, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "NOBIND")
    found = decide(cpus(*range(8)), 5, machine({0: "0-3", 1: "4-7"}))
    assert (found.num_threads, found.cpus) == (5, None)


def test_without_sysfs_it_says_so_once(tmp_path, caplog):
    for _ in range(2):
        found = decide(cpus(0, 1, 5), ALL, tmp_path)
        assert (found.num_threads, found.cpus, found.node) == (3, None, None)
    assert [record.message for record in caplog.records] == [
        "/sys does not tell of NUMA nodes: all allowed CPUs count as one"
    ]


def test_without_the_right_to_bind_it_says_so_and_runs(monkeypatch, caplog, make_checkpoint):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    first = min(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(first))
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    for _ in range(2):
        llm = LLM(make_checkpoint().folder, dtype="float32")
    assert llm.llm_engine.placement.cpus is None
    assert [r.message for r in caplog.records if "bound" in r.message] == [
        "threads are not bound to CPUs: [Errno 1] Operation not permitted"
    ]
    params = SamplingParams(max_tokens=2, temperature=0)
    assert llm.generate([5], params, use_tqdm=False)[0].finished


def test_the_calling_thread_is_confined(monkeypatch):
    before = os.sched_getaffinity(0)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(max(before)))
    try:
        assert place().cpus == {max(before)}
        assert os.sched_getaffinity(0) == {max(before)}
        assert torch.get_num_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_an_engine_of_one_rank_after_one_of_two_has_all_cores(monkeypatch):
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{min(before)}|{max(before)}")
    torch.set_num_threads(3)
    try:
        assert place(0, 2).cpus == {min(before)}
        unconfine()
        assert os.sched_getaffinity(0) == before
        assert torch.get_num_threads() == 3
        place(0, 2)
        torch.set_num_threads(2)  # by whoever calls the engine
        unconfine()
        assert torch.get_num_threads() == 2
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("few", "elements", "threads"), [(True, 0, 1), (True, LARGE, 3), (False, 0, 3), (False, LARGE, 3)]
)
def test_torch_leaves_the_cores_to_the_kernels_own_threads(few, elements, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with contextlib.suppress(KeyError), torch_threads(few=few, elements=elements):
            assert torch.get_num_threads() == threads
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("own", "threads"), [(True, 1), (False, 2)])
def test_a_step_wakes_no_thread_of_torch_beside_the_kernels_own(monkeypatch, make_checkpoint, own, threads):
    """OpenMP's threads look for work for milliseconds after an operation: sampling cost half the speed."""
    seen = {}

    def watched(name, function):
        def call(*given):
            seen[name] = torch.get_num_threads()
            return function(*given)

        return call

    llm = LLM(make_checkpoint().folder, dtype="float32")
    llm.llm_engine.runner.own_products = own
    model = llm.llm_engine.runner.model
    monkeypatch.setattr(model.layers[0], "mlp", watched("layer", model.layers[0].mlp))
    monkeypatch.setattr(model, "lm_head", watched("head", model.lm_head))
    monkeypatch.setattr(sampler, "sample", watched("sample", sampler.sample))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        llm.generate([5], SamplingParams(max_tokens=2), use_tqdm=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == dict.fromkeys(("layer", "head", "sample"), threads)


@pytest.mark.parametrize(
    ("nodes", "siblings", "allowed", "size", "expected"),
    [
        ({0: "0-7"}, {}, range(8), 2, [range(4), range(4, 8)]),
        ({0: "0-7"}, {}, range(8), 3, [range(2), range(2, 5), range(5, 8)]),
        ({0: "0-3", 1: "4-7"}, {}, range(8), 2, [range(4), range(4, 8)]),
        ({0: "0-3", 1: "4-7"}, {}, range(2, 8), 2, [range(4, 8), (2, 3)]),
        ({0: "0-3", 1: "4-7"}, {}, range(8), 4, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ({node: str(node) for node in range(8)}, {}, range(8), 8, [(node,) for node in range(8)]),
        ({0: "0-3"}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, range(4), 2, [(0, 2), (1, 3)]),
        ({0: "0-1"}, {0: "0-1", 1: "0-1"}, range(2), 2, [(0,), (1,)]),
        ({}, {}, range(2), 2, [(0,), (1,)]),
    ],
)
def test_replicas_share_the_machine_and_no_cpu(machine, nodes, siblings, allowed, size, expected):  # noqa: PLR0917
    shares = divide(size, cpus(*allowed), machine(nodes, siblings))
    assert [share.cpus for share in shares] == [cpus(*one) for one in expected]
    on_node = 1 if len(nodes) >= size else None
    for share in shares:
        whole, of_node = map(int, share.environment["ARMLLM_REPLICAS"].split(","))
        assert whole == size
        assert on_node is None or of_node == on_node


@pytest.mark.parametrize(
    ("nodes", "expected", "crowd"),
    [
        ({0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}, [range(4), range(4, 8)], 1),  # a node for each rank
        ({0: "0-3", 1: "4-7"}, [range(4), range(4, 8)], 1),  # one for each replica
        ({0: "0-7"}, [range(4), range(4, 8)], 2),
        ({0: "0-1", 1: "2-4", 2: "5-7"}, [range(2, 5), range(5, 8)], 1),
    ],
)
def test_replicas_of_two_ranks_share_the_nodes(machine, nodes, expected, crowd):
    """And in its share, each rank finds a node of its own."""
    root = machine(nodes)
    shares = divide(2, cpus(*range(8)), root, ranks=2)
    assert [share.cpus for share in shares] == [cpus(*one) for one in expected]
    assert [share.environment["ARMLLM_REPLICAS"] for share in shares] == [f"2,{crowd}"] * 2
    found = [decide(share.cpus, ALL, root, rank=rank, size=2).cpus for share in shares for rank in (0, 1)]
    assert sum(map(len, found)) == len(frozenset().union(*found))


def test_replicas_get_the_lists_of_cpus_that_the_user_wrote(machine, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1|5")
    shares = divide(2, cpus(*range(8)), machine({0: "0-7"}))
    assert [share.cpus for share in shares] == [cpus(0, 1), cpus(5)]
    assert shares[0].environment["ARMLLM_OMP_THREADS_BIND"] == "0,1"
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1|4-5|7")
    shares = divide(2, cpus(*range(8)), machine({0: "0-7"}), ranks=2)
    assert [share.cpus for share in shares] == [cpus(0, 1), cpus(4, 5, 7)]
    assert [share.environment["ARMLLM_OMP_THREADS_BIND"] for share in shares] == ["0|1", "4,5|7"]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    assert [share.cpus for share in divide(2, cpus(0), machine({0: "0"}))] == [None, None]


def test_more_replicas_than_cpus_are_refused_and_a_small_quota_is_a_warning(machine, monkeypatch, caplog):
    with pytest.raises(RequestError, match="--data-parallel-size 3 needs 3 CPUs; here are 2"):
        divide(3, cpus(0, 1), machine({0: "0-1"}))
    monkeypatch.setattr(placement.host, "cpu_quota", lambda _root: 1.5)
    shares = divide(2, cpus(0, 1), machine({0: "0-1"}))
    assert "the limit of 1.5 CPUs is less than the 2 replicas" in caplog.text
    assert [share.environment["OMP_NUM_THREADS"] for share in shares] == ["1", "1"]
