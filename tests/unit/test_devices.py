"""GPUs of which none is at hand: which a rank takes, code for them, graphs, AMD's and Apple's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcbench.backends.availability import (
    RankFacts,
    assign_gpus,
    gpu_indices,
    known_uuid,
    no_code_reason,
    unreachable,
    visible_devices,
    visible_gpus,
    why_not_judged,
    without_code,
)
from hpcbench.backends.devices import WARM_UP_CALLS, captured
from hpcbench.backends.gpus import AMD_CALLS, amd_serial_of
from hpcbench.config.load import check_config
from hpcbench.config.schema import Telemetry
from hpcbench.launch.probe import Resolution, resolve
from hpcbench.plan.case import Case, Plan, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.telemetry.sampler import TelemetryAccess, open_sampler
from hpcbench.trace.columns import TABLES
from hpcbench.validation.machine import device_lines
from test_launch_parts import CPU_FACTS
from validation_facts import FACTS, good, job

ALL = ("u0", "u1", "u2", "u3")


@pytest.mark.parametrize(("seen", "places"), [
    # every rank of a node sees all of its GPUs
    ([("a", ALL)] * 4 + [("b", ALL)] * 4, [0, 1, 2, 3, 0, 1, 2, 3]),
    # srun --gpus-per-task=1, --gpu-bind=single:1
    ([("a", ("u0",)), ("a", ("u1",)), ("b", ("u0",))], [0, 0, 0]),
    # srun --gpus-per-task=2
    ([("a", ("u0", "u1")), ("a", ("u2", "u3"))], [0, 0]),
    # pairs of ranks share pairs of GPUs, as --gpu-bind=closest does on two sockets
    ([("a", ("u0", "u1"))] * 2 + [("a", ("u2", "u3"))] * 2, [0, 1, 0, 1]),
    # a wrapper that turns the list, so that each rank's own comes first
    ([("a", ("u0", "u1")), ("a", ("u1", "u0"))], [0, 0]),
    # ranks that go round the nodes
    ([("a", ALL), ("b", ALL), ("a", ALL), ("b", ALL)], [0, 0, 1, 1]),
    # more ranks than GPUs, and a node without any
    ([("a", ("u0",)), ("a", ("u0",)), ("b", ())], [0, None, None]),
])
def test_every_rank_takes_one_of_its_own(
    seen: list[tuple[str, tuple[str, ...]]], places: list[int | None],
) -> None:
    assert assign_gpus(seen) == places
    for count in range(len(seen)):  # a case on fewer ranks
        assert assign_gpus(seen[:count]) == places[:count]


def test_a_gpu_has_one_name_in_all_processes_of_its_node() -> None:
    assert visible_gpus(["u2", "u0"], "2,0") == ("u2", "u0")
    assert visible_gpus(["", ""], "2,0") == ("GPU 2", "GPU 0")  # a driver that gives no UUIDs
    assert visible_gpus(["", ""], None) == visible_gpus(["", ""], "") == ("GPU 0", "GPU 1")
    assert visible_gpus(["", ""], "0,1,7") == ("GPU 0", "GPU 1")  # there is no GPU 7


@pytest.mark.parametrize(("capability", "architectures", "lacks"), [
    ((7, 0), ["sm_70", "sm_75"], False),
    ((7, 0), ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"], True),
    ((8, 6), ["sm_75", "sm_80"], False),  # of the same major version, older
    ((8, 0), ["sm_75", "sm_86"], True),
    ((9, 0), ["sm_90a"], False),
    ((10, 0), ["sm_90a"], True),
    ((12, 0), ["sm_80", "compute_80"], False),  # PTX
    ((12, 0), ["sm_100"], True),
])
def test_code_for_a_gpu(
    capability: tuple[int, int], architectures: list[str], lacks: bool,
) -> None:
    assert without_code(capability, architectures) is lacks


def test_a_skip_for_a_v100_names_the_build_that_has_code_for_it() -> None:
    reason = no_code_reason((7, 0), ["sm_75", "sm_80"], "2.13.0+cu130")
    assert reason.startswith("torch 2.13.0+cu130 has no code for sm_70, only for sm_75, sm_80;")
    assert "https://download.pytorch.org/whl/cu126" in reason
    assert no_code_reason((7, 0), ["sm_70"], "2.13.0+cu126") is None
    assert no_code_reason((7, 0), [], "2.13.0+cpu") is None
    assert "newer torch" in str(no_code_reason((13, 0), ["sm_90"], "2.13.0"))


EIGHT = [f"u{number}" for number in range(8)]
Node = Callable[[int], str]
Shown = Callable[[int], Sequence[str]]


def seeing(ranks: int, node: Node, shown: Shown, visible: str | None = None, *,
           joined: bool = True, domain: str | None = None) -> list[RankFacts]:
    """Return ranks that see these GPUs of their node, all joined or none, in an NVLink domain."""
    found = []
    for rank in range(ranks):
        uuids = [f"{node(rank)}-{uuid}" for uuid in shown(rank)]
        peers = [[other for other in range(len(uuids)) if joined and other != gpu]
                 for gpu in range(len(uuids))]
        cuda = {"available": True, "names": ["H100"] * len(uuids), "uuids": uuids,
                "memory_bytes": [8 * 10**10] * len(uuids), "no_code": [None] * len(uuids),
                "details": [None] * len(uuids), "visible": visible, "peers": peers, "reason": None}
        found.append(RankFacts(rank, node(rank), rank, {
            "cuda": cuda, "built": {"nccl": True}, "tools": {}, "host_memory_bytes": 2**40,
            "mps": {"memory_bytes": 0}, "gpu_topology": {
                "uuids": [f"GPU-{uuid}" for uuid in uuids], "fabrics": [domain] * len(uuids)}}))
    return found


def case_of(implementation: str, ranks: int, backend: str = "nccl") -> Case:
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
             "implementations": implementation, "backend": backend}
    return make_plan(check_config({"benchmarks": [block]}, "test"), ranks).cases[0]


def one(rank: int) -> str:
    return "a"


ENVIRONMENTS = [
    # NGC on one node, plain srun, mpirun: all GPUs in sight, CUDA_VISIBLE_DEVICES not set
    ("all in sight", seeing(8, one, lambda _: EIGHT), [*range(8)], None),
    # srun --gpus-per-task=1: each task sees one, and calls it 0
    ("one a task", seeing(4, one, lambda rank: [EIGHT[rank]], "0"), [0] * 4,
     "ranks 0 and 1 on a both see theirs as 0: let every rank see all GPUs of its node"),
    # srun --gpus-per-task=2
    ("two a task", seeing(2, one, lambda rank: EIGHT[2 * rank:2 * rank + 2], "0,1"), [0, 0],
     "both see theirs as 0"),
    # srun --distribution=cyclic: ranks 0 and 2 on node a, 1 and 3 on node b
    ("cyclic", seeing(4, lambda rank: "ab"[rank % 2], lambda _: EIGHT), [0, 0, 1, 1],
     "rank 0 is on a, rank 1 on b, and no NVLink joins these nodes"),
    # 4 ranks on 8 GPUs of two nodes: NCCL's guess for rank 2 is GPU 2
    ("half used", seeing(4, lambda rank: "ab"[rank // 2], lambda _: EIGHT), [0, 1, 0, 1],
     "rank 0 is on a, rank 2 on b"),
    # nodes of one NVLink domain, such as GB200 NVL72
    ("one domain", seeing(4, lambda rank: "ab"[rank // 2], lambda _: EIGHT, domain="c/1"),
     [0, 1, 0, 1], None),
    # CUDA_VISIBLE_DEVICES=7,6,...,0 for all, and for every second rank
    ("reversed", seeing(4, one, lambda _: EIGHT[::-1], "7,6,5,4,3,2,1,0"), [0, 1, 2, 3], None),
    ("some reversed", seeing(2, one, lambda rank: EIGHT[::-1] if rank else EIGHT), [0, 0],
     "both see theirs as 0"),
    # A10s over PCIe, or a virtual machine
    ("no access", seeing(2, one, lambda _: EIGHT, joined=False), [0, 1],
     "GPU 0 of rank 0 on a has no peer-to-peer access to that of rank 1"),
]


@pytest.mark.parametrize(("ranks", "places", "reason"), [row[1:] for row in ENVIRONMENTS],
                         ids=[row[0] for row in ENVIRONMENTS])
def test_what_reads_the_memory_of_other_gpus_is_a_skip_where_it_cannot(
    ranks: list[RankFacts], places: list[int], reason: str | None,
) -> None:
    assert gpu_indices(ranks) == places
    for name in ("symm_mem", "compiled_async_tp"):
        found = unreachable(case_of(name, len(ranks)), "cuda", ranks)
        assert found is None if reason is None else reason in str(found)
    assert unreachable(case_of("torch", len(ranks)), "cuda", ranks) is None
    plan = make_plan(check_config({"benchmarks": [
        {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
         "backend": "nccl", "implementations": ["torch", "symm_mem"]}]}, "test"), len(ranks))
    skips = resolve(plan, ranks).skips
    assert [*skips] == ([] if reason is None else [plan.cases[1].case_id])


def test_a_group_reads_its_own_memory_and_what_was_not_asked_is_tried() -> None:
    alone = seeing(1, one, lambda _: EIGHT, joined=False)
    assert unreachable(case_of("symm_mem", 1), "cuda", alone) is None
    unasked: list[Any] = seeing(2, one, lambda _: EIGHT, joined=False)
    for rank in unasked:
        del rank.facts["cuda"]["peers"], rank.facts["gpu_topology"]
    assert unreachable(case_of("symm_mem", 2), "cuda", unasked) is None


def test_a_plan_gives_all_ranks_what_reads_the_memory_of_others() -> None:
    case = case_of("symm_mem", 2)
    assert case_from_json(case_to_json(case)) == case and case.workload.features.reads_peers


COLLECTIVE = {"kind": "collective", "collective": "all_reduce", "size": 64}
PRODUCT = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8}


def planned(block: dict[str, Any], **options: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [{**block, **options}]}, "test"), 2).cases


@pytest.mark.parametrize(("block", "words"), [
    ({**COLLECTIVE, "backend": "gloo"}, "holds work of a GPU, not of cpu"),
    ({**COLLECTIVE, "backend": "gloo", "device": "cuda"}, "not those of gloo"),
    ({**COLLECTIVE, "backend": "mpi", "device": "cuda"}, "not those of mpi"),
    ({**COLLECTIVE, "backend": "ucc"}, "not those of ucc"),
    ({**COLLECTIVE, "backend": "nccl"}, None),
    ({**COLLECTIVE, "backend": "nccl", "collective": "barrier"}, "makes the host wait"),
    ({**PRODUCT, "backend": "nccl", "implementations": "torch"}, None),
    ({**PRODUCT, "backend": "gloo", "device": "cuda", "implementations": "compute_only"}, None),
    ({**PRODUCT, "backend": "gloo", "device": "cuda", "implementations": "torch"},
     "not those of gloo"),
    ({**PRODUCT, "backend": "nccl", "implementations": "triton"}, "may start the product"),
    ({"kind": "training", "model": "gpt2", "strategies": "fsdp", "backend": "nccl"},
     "takes data from the host"),
])
def test_what_cannot_be_captured_is_a_skip(block: dict[str, Any], words: str | None) -> None:
    (case,) = planned(block, cuda_graph=True)
    assert case.cuda_graph and " cuda_graph" in case.label
    assert (case.skip is None) if words is None else words in str(case.skip), case.skip


def test_other_cases_keep_their_ids() -> None:
    without, (plain, graph) = planned(COLLECTIVE), planned(COLLECTIVE, cuda_graph=[False, True])
    assert without == (plain,) and graph.case_id != plain.case_id
    assert case_from_json(case_to_json(graph)) == graph


class Recorded:
    """Stands for an operation, the control group and CUDA; says what was done, in order."""

    name, place = "all_reduce", None

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self.done.append(f"{name} {{")
        yield
        self.done.append("}")


def test_a_call_is_warmed_up_on_a_side_stream_captured_once_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Recorded()

    def stream(name: str) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda _: seen.done.append(f"{name} waits"))

    main, side = stream("main"), stream("side")
    cuda = {"current_stream": lambda: main, "Stream": lambda: side,
            "stream": lambda _: seen.inside("side"), "synchronize": lambda: seen.synchronize(),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: seen.replay()),
            "graph": lambda _, capture_error_mode: seen.inside(f"capture {capture_error_mode}")}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    replayed = captured(seen, seen)  # type: ignore[arg-type]
    assert seen.done == [
        "side waits", "side {", *["prepare", "run"] * WARM_UP_CALLS, "}", "main waits", "prepare",
        "synchronize", "barrier", "capture thread_local {", "run", "}", "synchronize", "barrier"]
    seen.done.clear()
    for call in (replayed.prepare, replayed.run, replayed.check, replayed.corrupt_output):
        call()
    assert seen.done == ["prepare", "replay", "check", "corrupt_output"]


CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128_OLD = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU129 = (*CU128_OLD, "compute_120")
ROCM_6_0 = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1100", "gfx942")
ROCM_7_2 = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100",
            "gfx1101", "gfx1102", "gfx1103", "gfx1200", "gfx1201", "gfx1150", "gfx1151")
BUILDS: Mapping[str, Sequence[str]] = {
    "cu126": CU126, "cu128 until 2.10": CU128_OLD, "cu128": CU128, "cu129": CU129,
    "cu130": CU128,  # the wheel of PyPI for torch 2.13 was asked itself
    "cu130 of aarch64": ("sm_80", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),
    "rocm6.0": ROCM_6_0, "rocm7.2": ROCM_7_2, "rocm7.14": ROCM_7_2[2:], "cpu": ()}
"""What torch.cuda.get_arch_list() says of wheels. Sources: of pytorch/pytorch .ci/manywheel/
build_cuda.sh (00c7a380) and, without 7.0, issue 172352; .ci/aarch64_linux/aarch64_ci_build.sh;
.ci/docker/manywheel/build.sh (1fca82d4 for ROCm 6.0, 027375bf for 7.2 and 7.14)."""
GPUS = {"V100": (7, 0), "T4": (7, 5), "A10": (8, 6), "H100": (9, 0), "B200": (10, 0)}
AMD_GPUS = {"MI250": (9, 0), "MI300X": (9, 4)}
"""torch.cuda.get_device_capability() of gfx90a and gfx942: major and minor of their gfx names."""
WITHOUT_CODE = {
    ("cu126", "B200"), ("cu128", "V100"), ("cu130", "V100"), ("cu130 of aarch64", "V100"),
    ("cu130 of aarch64", "T4")}


@pytest.mark.parametrize("build", [name for name in BUILDS if name.startswith("cu")])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_build_for_cuda_and_a_gpu(build: str, gpu: str) -> None:
    reason = no_code_reason(GPUS[gpu], BUILDS[build], f"2.13.0+{build}")
    assert (reason is not None) is ((build, gpu) in WITHOUT_CODE)


@pytest.mark.parametrize("build", ["rocm6.0", "rocm7.2", "rocm7.14", "cpu"])
@pytest.mark.parametrize("capability", [*GPUS.values(), *AMD_GPUS.values()])
def test_names_of_rocm_are_compared_with_no_capability(
    build: str, capability: tuple[int, int],
) -> None:
    assert no_code_reason(capability, BUILDS[build], f"2.13.0+{build}") is None


@pytest.mark.parametrize(("architectures", "cuda", "hip", "judged", "words"), [
    (CU128, "13.0", None, True, ""), ((), None, None, False, "no CUDA build"),
    ((), "12.6", None, False, "only where a GPU is visible"),  # older torches, on a login node
    (ROCM_7_2, None, "7.2.1", False, "ROCm"), ((), None, "7.2.1", False, "ROCm")])
def test_what_can_be_judged_without_a_gpu(
    architectures: Sequence[str], cuda: str | None, hip: str | None, judged: bool, words: str,
) -> None:
    why = why_not_judged(architectures, "2.13.0", cuda, hip)
    assert (why is None) is judged
    assert words in (why or "")


TRAINING: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "strategies": "single", "device": "mps"}
PRIMITIVE: dict[str, Any] = {
    "kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64, "device": "mps",
    "implementations": "compute_only", "world_size": 1}
THERE: dict[str, Any] = {
    "reason": None, "name": "Apple M2", "memory_bytes": 12 * 10**9, "without_bf16": None}


def plan_of(*blocks: dict[str, Any], ranks: int = 1) -> Plan:
    return make_plan(check_config({"benchmarks": list(blocks)}, "c.json"), ranks)


def found(plan: Plan, **mps: Any) -> Resolution:
    facts = {**copy.deepcopy(dict(FACTS)), "mps": {**THERE, **mps}}
    return resolve(plan, [RankFacts(rank, "mac", rank, facts)
                          for rank in range(plan.world_size)])


def test_what_does_not_communicate_is_planned() -> None:
    plan = plan_of({**TRAINING, "dtype": ["fp32", "bf16", "fp16"]}, PRIMITIVE, ranks=2)
    assert [case.skip for case in plan.cases] == [None] * 4
    assert {case.needs for case in plan.cases} == {("mps",)}
    assert set(found(plan).devices.values()) == {"mps"}


@pytest.mark.parametrize(("block", "words"), [
    ({"kind": "collective", "collective": "all_reduce", "size": "8", "device": "mps"},
     "mps has no collective backend: what communicates is measured on device cpu or cuda"),
    ({"kind": "collective", "collective": "barrier", "backend": "nccl", "device": "mps"},
     "mps has no collective backend"),
    ({**PRIMITIVE, "implementations": "torch"}, "mps has no collective backend"),
    ({**PRIMITIVE, "world_size": 2}, "mps is the one GPU of a machine"),
    ({**PRIMITIVE, "dtype": "fp64"}, "mps has no fp64"),
    ({**PRIMITIVE, "backend": "mpi"}, "mpi does not run on mps, only on cpu or cuda"),
    ({**TRAINING, "strategies": "data"}, "mps has no collective backend"),
    ({**TRAINING, "strategies": "fsdp", "world_size": 1}, "mps has no collective backend"),
    ({**TRAINING, "strategies": "data", "communication": "off", "world_size": 2},
     "mps is the one GPU of a machine, and so of one rank: give world_size 1")])
def test_what_cannot_run_there_is_a_skip_with_its_reason(
    block: dict[str, Any], words: str,
) -> None:
    (case,) = plan_of(block, ranks=2).cases
    assert case.skip is not None
    assert words in case.skip


@pytest.mark.parametrize(("mps", "words"), [
    ({"reason": "torch was built without it"}, "no mps device: torch was built without it"),
    ({"without_bf16": "needs macOS 14"}, "mps has no bf16 here: needs macOS 14"),
    ({"memory_bytes": 1000}, "bytes of the GPU on mac, macOS recommends 1000 at most; predicted")])
def test_what_the_machine_lacks_is_a_skip(mps: dict[str, Any], words: str) -> None:
    plan = plan_of({**TRAINING, "dtype": "bf16"})
    assert words in found(plan, **mps).skips[plan.cases[0].case_id]


def test_what_would_be_compiled_is_a_skip() -> None:
    plan = plan_of({**TRAINING, "compile": True})
    facts = {**FACTS, "mps": THERE, "tools": {"compiler": {"mps": "never tried", "cpu": None}}}
    resolution = resolve(plan, [RankFacts(0, "mac", 0, facts)])
    assert resolution.skips[plan.cases[0].case_id] == "single: never tried"


def test_auto_is_never_that_gpu() -> None:
    plan = plan_of({**TRAINING, "device": "auto"})
    assert [*found(plan).devices.values()] == ["cpu"]


def test_validate_states_that_it_is_there_and_what_for() -> None:
    report = good()
    assert report.facts is not None
    there = replace(report, facts={**report.facts, "mps": {**THERE, "without_bf16": "old macOS"}})
    (line,) = device_lines(job(there))
    assert "mps: Apple M2, up to 12 GB; no bf16: old macOS; cases of one rank" in str(line)


ROCM_FACTS: Mapping[str, Any] = {
    **CPU_FACTS, "built": {**CPU_FACTS["built"], "nccl": True}, "host_memory_bytes": 2**40,
    "versions": {"torch": "2.13.0+rocm7.2", "hip": "7.2.1", "nccl": "2.27.3"},
    "cuda": {"available": True, "reason": None, "visible": None,
             "names": ["AMD Instinct MI300X"] * 8, "uuids": [f"u{number}" for number in range(8)],
             "memory_bytes": [206_000_000_000] * 8, "details": [None] * 8, "no_code": [None] * 8},
    "tools": {"triton": None, "compiler": {"cpu": None, "cuda": None, "mps": None}}}
BLOCKS = {
    "collective": {"kind": "collective", "collective": "all_reduce"},
    "primitive": {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
                  "implementations": ["torch", "chunked_pipeline", "compiled"]},
    "training": {"kind": "training", "model": "gpt2", "strategies": ["data", "fsdp", "zero1"]},
}
FOR_NVIDIA = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
              "implementations": ["symm_mem", "compiled_async_tp", "triton"]}


def skips(block: Mapping[str, Any]) -> list[str]:
    plan = make_plan(check_config({"benchmarks": [{**block, "backend": "nccl"}]}, "test"), 8)
    found = resolve(plan, [RankFacts(rank, "a", rank, ROCM_FACTS) for rank in range(8)])
    assert len(found.devices) + len(found.skips) == len(plan.cases)
    assert {*found.devices.values()} <= {"cuda"}
    return [*found.skips.values()]


@pytest.mark.parametrize("kind", BLOCKS)
def test_its_cases_are_run(kind: str) -> None:
    assert skips(BLOCKS[kind]) == []


def test_what_is_written_for_nvidia_is_a_skip() -> None:
    found = skips(FOR_NVIDIA)
    assert len(found) == 3
    assert all(reason.endswith("written for NVIDIA GPUs, and torch 2.13.0+rocm7.2 is a build for "
                               "ROCm") for reason in found)


@pytest.mark.parametrize(("environ", "rocm", "left"), [
    ({}, True, None), ({"HIP_VISIBLE_DEVICES": "2,3"}, True, "2,3"),
    ({"CUDA_VISIBLE_DEVICES": "1"}, True, "1"), ({"GPU_DEVICE_ORDINAL": "5"}, True, "5"),
    ({"ROCR_VISIBLE_DEVICES": "4,5"}, True, "4,5"),
    ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, True, "5"),
    ({"ROCR_VISIBLE_DEVICES": "GPU-ab,GPU-cd", "CUDA_VISIBLE_DEVICES": "1,0"}, True,
     "GPU-cd,GPU-ab"),
    ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, True, "0"),
    ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, False, "3"),
    ({"ROCR_VISIBLE_DEVICES": "1"}, False, None)])
def test_which_gpus_the_variables_leave(
    environ: Mapping[str, str], rocm: bool, left: str | None,
) -> None:
    assert visible_devices(environ, rocm=rocm) == left


def test_gpus_without_a_uuid_of_their_own_are_distinguished_by_number() -> None:
    zeros = "00000000-0000-0000-0000-000000000000"
    assert [known_uuid(uuid) for uuid in (zeros, "", "a0")] == ["", "", "a0"]
    assert visible_gpus(["u0", "u0"], "6,7") == ("GPU 6", "GPU 7")  # parts of one GPU
    parts = {**ROCM_FACTS, "cuda": {**ROCM_FACTS["cuda"], "uuids": ["u0"] * 8}}
    ranks = [RankFacts(rank, "a", rank, parts) for rank in range(8)]
    assert gpu_indices(ranks) == [*range(8)]


def test_telemetry_states_why_there_is_none(tmp_path: Path) -> None:
    def missing(uuid: str | None) -> str:
        sampler = open_sampler(Telemetry(without=("process", "cpu")), local_rank=1, gpu_uuid=uuid,
                               rocm=True, access=TelemetryAccess(tmp_path))
        told = sampler.new_report()
        return told.missing["gpu"]

    assert "amdsmi" in missing("u0")
    assert "no UUID" in missing(None)


def test_the_serial_number_in_a_uuid() -> None:
    """Bytes of HIP's UUID are characters, which torch writes as hexadecimal digits."""
    digits = "00a1b2c3d4e5f607".encode("ascii").hex()
    assert amd_serial_of(f"{digits[:8]}-{digits[8:12]}-{digits[12:]}") == "a1b2c3d4e5f607"
    assert amd_serial_of("ffc79498-8ff3-c2dc-3b0d-fafd804516ae") is None  # one of NVIDIA's
    assert amd_serial_of("") is None


def test_its_columns_are_those_of_the_table() -> None:
    assert {*AMD_CALLS} <= {*TABLES["gpu"].names}
