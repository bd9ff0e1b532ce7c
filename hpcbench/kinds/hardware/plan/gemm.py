"""Test ``gemm``: each rank multiplies matrices of its own, all ranks concurrently.

PRODUCTS lists the products that torch and cuBLASLt have of each type, with sources."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType

from hpcbench.config.axes import unknown_name
from hpcbench.errors import ConfigError
from hpcbench.kinds.hardware.block import HardwareBlock
from hpcbench.kinds.hardware.plan.test import HardwareTest, HardwareWork, of_test
from hpcbench.operations.models import LAYERS, PLAIN, layer_extents
from hpcbench.plan.case import Case, PlanRequest
from hpcbench.plan.order import CASE_S, DRAWN_PER_S, FLOPS_PER_S, device_kind
from hpcbench.plan.points import CommonPoint, Draft, least_calls, too_large
from hpcbench.plan.support import resolve_device, unfit_world
from hpcbench.plan.workload import Features, Label
from hpcbench.records import dataclass


@dataclass(frozen=True, slots=True)
class ProductTraits:
    """The requirements of C (m, n) = A (m, k) B (k, n) of one type.

    Attributes:
        right: type of B where it is another than that of A; empty: the same.
        result: type of C where it is another than that of A; empty: the same.
        multiple: n and k must be multiples of this.
        rows_above: on CUDA m must be greater than this.
        column_major: whether B is column-major on CUDA: its elements of a column are adjacent.
        least_capability: the least compute capability of a GPU of CUDA that has it; (0, 0): any.
        fast_accumulation: whether sums may stay in the matrix units alone (``use_fast_accum``).
        sources: where each of these facts stands."""

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
"""Type of A -> requirements of its product. e5m2 is the type of gradients: transformer-engine's
backward multiplies it by weights and activations in e4m3, as is done here."""


SEARCH = ("512", "1024", "2048", "4096")
"""Square shapes that are tried where none is given; the best rate is the measured peak."""
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1,
                 "fp8_e5m2": 1, "int8": 1}
RESULT_BYTES = {**ELEMENT_BYTES, "fp8_e4m3": 2, "fp8_e5m2": 2, "int8": 4}
"""Products of fp8 are stored in bf16, those of int8 in int32."""
ROWS = 256
"""Rows of the reference that are computed at a time."""
_SHAPE = re.compile(r"(\d+)(?:x(\d+)x(\d+))?")
_MOST = 2**20


@dataclass(frozen=True, slots=True)
class Gemm(HardwareWork):
    """C (m, n) = A (m, k) B (k, n) on each rank; ``shape`` names the model's layer, if any.

    ``dtype`` is the type of A, ``right`` that of B where it is another. ``fast_accumulation``: sums
    of fp8 stay in the matrix units alone."""

    dtype: str
    m: int
    n: int
    k: int
    shape: str = ""
    groups: int = 1
    test: str = "gemm"
    right: str = ""
    fast_accumulation: bool = False

    @property
    def types(self) -> str:
        by = f" x {self.right}" if self.right else ""
        return f"{self.dtype}{by}{', fast sums' if self.fast_accumulation else ''}"

    @property
    def features(self) -> Features:
        """Return the devices that have it: tf32 and fast sums are modes of CUDA's matrix units."""
        least = PRODUCTS[self.dtype].least_capability if self.dtype in PRODUCTS else (0, 0)
        return Features(
            only_on=("cuda",) if self.dtype == "tf32" or self.fast_accumulation else (),
            least_capability=least if any(least) else (), profiled_for=frozenset({"compute"}))

    @property
    def flops(self) -> int:
        """Return the FLOPs of a rank's call: 2 m n k, as BLAS counts them."""
        return 2 * self.m * self.n * self.k

    def needs_bytes(self, *, checked: bool) -> int:
        """Return the bytes of operands and result, which are drawn in fp32, and of a check.

        The reference of a result is computed in fp64, and its bound from squares in fp32."""
        size, result = (table.get(self.dtype, 4) for table in (ELEMENT_BYTES, RESULT_BYTES))
        left, right, results = self.m * self.k, self.k * self.n, self.m * self.n
        drawing, checking, exact = max(left, right) * (4 + size), 0, self.dtype == "int8"
        if checked:
            kept, rows = 8 if self.dtype == "fp64" else 4, min(self.m, ROWS)
            checking = (right * (8 if exact else 16) + results * kept * (1 if exact else 2)
                        + rows * (20 * self.k + 24 * self.n) + 8 * self.m)
        return (left + right) * size + results * result + max(drawing, checking)

    @property
    def moved_bytes(self) -> int:
        """Return the least bytes of a call: operands are read once, the result is written once."""
        operands = self.m * self.k + self.k * self.n
        return (operands * ELEMENT_BYTES.get(self.dtype, 4)
                + self.m * self.n * RESULT_BYTES.get(self.dtype, 4))

    def label(self, world_size: int) -> Label:
        right = [f"by={self.right}"] if self.right else []
        fast = ["sums=fast"] if self.fast_accumulation else []
        return Label(self.test, [
            self.test, self.dtype, *right, f"{self.m}x{self.n}x{self.k}", *fast,
            f"ranks={world_size}"])


