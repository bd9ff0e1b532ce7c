"""Every check of what the ranks ran with, provoked (docs/checks.md)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.errors import ExitCode
from hpcbench.measurement.environment import machine
from hpcbench.plan.case import Plan
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import Finding
from hpcbench.reduce.run_checks import (
    MOMENTARY,
    RANK_SPECIFIC,
    Difference,
    backend_findings,
    environment_differences,
    environment_findings,
    environment_hash,
    flattened,
    noise_findings,
)
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import NOISE_NOTE, Header, Noise
from hpcbench.trace.sealed import seal, trace_path
from synthetic import make_case, make_header, make_plan, make_record, write_synthetic_run

PLAN = make_plan(n_cases=2, world_size=3, iterations=20)
ON_GPUS = make_plan(n_cases=1, world_size=3, device="cuda")
LO_AND_IB = {"lo": {"loopback": True}, "ib0": {"loopback": False}}
CHANGED_IN_A_RUN: dict[str, Any] = {
    "started_at": "2030-01-01T00:00:00Z", "host.uptime_s": 5.0, "host.boot_id": "other",
    "load.average": [9.0, 9.0, 9.0], "memory.available_bytes": 1, "process.affinity": [63],
    "clock_resolution_ns": 999, "libraries.supervisor.libc.so.6.path": "/elsewhere/libc.so.6"}


def ranks(change: Callable[[int], dict[str, Any]], n: int = 3, **header: Any) -> list[Header]:
    """Headers of ``n`` ranks whose environments are as ``change`` says."""
    return [replace(make_header(PLAN, rank, **header), environment=change(rank))
            for rank in range(n)]


def put(environment: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with the value at a dotted key; names that hold dots are found as they are."""
    changed = copy.deepcopy(environment)
    place: Any = changed
    while key not in place and "." in key:
        name = next(name for name in sorted(place, key=len, reverse=True)
                    if key.startswith(name + "."))
        place, key = place[name], key.removeprefix(name + ".")
    place[key] = value
    return changed


def found(headers: list[Header], plan: Plan = PLAN) -> list[Finding]:
    return list(environment_findings(headers, plan))


def test_equal_ranks_have_no_findings() -> None:
    here = machine({"NCCL_ALGO": "Ring"})
    assert found(ranks(lambda rank: here)) == []
    assert found([]) == []


def test_a_later_capture_of_this_machine_is_the_same_environment() -> None:
    one, two = machine({}), machine({})
    assert environment_differences(ranks(lambda rank: [one, two, one][rank])) == []
    assert environment_hash(one) == environment_hash(json.loads(json.dumps(two)))


@pytest.mark.parametrize(("key", "value"), CHANGED_IN_A_RUN.items())
def test_what_always_varies_is_neither_compared_nor_hashed(key: str, value: Any) -> None:
    here = machine({})
    other = put(here, key, value)
    assert other != here
    assert found(ranks(lambda rank: other if rank else here)) == []
    assert environment_hash(other) == environment_hash(here)


def test_the_place_of_a_rank_is_hashed_but_not_compared() -> None:
    here = machine({"CUDA_VISIBLE_DEVICES": "0"})
    for key in ("process.numa_nodes", "variables.CUDA_VISIBLE_DEVICES"):
        other = put(here, key, "7")
        assert found(ranks(lambda rank, other=other: other if rank else here)) == []
        assert environment_hash(other) != environment_hash(here)


@pytest.mark.parametrize("key", [
    "kernel.release", "process.affinity_cpus", "process.memory_policy", "cpu.governors",
    "libraries.supervisor.libc.so.6.id", "variables.NCCL_ALGO", "kernel.transparent_hugepages"])
def test_everything_else_is_compared_and_hashed(key: str) -> None:
    here = machine({"NCCL_ALGO": "Ring"})
    other = put(here, key, "other")
    (difference,) = environment_differences(ranks(lambda rank: other if rank == 1 else here))
    assert difference.key == key
    assert list(difference.groups.values()) == [(0, 2), (1,)]
    assert environment_hash(other) != environment_hash(here)


