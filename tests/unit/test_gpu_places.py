"""Which GPU a rank takes, whatever its launcher shows it, and whether torch has code for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpcbench.backends.availability import (
    RankFacts,
    assign_gpus,
    gpu_indices,
    no_code_reason,
    unreachable,
    visible_gpus,
    without_code,
)
from hpcbench.config.load import check_config
from hpcbench.launch.probe import resolve
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan

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
