"""A product in fp8, where torch and the GPU have it: is it right, and faster than in bf16?

    python benchmarks/gpu/fp8.py FOLDER

torch._scaled_mm is what torch offers; it needs compute capability 8.9 or newer. Operands are whole
numbers from -2 to 2, which fp8 holds, so the result in fp32 is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from gpu.record import write_json

EXTENT = 8192


def main() -> int:
    """Write verdicts.json in the folder."""
    verdict, detail = "skipped", why_not()
    if not detail:
        verdict, detail = measured()
    write_json(Path(sys.argv[1]) / "verdicts.json", {"fp8": {"verdict": verdict, "detail": detail}})
    print(f"{verdict}: {detail}")
    return 0


def why_not() -> str:
    """Return why there is no fp8 here, or nothing."""
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        return f"torch {torch.__version__} has no fp8"
    major, minor = torch.cuda.get_device_capability()
    return "" if (major, minor) >= (8, 9) else f"compute capability {major}.{minor} has no fp8"


def measured() -> tuple[str, str]:
    """Return the verdict and the rates in fp8 and bf16."""
    torch.manual_seed(0)
    left = torch.randint(-2, 3, (EXTENT, EXTENT), device="cuda").float()
    right = torch.randint(-2, 3, (EXTENT, EXTENT), device="cuda").float()
    one = torch.ones((), device="cuda")
    short, other = left.to(torch.float8_e4m3fn), right.t().contiguous().to(torch.float8_e4m3fn).t()

    def in_fp8() -> torch.Tensor:
        return torch._scaled_mm(short, other, scale_a=one, scale_b=one, out_dtype=torch.float32)

    wrong = int((in_fp8() != left @ right).sum())
    brain, beside = left.bfloat16(), right.bfloat16()
    fp8, bf16 = _rate(in_fp8), _rate(lambda: brain @ beside)
    detail = (f"{wrong} wrong elements; fp8 {fp8 / 1e12:.4g}, bf16 {bf16 / 1e12:.4g} TFLOP/s: "
              f"{fp8 / bf16:.2f} times")
    return ("met" if not wrong and fp8 > bf16 else "missed"), detail


def _rate(run: Callable[[], object], calls: int = 10, samples: int = 10) -> float:
    """Return the FLOP/s in the median of some samples of several calls, between events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times_s = []
    for _ in range(samples + 2):
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        times_s.append(begin.elapsed_time(end) / 1e3 / calls)
    return 2 * EXTENT**3 / median(times_s[2:])


if __name__ == "__main__":
    sys.exit(main())