def test_the_tables_name_keys_that_exist_and_state_why() -> None:
    """A key that was renamed would be compared; this machine has no GPU, scheduler or notes."""
    keys = [key for key, _ in flattened(machine({}))]
    elsewhere = ("gpu.", "gpu_topology.", "lost.", "scheduler.", "variables.", "hardware.",
                 "noise.", "network.interfaces.", "libraries.*.*.",
                 "process.ranks_a_core")  # the last one the launch tells
    for varying in (*MOMENTARY, *RANK_SPECIFIC):
        assert varying.reason
        for pattern in varying.keys:
            start = pattern.partition("*")[0]
            assert pattern.startswith(elsewhere) or any(key.startswith(start) for key in keys), (
                pattern)


def test_hb109_two_ranks_on_one_gpu() -> None:
    headers = ranks(lambda rank: {"gpu": {"uuid": "GPU-b" if rank == 1 else "GPU-a"}})
    (finding,) = found(headers, ON_GPUS)
    assert (finding.code, finding.scope) == ("HB109", "note")
    assert "ranks 0, 2 share GPU GPU-a" in finding.message and "one rank a GPU" in finding.message
    assert found(headers) == []  # every case runs on the CPU
    assert found(ranks(lambda rank: {"gpu": None if rank else {"uuid": None}}), ON_GPUS) == []


def test_hb159_what_crashed_or_hung_in_the_probe() -> None:
    nvml = "the NVML probe ended by signal 11: no telemetry; see nvidia-smi"
    some = ranks(lambda rank: {"lost": {"nvml": nvml}} if rank else {})
    (finding,) = found(some)
    assert (finding.code, finding.scope) == ("HB159", "note")
    assert finding.message.startswith("rank 1-2 (") and finding.message.endswith(nvml)
    both = found(ranks(lambda rank: {"lost": {"nvml": nvml, "ucc": f"{rank} hung; try another"}}))
    assert [item.code for item in both] == ["HB159"] * 4


@pytest.mark.parametrize(("backend", "transport", "says"), [
    ("ucc/tl/cuda", "CL_BASIC/TL_UCP", "ucc/tl/cuda was requested, UCC used CL_BASIC/TL_UCP"),
    ("ucc/tl/ucp", "CL_BASIC/TL_UCP + posix/memory", ""), ("ucc/tl/cuda", "unknown", ""),
    ("ucc", "CL_BASIC/TL_UCP", ""), ("nccl", "P2P/CUMEM", ""), ("gloo", "NET/Socket", ""),
    ("torch:gloo", "NET/Socket", ""),
    ("nccl", "P2P/CUMEM + NET/Socket", "although InfiniBand or RoCE is up (mlx5_0/1)"),
    ("torch:cpu:gloo,cuda:nccl", "NET/Socket", "although InfiniBand or RoCE is up (mlx5_0/1)")])
def test_hb131_carried_by_something_else(backend: str, transport: str, says: str) -> None:
    ports = {"mlx5_0/1": {"state": "4: ACTIVE"}, "mlx5_1/1": {"state": "1: DOWN"}}
    with_ports = ranks(lambda rank: {"network": {"infiniband": ports}})
    cases = [make_case(number, backend=backend) for number in range(2)]
    told = [(case, {"transport": transport}) for case in cases]
    messages = [item.message for item in backend_findings(told, with_ports)]
    assert len(messages) == bool(says)
    if says:
        assert says in messages[0] and f"2 cases, first {cases[0].label}" in messages[0]
    if backend == "nccl":
        assert list(backend_findings(told, ranks(lambda rank: {}))) == []


@pytest.mark.parametrize(("variables", "says"), [
    ({"GLOO_SOCKET_IFNAME": "lo"}, "GLOO_SOCKET_IFNAME=lo on rank 0-1 (host0, host1)"),
    ({"NCCL_SOCKET_IFNAME": "=lo"}, "NCCL_SOCKET_IFNAME=lo"),
    ({"NCCL_SOCKET_IFNAME": "^lo"}, ""), ({"NCCL_SOCKET_IFNAME": "ib,lo"}, ""),
    ({"UCX_NET_DEVICES": "ib0:1"}, ""), ({}, "")])
