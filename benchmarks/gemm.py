"""Does hpcbench measure a matrix product as a bare loop of torch does? Both, beside each other.

    python benchmarks/gemm.py [--passes 48] [--turn-ms 60] [--threads 1] [--dtypes fp32 bf16]
                              [--shapes 256 512 1024]

One rank, one process: in every pass three loops take turns on the same matrices: hpcbench's
measuring loop over its GEMM, a bare loop of torch, and that bare loop once more (A/A). A turn is as
many calls as fill its time, at least three, after a call that does not count. Results are checked
before the first pass and after the last, between which nothing is.

Compared are the medians of turns, as ratios within a pass; shown is the geometric mean over passes
with its 95 % interval. The goal is an interval within 2 % of 1. Where that of A/A is not, or
the ratio's own interval is partly within, nothing can be told, and the goal is not met.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial

import numpy as np
import torch

from hpcbench.kinds.hardware.plan.gemm import ELEMENT_BYTES
from hpcbench.kinds.hardware.run.gemm import GemmOperation
from hpcbench.operations.place import Place
from paired import Loop, ThroughHpcbench, in_turns, judged, opened, plain
from ratios import ratio

ALLOWED = 0.02
LEAST_CALLS = 3
NAMES = ("hpcbench", "bare", "bare again")
TYPES = [name for name in ELEMENT_BYTES if name != "tf32" and not name.startswith("fp8")]


def main() -> None:
    """Measure each product and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--passes", type=int, default=48)
    parser.add_argument("--turn-ms", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=TYPES)
    parser.add_argument("--shapes", nargs="+", default=["256", "512", "1024"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"threads: {given.threads}; passes: {given.passes}; load {os.getloadavg()[0]:.1f}; "
          "ratios of times to the bare loop's, with 95 % intervals")
    verdicts = {product(dtype, shape, given) for dtype in given.dtypes for shape in given.shapes}
    is_met = verdicts == {"met"}
    sys.exit(int(not is_met))


def product(dtype: str, shape: str, given: argparse.Namespace) -> str:
    """Measure one product, print its line and return the verdict."""
    operation = opened(Place(0, 1, None, torch.device("cpu")), test="gemm", dtype=dtype,
                       shape=shape)
    assert isinstance(operation, GemmOperation)
    bare = plain(bare_call(operation, dtype))
    calls = max(LEAST_CALLS, math.ceil(given.turn_ms / 1e3 / min(bare(LEAST_CALLS))))
    through = ThroughHpcbench(operation, calls)
    through.check()
    loops: list[Loop] = [through, bare, bare]
    times_s = in_turns(loops, given.passes, calls)
    through.check()
    found, chance = (ratio(times_s[at], times_s[1]) for at in (0, 2))
    verdict = judged(found, chance, ALLOWED)
    medians = ", ".join(f"{name} {1e3 * np.median(own):.3f} ms"
                        for name, own in zip(NAMES, times_s, strict=True))
    print(f"{dtype} {shape}, {calls} calls a turn: {medians}\n  hpcbench {found.text}, A/A "
          f"{chance.text}: within {ALLOWED:.0%} is {verdict}", flush=True)
    return verdict


def bare_call(operation: GemmOperation, dtype: str) -> partial[torch.Tensor]:
    """Return the call of torch alone, on the same matrices."""
    function = torch._int_mm if dtype == "int8" else torch.mm
    return partial(function, operation.left, operation.right, out=operation.output)


if __name__ == "__main__":
    main()
