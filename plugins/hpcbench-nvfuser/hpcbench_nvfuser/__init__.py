"""Implementation ``fuser``: its specification, which imports no nvFuser."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbench.plugins import ImplementationSpec, Problem, Values

_RESHARD_AFTER = "insert_resharding_after"
"""Of NVFUSER_ENABLE: communicate what an expression has made, not what it is made of."""


def unfit(primitive: str, problem: Problem) -> str | None:
    """Return why an algorithm does not suit a problem, or None."""
    algorithm, streams = str(problem.options["algorithm"]), int(problem.options["s"])
    rows = problem.m // problem.ranks
    if algorithm == "coll_pipeline" and rows % streams:
        return f"{rows} rows of a rank cannot be cut into s={streams} equal parts"
    if algorithm != "default" and problem.order == "AG_after":
        return f"{algorithm} gathers before the product; AG_after has algorithm default only"
    return None


def variables(primitive: str, problem: Problem) -> Mapping[str, str]:
    """Return what nvFuser reads once in a process (its options: csrc/options.h)."""
    flags = [_RESHARD_AFTER] if problem.order in ("AG_after", "RS_after") else []
    protocol = str(problem.options["multicast_protocol"])
    if protocol != "default":
        flags.append(f"multicast_protocol({protocol})")
    return {"NVFUSER_ENABLE": ",".join(flags)} if flags else {}


FUSER = ImplementationSpec(
    name="fuser", meaning="nvFuser's multi-device executor (never run)",
    runners={"tp_columnwise": "hpcbench_nvfuser.fusions:Columnwise",
             "tp_rowwise": "hpcbench_nvfuser.fusions:Rowwise"},
    orders=frozenset({("tp_columnwise", "AG_before"), ("tp_columnwise", "AG_after"),
                      ("tp_rowwise", "RS_after")}),
    options={
        "algorithm": Values("default", ("default", "coll_pipeline", "p2p_pipeline")),
        "s": Values(8), "offset_stream_indexing_by_rank": Values(True, (True, False)),
        "multicast_protocol": Values("default",
                                     ("default", "memcpy", "multimem", "batch_memcpy")),
        "inter_stream_synchronization": Values(False, (True, False)),
        "communicator": Values("group", ("group", "cuda")),
    },
    calls=(), devices=("cuda",), backends=("nccl", "ucc"), modules=("nvfuser_direct",),
    env=variables, connects=True, unfit=unfit, overlaps=True)
"""The options are DDLB's. ``communicator`` ``cuda`` stands for its backend ``cuda``: copies between
the memories of GPUs instead of the collectives of NCCL or UCC."""
