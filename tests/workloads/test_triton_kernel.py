"""The Triton kernel without a GPU: its arithmetic, which row goes where, and the code for a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbench.kinds.primitive.run.implementations.triton_kernel import reserved

HERE = Path(__file__).parent
LEAST_SHARED_BYTES = 99 * 1024
"""What a program may have on A10 (8.6), the least of Ampere and Hopper: CUDA C++ Programming Guide,
technical specifications per compute capability. A100 (8.0) has 163 KiB, H100 (9.0) 227 KiB."""


def output_of(script: str, *words: str, **variables: str) -> Any:
    """Run a script in a process of its own and return the JSON that it prints."""
    env = {**os.environ, **variables, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run([sys.executable, str(HERE / script), *words], env=env, text=True,
                          capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_product_of_gathered_chunks_is_exact_in_the_interpreter() -> None:
    assert output_of("on_triton_kernel.py", TRITON_INTERPRET="1") == [True] * 5


@pytest.mark.parametrize(("capability", "target", "product"), [
    ("80", "sm_80", "mma.sync.aligned"), ("90", "sm_90a", "wgmma.mma_async"),
], ids=["Ampere", "Hopper"])
def test_in_code_for_a_gpu_a_chunk_is_read_behind_its_flag(
    tmp_path: Path, capability: str, target: str, product: str,
) -> None:
    found = output_of("on_triton_compiler.py", capability, "bf16", "fp32",
                      TRITON_CACHE_DIR=str(tmp_path))
    reads = re.compile(r"ld\.global|cp\.async\.c[ag]\.shared\.global|atom\.|bar\.sync")
    for dtype, (ptx, shared_bytes) in found.items():
        told = [read.group() for read in reads.finditer(ptx)]
        flag = told.index("atom.")
        assert f".target {target}" in ptx
        assert "atom.global.acquire.gpu.cas" in ptx
        assert set(told[:flag]) <= {"bar.sync"}, dtype
        assert told[flag + 1] == "bar.sync", dtype
        assert "tf32" not in ptx
        assert (product in ptx) == (dtype == "bf16")  # there are no tensor cores for IEEE fp32
        assert 0 < shared_bytes <= LEAST_SHARED_BYTES, dtype


@pytest.mark.parametrize(("variables", "left"), [
    ({"NCCL_MAX_CTAS": "32"}, 32), ({}, 64), ({"NCCL_MAX_CTAS": "64"}, 64),
    ({"NCCL_MAX_CTAS": "128"}, 64), ({"NCCL_MAX_CTAS": "many"}, 64), ({"NCCL_MAX_CTAS": "0"}, 64),
    ({"NCCL_MAX_CTAS": "32", "NCCL_MIN_NCHANNELS": "48"}, 64),
    ({"NCCL_MAX_CTAS": "32", "NCCL_MIN_CTAS": "40"}, 64),
])
def test_the_product_leaves_nccl_every_block_that_it_can_have(
    variables: dict[str, str], left: int,
) -> None:
    assert reserved(variables) == left
