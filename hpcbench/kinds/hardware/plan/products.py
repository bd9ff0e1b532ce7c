"""What products of one type torch and cuBLASLt have: facts with their sources, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ProductTraits:
    """What C (m, n) = A (m, k) B (k, n) of one type asks for.

    Attributes:
        right: type of B where it is another than that of A; empty: the same.
        result: type of C where it is another than that of A; empty: the same.
        multiple: what n and k must be multiples of.
        rows_above: on CUDA m must be greater than this.
        column_major: whether B is column-major on CUDA: its elements of a column are adjacent.
        least_capability: the least compute capability of a GPU of CUDA that has it; (0, 0): any.
        fast_accumulation: whether sums may stay in the matrix units alone (``use_fast_accum``).
        sources: where each of these facts stands.
    """

    right: str = ""
    result: str = ""
    multiple: int = 1
    rows_above: int = 0
    column_major: bool = False
    least_capability: tuple[int, int] = (0, 0)
    fast_accumulation: bool = False
    sources: tuple[str, ...] = ()


_SCALED_MM = (
    "torch 2.13, _scaled_mm: 'Expected trailing dimension of mat1 to be divisible by 16', 'mat2 "
    "shape must be divisible by 16'; mat2 must be column-major",
    "cuBLAS documentation, cublasLtMatmul: FP8 kernels take A transposed and B not (TN) on compute "
    "capability 8.9, 9.0 and 12.x",
    "torch 2.13, _scaled_mm: only on devices with compute capability 9.0 and above, or 8.9")
PRODUCTS: Mapping[str, ProductTraits] = MappingProxyType({
    **{dtype: ProductTraits() for dtype in ("fp64", "fp32", "bf16", "fp16")},
    "tf32": ProductTraits(
        least_capability=(8, 0), sources=(
            "CUDA C++ Programming Guide, technical specifications per compute capability: tf32 "
            "from 8.0 on; below it torch multiplies in fp32",)),
    "int8": ProductTraits(
        result="int32", multiple=8, rows_above=16, column_major=True, sources=(
            "torch 2.13, _int_mm_out_cuda: 'self.size(0) needs to be greater than 16', self.size(1)"
            " and mat2.size(1) 'a multiple of 8'",
            "github.com/pytorch/pytorch/pull/169961: two row-major operands are 'not yet supported "
            "by cuBLAS, behavior is liable to change'")),
    "fp8_e4m3": ProductTraits(
        result="bf16", multiple=16, column_major=True, least_capability=(8, 9),
        fast_accumulation=True, sources=_SCALED_MM),
    "fp8_e5m2": ProductTraits(
        right="fp8_e4m3", result="bf16", multiple=16, column_major=True, least_capability=(8, 9),
        fast_accumulation=True, sources=(
            *_SCALED_MM, "torch 2.13, _scaled_mm: 'Multiplication of two Float8_e5m2 matrices is "
            "not supported'; cuBLAS has none")),
})
"""Type of A -> what its product asks for. e5m2 is the type of gradients: transformer-engine's
backward multiplies it by weights and activations in e4m3, as is done here."""
