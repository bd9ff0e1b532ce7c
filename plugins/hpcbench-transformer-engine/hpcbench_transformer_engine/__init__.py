"""Implementation ``transformer_engine``: its specifications, which import no Transformer Engine."""

from __future__ import annotations

from hpcbench.plugins import ImplementationSpec, Problem

_MODULE = "hpcbench_transformer_engine.linear"


def unfit(primitive: str, problem: Problem) -> str | None:
    """Return why Transformer Engine cannot take a problem, or None.

    transformer_engine/common/gemm/cublaslt_gemm.cu has no fp64, and computes fp32 in TF32.
    """
    if problem.dtype == "fp64":
        return "Transformer Engine multiplies no fp64"
    if problem.dtype == "fp32":
        return "Transformer Engine multiplies fp32 in TF32, which has 11 bits of fp32's 24"
    if primitive == "tp_columnwise" and problem.ranks < 2:
        return "userbuffers connect at least 2 ranks"
    return None


COLUMNWISE = ImplementationSpec(
    name="transformer_engine",
    meaning="Transformer Engine's Linear: the all-gather under the product (never run)",
    runners={"tp_columnwise": f"{_MODULE}:Columnwise"},
    orders=frozenset({("tp_columnwise", "AG_before")}), calls=(), devices=("cuda",),
    backends=("nccl",), modules=("transformer_engine",), unfit=unfit, overlaps=True)
ROWWISE = ImplementationSpec(
    name="transformer_engine",
    meaning="Transformer Engine's Linear: the reduce-scatter after the product (never run)",
    runners={"tp_rowwise": f"{_MODULE}:Rowwise"},
    orders=frozenset({("tp_rowwise", "RS_after")}), devices=("cuda",),
    backends=("nccl",), modules=("transformer_engine",), unfit=unfit)
SPECS = [COLUMNWISE, ROWWISE]