def test_hb132_loopback_between_nodes(variables: dict[str, str], says: str) -> None:
    environment = {"network": {"interfaces": LO_AND_IB}, "variables": variables}
    apart = [make_header(PLAN, rank, node=f"node{rank}", hostname=f"host{rank}",
                         environment=environment) for rank in range(2)]
    messages = [item.message for item in found(apart) if item.code == "HB132"]
    assert bool(messages) == bool(says)
    if "GLOO" in says:
        assert says in messages[0] and "set launch.interface" in messages[0]
    together = [replace(header, node="node0") for header in apart]
    assert found(together) == []


def test_hb137_clocksources_differ() -> None:
    (finding,) = found(ranks(
        lambda rank: {"kernel": {"clocksource": "hpet" if rank == 2 else "tsc"}}))
    assert (finding.code, finding.scope) == ("HB137", "note")
    assert 'kernel.clocksource: "tsc" on rank 0-1, "hpet" on rank 2' in finding.message


def test_hb142_environments_differ() -> None:
    (finding,) = found(ranks(lambda rank: {
        "kernel": {"release": "6.2" if rank == 1 else "6.1", "aslr": rank},
        "cpu": {"name": "x" * 100 if rank else "A"}, "memory": {"swap_bytes": rank or None}}))
    assert (finding.code, finding.scope) == ("HB142", "note")
    assert "differ in 4 places: cpu.name: " in finding.message
    assert "and 1 more" in finding.message and "x" * 70 not in finding.message
    (one,) = found(ranks(lambda rank: {"kernel": {"release": "6.2"}} if rank == 1 else {}))
    assert ('differ in 1 place: kernel.release: not recorded on rank 0, 2, "6.2" on rank 1'
            in one.message)


def test_a_difference_names_every_group_of_ranks() -> None:
    assert str(Difference("a.b", {"1": (0, 1, 2), "2": (4,)})) == "a.b: 1 on rank 0-2, 2 on rank 4"


def noise(share: float, spread: float = 0.1) -> Noise:
    parts = tuple(share * (1 + spread * (-1) ** at) for at in range(10))
    return Noise(0.5, 10, share, 3_000_000, 60.0, 2000.0, parts)


def test_hb143_a_noisy_rank() -> None:
    headers = [make_header(PLAN, rank) for rank in range(3)]
    (finding,) = noise_findings({0: noise(0.001), 1: noise(0.02), 2: noise(0.002)}, headers)
    assert (finding.code, finding.scope) == ("HB143", "note")
    assert "rank 1 on host0: other processes used 2 % of its core" in finding.message
    assert "longest 3000 us" in finding.message
    assert list(noise_findings({0: noise(0.0), 1: noise(0.0049)}, headers)) == []
    assert list(noise_findings({0: noise(0.006), 1: noise(0.004)}, headers)) == []
    assert [item.code for item in noise_findings({0: noise(0.0), 1: noise(0.1)}, headers)] == [
        "HB143"]
    assert list(noise_findings({0: noise(0.009)}, headers)) == []
    once = Noise(0.5, 1, 0.02, 10_000_000, 60.0, 2000.0, (0.2, *[0.0] * 9))
    assert list(noise_findings({0: noise(0.0), 1: once}, headers)) == []  # one stall proves nothing
    untold = replace(noise(0.1), part_shares=())
    assert list(noise_findings({0: noise(0.0), 1: untold}, headers)) == []  # of older traces
    assert list(noise_findings({}, [])) == []


def bound(*masks: list[int], quota: float | None = None) -> list[Header]:
    """Ranks of one node, each on the cores of its mask, under a cgroup's quota."""
    return [make_header(PLAN, rank, environment={
        "process": {"affinity": mask, "cgroup": {"cpus": quota or "unlimited"}}})
        for rank, mask in enumerate(masks)]


