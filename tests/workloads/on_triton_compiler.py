"""Compile the Triton kernel for a GPU that need not be there; started by test_triton_kernel.py.

The first word is the compute capability, such as 80 for Ampere or 90 for Hopper; the others are
dtypes. Prints for each dtype the PTX of the product and the bytes of shared memory that it needs,
as a JSON object.
"""

from __future__ import annotations

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpcbench.kinds.primitive.run.implementations.triton_kernel import multiply_tiles

THREADS_OF_A_WARP = 32
NUMBERS = ("chunks", "ranks", "part", "columns", "inner")
ALIGNED = (0, 1, 2, 3, 7, 8)  # what Triton finds out of buffers, and of extents divisible by 16


def compiled(capability: int, dtype: str, depth: int) -> tuple[str, int]:
    """Return the code for GPUs of that compute capability, and its bytes of shared memory."""
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": depth}
    types = {**dict.fromkeys(("gathered", "weight", "output"), f"*{dtype}"), "flags": "*i32",
             **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(blocks, "constexpr")}
    source = ASTSource(multiply_tiles, types, blocks,
                       {(place,): [["tt.divisibility", 16]] for place in ALIGNED})
    target = GPUTarget("cuda", capability, THREADS_OF_A_WARP)
    built = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": 3})
    return str(built.asm["ptx"]), int(built.metadata.shared)


if __name__ == "__main__":
    print(json.dumps({dtype: compiled(int(sys.argv[1]), dtype, 32 if dtype == "fp32" else 64)
                      for dtype in sys.argv[2:]}))
