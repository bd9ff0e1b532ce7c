"""Compile the Triton kernel for a GPU that need not be there; started by test_triton_kernel.py.

Prints the PTX of the product for each dtype given, as a JSON object.
"""

from __future__ import annotations

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpcbench.kinds.primitive.run.implementations.triton_kernel import multiply_tiles

HOPPER = GPUTarget("cuda", 90, 32)
NUMBERS = ("chunks", "ranks", "part", "columns", "inner")
ALIGNED = (0, 1, 2, 3, 7, 8)  # what Triton finds out of buffers, and of extents divisible by 16


def ptx(dtype: str, depth: int) -> str:
    """Return the code for Hopper."""
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": depth}
    types = {**dict.fromkeys(("gathered", "weight", "output"), f"*{dtype}"), "flags": "*i32",
             **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(blocks, "constexpr")}
    source = ASTSource(multiply_tiles, types, blocks,
                       {(place,): [["tt.divisibility", 16]] for place in ALIGNED})
    built = triton.compile(source, target=HOPPER, options={"num_warps": 8, "num_stages": 3})
    return str(built.asm["ptx"])


if __name__ == "__main__":
    print(json.dumps({dtype: ptx(dtype, 32 if dtype == "fp32" else 64) for dtype in sys.argv[1:]}))
