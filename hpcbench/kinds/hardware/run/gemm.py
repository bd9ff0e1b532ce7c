"""One matrix product on this rank, checked against a reference in higher precision.

Operands are normally distributed: with simple numbers a GPU draws less power, and is faster than in
any training. int8 has whole numbers of the whole range, and exact results.

A result may be off by LAMBDA sqrt(k) u ||t|| per element, where t are its k terms and u the unit
roundoff of what is rounded on the way: Higham and Mary, Sharper Probabilistic Backward Error
Analysis for Basic Linear Algebra Kernels with Random Data, SIAM J. Sci. Comput. 42 (2020). It is
then rounded once to the type of the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.hardware.plan.gemm import PRODUCTS, ROWS, Gemm
from hpcbench.operations.data import Mismatch, mismatch
from hpcbench.operations.place import Place

LAMBDA = 8.0
"""A sum of random signs exceeds LAMBDA ||t|| with a probability of 2 exp(-32) (Hoeffding)."""
_TYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32,
          "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
          "int32": torch.int32,
          "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_ADDED_IN = {"fp64": 2.0**-53, "fp8_e4m3": 2.0**-13, "fp8_e5m2": 2.0**-13}
"""Unit roundoff of sums, else that of fp32. Hopper's matrix units keep about 14 bits of sums of
fp8 products: DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.5.2."""
_TF32 = 2.0**-10
"""The share by which tf32 may change each operand: it keeps 10 bits behind the point."""


class GemmOperation:
    """C = A B on the device of ``place``: ``left``, ``right`` and ``output``.

    ``expected`` and ``bound``, both (m, n), are there if results are checked. Without ``bound``
    results are exact."""

    expected: torch.Tensor
    bound: torch.Tensor | None = None

    def __init__(self, work: Gemm, place: Place, *, validate: bool) -> None:
        """Draw operands of this rank. Raises CaseError if torch has no such product here."""
        self.name, self.place, self._dtype = work.name, place, work.dtype
        generator = torch.Generator().manual_seed(place.number)
        self.left = _drawn((work.m, work.k), work.dtype, generator).to(place.device)
        right = _drawn((work.n, work.k), work.right or work.dtype, generator).to(place.device)
        self.right = right.t() if _is_column_major(work, place) else right.t().contiguous()
        self._fast = work.fast_accumulation
        self.output = torch.empty(
            work.m, work.n, dtype=_TYPES[PRODUCTS[work.dtype].result or work.dtype],
            device=place.device)
        self._poison = (math.nan if self.output.is_floating_point()
                        else torch.iinfo(self.output.dtype).max)
        self._scale = torch.ones((), device=place.device)
        try:
            self.run()
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            raise CaseError(f"torch {torch.__version__} has no product of {work.dtype} on "
                            f"{place.device.type}: {str(error).splitlines()[0]}") from error
        if validate:
            self._expect()

    def prepare(self) -> None:
        self.output.fill_(self._poison)

    def run(self) -> None:
        if self._dtype == "int8":
            torch._int_mm(self.left, self.right, out=self.output)
        elif self._dtype.startswith("fp8"):
            torch._scaled_mm(self.left, self.right, self._scale, self._scale,
                             out_dtype=self.output.dtype, use_fast_accum=self._fast,
                             out=self.output)
        elif self._dtype == "tf32":
            with _tf32():
                torch.mm(self.left, self.right, out=self.output)
        else:
            torch.mm(self.left, self.right, out=self.output)

    def corrupt_output(self) -> None:
        self.output.view(-1)[-1] = self._poison

    def check(self) -> Mismatch | None:
        expected = self.expected.reshape(-1)
        got = self.output.reshape(-1).to(expected.device)
        if self.bound is None:
            return mismatch(got, expected, lambda piece: got[piece] == expected[piece])
        bound = self.bound.reshape(-1)
        return mismatch(got, expected, lambda piece: (
            got[piece].to(expected.dtype) - expected[piece]).abs() <= bound[piece])

    def _expect(self) -> None:
        """Compute the expected result, some rows at a time, and how far a result may be off."""
        exact, where = self._dtype == "int8", self.place.device
        where = torch.device("cpu") if where.type == "mps" else where  # mps has no fp64
        kept = torch.float64 if self._dtype == "fp64" else torch.float32
        self.expected = torch.empty_like(
            self.output, dtype=torch.int32 if exact else kept, device=where)
        right = self.right.to(where, torch.float64)
        if not exact:
            self.bound = torch.empty_like(self.expected)
            squares = right.to(torch.float32).square()
        for rows in torch.arange(len(self.left)).split(ROWS):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            left = self.left[part].to(where, torch.float64)
            self.expected[part] = (left @ right).to(self.expected.dtype)
            if self.bound is not None:
                norms = (left.to(torch.float32).square() @ squares).sqrt()
                self.bound[part] = self._bounds(norms, self.expected[part])

    def _bounds(self, norms: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return the largest errors: of sums of terms with these norms, then of one rounding."""
        steps = self.left.shape[1]
        added = _ADDED_IN.get(self._dtype, 2.0**-24)
        share = LAMBDA**2 * math.sqrt(steps) * added
        if self._dtype == "tf32":
            share += LAMBDA * 2 * _TF32
        rounded = torch.finfo(self.output.dtype).eps if self._dtype != "fp64" else 2.0**-52
        return share * norms + rounded * expected.abs() + 2.0**-23 * norms


def _is_column_major(work: Gemm, place: Place) -> bool:
    """Return how B lies: as cuBLASLt takes it on CUDA; elsewhere that of int8 is row-major."""
    return PRODUCTS[work.dtype].column_major and (
        place.device.type == "cuda" or work.dtype != "int8")


def _drawn(shape: tuple[int, int], dtype: str, generator: torch.Generator) -> torch.Tensor:
    if dtype == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)
    return torch.randn(shape, generator=generator).to(_TYPES[dtype])


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