def gemm_of(case: Case) -> Gemm:
    return of_test(case, Gemm)


def _axes(block: HardwareBlock) -> Mapping[str, Sequence[object]]:
    sums = {"fast_accumulation": block.fast_accumulation or (False,)}
    if block.model is None:
        return {"shape": block.shape or SEARCH, **sums}
    return {"model": block.model, "layer": block.layer or LAYERS, "tokens": block.tokens or (),
            **sums}


def _drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    """Yield a draft for each shape; products without a choice of sums have one for each only."""
    traits = PRODUCTS.get(point.dtype, ProductTraits())
    sums = block.fast_accumulation if traits.fast_accumulation else None
    for (m, n, k, shape), fast in product(_shapes(block), sums or (False,)):
        yield _draft(Gemm(point.dtype, m, n, k, shape, right=traits.right,
                          fast_accumulation=fast), point, job)


def _draft(work: Gemm, point: CommonPoint, job: PlanRequest) -> Draft:
    device = resolve_device(point.backend, point.device)
    memory = work.needs_bytes(checked=point.validate)
    rate = FLOPS_PER_S[device_kind(device)]
    skip = (_unfit_type(work, device)
            or unfit_world(point.backend, point.world_size, job.world_size)
            or too_large(memory, 0, device, job.config.hardware))
    return Draft(
        workload=work, device=device, validate=point.validate, memory_bytes=memory, skip=skip,
        estimate_s=(CASE_S + (work.m + work.n) * work.k / DRAWN_PER_S["cpu"]
                    + (3 + least_calls(point, job.config)) * work.flops / rate),
        identity=work.identity())


def _unfit_type(work: Gemm, device: str) -> str | None:
    traits = PRODUCTS.get(work.dtype)
    if traits is None:
        return f"gemm has no {work.dtype}: take one of {', '.join(PRODUCTS)}"
    if work.dtype == "tf32" and device != "cuda":
        return "tf32 is a mode of CUDA's matrix units: take device cuda, or fp32"
    if work.n % traits.multiple or work.k % traits.multiple:
        return (f"gemm of {work.dtype} needs n and k that {traits.multiple} divides, not "
                f"{work.n} and {work.k}")
    if device in ("cuda", "auto") and work.m <= traits.rows_above:
        return (f"gemm of {work.dtype} on cuda needs m greater than {traits.rows_above}, not "
                f"{work.m}")
    if work.fast_accumulation and device not in ("cuda", "auto"):
        return f"fast_accumulation is a mode of CUDA's matrix units: {device} has one kind of sum"
    return None


def _shapes(block: HardwareBlock) -> Iterator[tuple[int, int, int, str]]:
    """Yield m, n, k and the layer that has them. Raises ConfigError for text that is no shape."""
    if problem := _problem(block):
        raise ConfigError(f"{block.name or block.kind}: {problem}")
    if block.model is None:
        for text in block.shape or SEARCH:
            yield (*_extents(text), "")
        return
    for model, layer, tokens in product(block.model, block.layer or LAYERS, block.tokens or ()):
        n, k = layer_extents(model, layer)
        yield tokens, n, k, f"{model} {layer}"


def _problem(block: HardwareBlock) -> str | None:
    if block.model is None:
        if block.layer or block.tokens:
            return "layer and tokens go with model; give model, or shape alone"
        bad = [text for text in block.shape or () if _extents(text) == (0, 0, 0)]
        return (f'shape: "{bad[0]}" is no shape; write MxNxK such as 1024x4096x1024, or one number '
                f"from 1 to {_MOST}") if bad else None
    if block.shape:
        return "model and shape both give the shape; keep one of them"
    if not block.tokens:
        return "model needs tokens: the rows of a rank"
    known: dict[str, Collection[str]] = {"model": PLAIN, "layer": LAYERS}
    given = [("model", name) for name in block.model]
    given += [("layer", name) for name in block.layer or ()]
    return next((f"{key}: {unknown_name(name, known[key])}" for key, name in given
                 if name not in known[key]), None)


def _extents(text: str) -> tuple[int, int, int]:
    """Return m, n and k; three times 0 for text that is no shape."""
    match = _SHAPE.fullmatch(text)
    extents = [int(part) for part in match.groups() if part] if match else [0]
    if not all(1 <= extent <= _MOST for extent in extents):
        return 0, 0, 0
    m, n, k = extents if len(extents) == 3 else extents * 3
    return m, n, k


GEMM = HardwareTest(
    "gemm", "C = A B on each rank: TFLOP/s of a rank and of all ranks at once", Gemm,
    "gemm:GemmOperation", _axes, _drafts, _problem)
