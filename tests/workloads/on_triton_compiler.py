"""Compile the Triton kernels for GPUs that need not be there; started by test_triton_kernel.py.

Each word is a compute capability and a dtype, such as 80:bf16 for Ampere. Prints, as a JSON object
by these words: the PTX of the product and of the kernel that raises a flag, the bytes of shared
memory that the product needs, and the bytes of stack of a thread: what registers do not hold.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpcbench.kinds.primitive.run.implementations.triton_kernel import _raise_flag, multiply_tiles

THREADS_OF_A_WARP = 32
NUMBERS = ("chunks", "ranks", "part", "columns", "inner")
ALIGNED = (0, 1, 2, 3, 7, 8)  # what Triton finds out of buffers, and of extents divisible by 16
DUMPER = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
"""NVIDIA's, from Triton's wheel: it tells what a kernel needs."""


def compiled(capability: int, dtype: str) -> dict[str, Any]:
    """Return what is said above of the code for GPUs of that compute capability."""
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32 if dtype == "fp32" else 64}
    types = {**dict.fromkeys(("gathered", "weight", "output"), f"*{dtype}"), "flags": "*i32",
             **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(blocks, "constexpr")}
    source = ASTSource(multiply_tiles, types, blocks,
                       {(place,): [["tt.divisibility", 16]] for place in ALIGNED})
    target = GPUTarget("cuda", capability, THREADS_OF_A_WARP)
    built = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": 3})
    flag = triton.compile(ASTSource(_raise_flag, {"flag": "*i32"}), target=target)
    return {"ptx": str(built.asm["ptx"]), "flag": str(flag.asm["ptx"]),
            "shared_bytes": int(built.metadata.shared),
            "stack_bytes": stack_bytes(built.asm["cubin"])}


def stack_bytes(machine_code: bytes) -> int:
    """Return the bytes of local memory of a thread."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(machine_code)
        told = subprocess.run([DUMPER, "--dump-resource-usage", path], text=True, check=True,
                              capture_output=True).stdout
    found = re.search(r"STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1])


def of_word(word: str) -> dict[str, Any]:
    """Return what is said above of a word."""
    capability, dtype = word.split(":")
    return compiled(int(capability), dtype)


if __name__ == "__main__":
    print(json.dumps({word: of_word(word) for word in sys.argv[1:]}))