def hb144(shares: list[float], headers: list[Header]) -> str:
    """Return the one message about ranks that lost these shares of their cores."""
    (finding,) = noise_findings(dict(enumerate(map(noise, shares))), headers)
    assert (finding.code, finding.scope) == ("HB144", "note")
    return finding.message


def test_hb144_a_noisy_system() -> None:
    alone = hb144([0.5, 0.5], bound([0, 1], [0, 1]))
    assert "50 %" in alone and "fewer ranks" not in alone
    assert "see what else runs there" in hb144([0.5], [])
    headers = bound([0], [1], [2])
    both = noise_findings({0: noise(0.02), 1: noise(0.02), 2: noise(0.2)}, headers)
    assert [(item.code, item.share) for item in both] == [("HB143", 0.2), ("HB144", 0.2)]


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(("shares", "headers", "cores"), [
    ([1 / 3] * 3, bound([0, 1], [0, 1], [0, 1]), "3 ranks share 2 cores"),
    ([0.25, 0.35, 0.4], bound([0, 1], [0, 1], [0, 1]), "3 ranks share 2 cores"),
    ([0.5, 0.5, 0.5, 0.5], bound([0], [0], [1], [1]), "2 ranks share 1 core"),
    ([0.625] * 4, bound(ALL, ALL, ALL, ALL, quota=1.5), "4 ranks share 1.5 cores"),
    ([0.25] * 4, bound([0], [1], [2], [3], quota=3), "4 ranks share 3 cores")])
def test_hb144_ranks_of_one_job_are_no_other_processes(
    shares: list[float], headers: list[Header], cores: str,
) -> None:
    message = hb144(shares, headers)
    assert "other processes" not in message and "ranks waited" in message
    assert cores in message and "start fewer ranks a node" in message


def test_hb144_other_processes_beside_ranks_that_share_cores() -> None:
    """Two cores give 2 s a second; the ranks had 1.5 of them."""
    message = hb144([0.4, 0.5, 0.6], bound([0, 1], [0, 1], [0, 1]))
    assert "other processes used 25 %" in message
    assert "ranks waited 40 % to 60 %" in message


def test_hb143_a_rank_that_shares_its_core_is_not_noisy_for_that() -> None:
    shares = dict(enumerate([*[noise(0.667, 0.001)] * 3, *[noise(0.001)] * 4]))
    headers = bound([0], [0], [0], [1], [2], [3], [4])
    assert list(noise_findings(shares, headers)) == []
    found = noise_findings(shares | {3: noise(0.05)}, headers)
    assert [(item.code, "rank 3" in item.message) for item in found] == [("HB143", True)]


def test_the_reducer_reports_them_and_keeps_everything(tmp_path: Path) -> None:
    def headers(header: Header) -> Header:
        clocks = {"clocksource": "hpet" if header.rank == 1 else "tsc"}
        return replace(header, environment={**header.environment, "kernel": clocks})

    write_synthetic_run(tmp_path / "run", PLAN, headers=headers)
    results = reduce_folder(tmp_path / "run")
    assert [item.code for item in results.findings] == ["HB137"]
    assert results.run.ranks_present == (0, 1, 2)
    assert exit_code(results) is ExitCode.OK


def test_the_reducer_finds_noise_notes(tmp_path: Path) -> None:
    traces = write_synthetic_run(tmp_path / "run", PLAN)
    for rank in range(3):
        header = make_header(PLAN, rank)
        journal = journal_path(traces, rank)
        with Journal.create(journal, header, PLAN if rank == 0 else None) as open_journal:
            open_journal.note(NOISE_NOTE, {"detours": asdict(noise(0.1 if rank == 2 else 0.001))})
            open_journal.append(*(make_record(case, rank) for case in PLAN.cases))
            open_journal.note("end", {})
        seal(journal, trace_path(traces, rank))
        journal.unlink()
    results = reduce_folder(tmp_path / "run")
    assert [(item.code, "rank 2" in item.message) for item in results.findings] == [
        ("HB143", True)]


def test_a_noise_note_without_a_check_is_passed_over(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, notes=lambda rank: [(NOISE_NOTE, {})])
    assert reduce_folder(tmp_path / "run").findings == ()
