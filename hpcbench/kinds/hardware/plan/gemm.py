"""Test ``gemm``: each rank multiplies matrices of its own, all ranks at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hpcbench.config.names import unknown_name
from hpcbench.errors import ConfigError
from hpcbench.kinds.hardware.plan.block import HardwareBlock
from hpcbench.kinds.hardware.plan.test import HardwareTest, HardwareWork
from hpcbench.operations.layers import LAYERS, layer_extents
from hpcbench.operations.models import MODELS
from hpcbench.plan.assemble import Draft, least_calls, too_large
from hpcbench.plan.estimate import CASE_S, FLOPS_PER_S, device_kind
from hpcbench.plan.points import CommonPoint, PlanRequest
from hpcbench.plan.support import resolve_device, unfit_world

if TYPE_CHECKING:
    from hpcbench.plan.case import Case

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
    """C (m, n) = A (m, k) B (k, n) on each rank; ``shape`` names the model's layer, if any."""

    dtype: str
    m: int
    n: int
    k: int
    shape: str = ""
    groups: int = 1
    test: str = "gemm"

    @property
    def flops(self) -> int:
        """Return the FLOPs of a rank's call: 2 m n k, as BLAS counts them."""
        return 2 * self.m * self.n * self.k

    def needs_bytes(self, *, checked: bool) -> int:
        """Return the bytes of operands and result, which are drawn in fp32, and of a check.

        What a result is compared with is computed in fp64, and its bound from squares in fp32.
        """
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

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others."""
        return [self.test, self.dtype, f"{self.m}x{self.n}x{self.k}", f"ranks={world_size}"]

    def only_on(self) -> tuple[str, ...]:
        """Return cuda for tf32, which is a mode of its matrix units."""
        return ("cuda",) if self.dtype == "tf32" else ()

    def profiled_for(self) -> frozenset[str]:
        """Return compute: it is nothing else."""
        return frozenset({"compute"})


def gemm_of(case: Case) -> Gemm:
    """Return the workload of a case of this test. Raises TypeError for another."""
    if not isinstance(case.workload, Gemm):
        raise TypeError(f"{case.label} is no gemm")
    return case.workload


def _lengths(block: HardwareBlock) -> dict[str, int]:
    if block.model is None:
        return {"shape": len(block.shape or SEARCH)}
    return {"model": len(block.model), "layer": len(block.layer or LAYERS),
            "tokens": len(block.tokens or ())}


def _drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    for m, n, k, shape in _shapes(block):
        yield _draft(Gemm(point.dtype, m, n, k, shape), point, job)


def _draft(work: Gemm, point: CommonPoint, job: PlanRequest) -> Draft:
    device = resolve_device(point.backend, point.device)
    memory = work.needs_bytes(checked=point.validate)
    rate = FLOPS_PER_S[device_kind(device)]
    skip = (_unfit_type(work, device)
            or unfit_world(point.backend, point.world_size, job.world_size)
            or too_large(memory, 0, device, job.config.hardware))
    return Draft(
        workload=work, device=device, validate=point.validate, memory_bytes=memory, skip=skip,
        estimate_s=CASE_S + (3 + least_calls(point, job.config)) * work.flops / rate,
        identity=work.identity())


def _unfit_type(work: Gemm, device: str) -> str | None:
    """Return why there is no such product, or None. fp8: torch._scaled_mm asks for 16 | n, k."""
    if work.dtype not in ELEMENT_BYTES:
        return f"gemm has no {work.dtype}: take one of {', '.join(ELEMENT_BYTES)}"
    if work.dtype == "tf32" and device != "cuda":
        return "tf32 is a mode of CUDA's matrix units: take device cuda, or fp32"
    if ELEMENT_BYTES[work.dtype] == 1 and (work.n % 16 or work.k % 16):
        return f"gemm of {work.dtype} needs n and k that 16 divides, not {work.n} and {work.k}"
    return None


def _shapes(block: HardwareBlock) -> Iterator[tuple[int, int, int, str]]:
    """Yield m, n, k and what they are of. Raises ConfigError for what is no shape."""
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
    """Return what is wrong with the keys that give the shapes, or None."""
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
    known: dict[str, Collection[str]] = {"model": MODELS, "layer": LAYERS}
    given = [("model", name) for name in block.model]
    given += [("layer", name) for name in block.layer or ()]
    return next((f"{key}: {unknown_name(name, known[key])}" for key, name in given
                 if name not in known[key]), None)


def _extents(text: str) -> tuple[int, int, int]:
    """Return m, n and k; three times 0 of what is no shape."""
    match = _SHAPE.fullmatch(text)
    extents = [int(part) for part in match.groups() if part] if match else [0]
    if not all(1 <= extent <= _MOST for extent in extents):
        return 0, 0, 0
    m, n, k = extents if len(extents) == 3 else extents * 3
    return m, n, k


GEMM = HardwareTest(
    "gemm", "C = A B on each rank: TFLOP/s of a rank and of all ranks at once", Gemm,
    _lengths, _drafts)
