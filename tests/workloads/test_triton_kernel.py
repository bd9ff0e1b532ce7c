"""The Triton kernel without a GPU: its arithmetic, which row goes where, and the code for a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcbench.kinds.primitive.plan.implementations import IMPLEMENTATIONS, reserved

HERE = Path(__file__).parent
SHARED_KIB = {70: 96, 75: 64, 80: 163, 86: 99, 90: 227, 100: 227, 103: 227, 120: 99}
"""What a program may have at most: CUDA C++ Programming Guide, technical specifications per compute
capability."""
PRODUCT = {80: "mma.sync.aligned", 86: "mma.sync.aligned", 90: "wgmma.mma_async",
           100: "tcgen05.mma", 103: "tcgen05.mma", 120: "mma.sync.aligned"}
"""Compute capability -> the instruction of its tensor cores (PTX ISA)."""
ON_TENSOR_CORES = re.compile(r"(wg)?mma\.|tcgen05")
FP32_STACK_BYTES = 128
"""Seen: 16 on 8.0, 80 on 10.0, 32 on 12.0; without tensor cores registers are short."""
READS = re.compile(r"ld\.global|cp\.async\.c[ag]\.shared\.global|atom\.|bar\.sync")


def output_of(script: str, *words: str, **variables: str) -> Any:
    """Run a script in a process of its own and return the JSON that it prints."""
    env = {**os.environ, **variables, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run([sys.executable, str(HERE / script), *words], env=env, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_product_of_gathered_chunks_is_exact_in_the_interpreter() -> None:
    assert output_of("on_triton_kernel.py", TRITON_INTERPRET="1") == [True] * 5


def compiled(words: Sequence[str], folder: Path) -> Any:
    return output_of("on_triton_compiler.py", *words, TRITON_CACHE_DIR=str(folder))


def assert_for_a_gpu(word: str, code: dict[str, Any]) -> None:
    """A chunk is read behind its flag, products are on tensor cores, and all fits."""
    capability, dtype = int(word.split(":")[0]), word.split(":")[1]
    ptx, short = code["ptx"], dtype != "fp32"
    told = [read.group() for read in READS.finditer(ptx)]
    flag = told.index("atom.")
    assert re.search(rf"\.target sm_{capability}a?\b", ptx)
    assert "atom.global.acquire.gpu.cas" in ptx
    assert "atom.global.gpu.release.exch" in code["flag"]
    assert set(told[:flag]) <= {"bar.sync"} and told[flag + 1] == "bar.sync"
    assert "tf32" not in ptx
    assert (PRODUCT[capability] in ptx) == short  # there are no tensor cores for IEEE fp32
    assert bool(ON_TENSOR_CORES.search(ptx)) == short
    assert 0 < code["shared_bytes"] <= SHARED_KIB[capability] * 1024
    assert code["stack_bytes"] <= (0 if short else FP32_STACK_BYTES)


def test_in_code_for_a_gpu_a_chunk_is_read_behind_its_flag(tmp_path: Path) -> None:
    """Of one GPU and one type; the others take long to compile."""
    assert_for_a_gpu("80:bf16", compiled(["80:bf16"], tmp_path)["80:bf16"])


def assert_slow(code: dict[str, Any]) -> None:
    """Products are added one by one, and most operands are not in registers."""
    assert not ON_TENSOR_CORES.search(code["ptx"]) and "fma.rn.f32" in code["ptx"]
    assert code["stack_bytes"] > 1000


def test_below_the_least_capability_of_the_implementation_no_tensor_core_is_used(
    tmp_path: Path,
) -> None:
    spec, = (spec for spec in IMPLEMENTATIONS if spec.name == "triton")
    assert spec.least_capability == (8, 0)
    for code in compiled(["75:fp16", "70:fp16", "70:bf16"], tmp_path).values():
        assert_slow(code)


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
