"""Cases on ``cuda`` without a GPU: torch takes every call, on one device, in an order CUDA defines.

Values, speed and memory of a GPU are not tested here; see on_fake_cuda.py for what is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import include_paths, library_paths

from hpcbench.backends.groups import open_groups
from hpcbench.kinds.primitive.plan.implementations import PRIMITIVES
from hpcbench.operations.collectives import collectives

HERE = Path(__file__).parent
RANKS = 4
MODEL = {"model": "transformer-tiny", "layers": 1, "hidden": 64, "seq_length": 16, "vocab": 96,
         "batch_size": 4}
BLOCKS: list[dict[str, Any]] = [
    {"kind": "collective", "collective": list(collectives()), "size": "64KiB",
     "dtype": ["bf16", "int32"]},
    {"kind": "collective", "collective": ["all_gather", "all_to_all"], "size": "64KiB",
     "uneven": "linear"},
    {"kind": "primitive", "primitive": [spec.name for spec in PRIMITIVES], "m": 16, "n": 8,
     "k": 8, "options": {"chunks": 2}, "dtype": "bf16",
     "order": list(dict.fromkeys(order for spec in PRIMITIVES for order in spec.orders)),
     "implementations": ["compute_only", "comm_only", "torch", "functional", "dtensor",
                         "chunked_pipeline", "p2p_ring", "symm_mem", "symm_mem_fallback"]},
    {"kind": "training", **MODEL, "dtype": "bf16", "strategies": ["hsdp", "tensor"]},
    {"kind": "training", **MODEL, "dtype": "fp16", "strategies": ["single", "fsdp"]},
    {"kind": "training", **MODEL, "dtype": "bf16", "strategies": {"hybrid": {"tp": 2}}},
    {"kind": "training", **MODEL, "layers": 4, "dtype": "bf16",
     "strategies": ["pipeline", "model"]},
    {"kind": "training", "model": "resnet50", "layers": 8, "width": 8, "batch_size": 2,
     "strategies": "fsdp"},
    {"kind": "memory", **MODEL, "strategies": "fsdp"},
    {"kind": "hardware", "test": ["stream", "pairs"]},
    {"kind": "hardware", "test": "gemm", "dtype": [
        "fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8_e4m3", "fp8_e5m2"]},
]
"""Not compiled graphs and Triton's kernels, whose code needs a GPU; not DDP and zero1, whose
reducer in C++ wants memory; not lora and qlora, since bitsandbytes asks CUDA itself."""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that gives a CPU build of torch eight GPUs."""
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has GPUs of its own")
    library = tmp_path_factory.mktemp("gpus") / "libfake_cuda.so"
    folder = library_paths()[0]
    command = ["g++", "-w", "-shared", "-fPIC", "-std=c++20", str(HERE / "fake_cuda.cpp"),
               *(f"-I{path}" for path in include_paths()), f"-L{folder}", f"-Wl,-rpath,{folder}",
               "-lc10", "-ltorch_cpu", "-o", str(library)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    except FileNotFoundError:
        pytest.skip("no compiler: g++ is missing")
    return library


@pytest.fixture(scope="module")
def reported(gpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one process on these GPUs tells: to start it takes as long as many cases."""
    sweep = tmp_path_factory.mktemp("sweep") / "sweep.json"
    sweep.write_text(json.dumps({"benchmarks": [{**one, "backend": "nccl"} for one in BLOCKS]}))
    env = {**os.environ, "LD_PRELOAD": str(gpus), "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run([sys.executable, str(HERE / "on_fake_cuda.py"), str(sweep), str(RANKS)],
                          env=env, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def outcomes(reported: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return by kind the label of each case of BLOCKS, and the error it ended with or nothing."""
    found: dict[str, dict[str, str]] = {}
    for kind, label, error in reported["cases"]:
        found.setdefault(kind, {})[label] = error
    return found


@pytest.mark.parametrize(("kind", "least"), [
    ("collective", 20), ("primitive", 45), ("training", 8), ("memory", 1), ("hardware", 14)])
def test_every_call_is_taken_on_the_gpu(
    outcomes: dict[str, dict[str, str]], kind: str, least: int,
) -> None:
    found = outcomes[kind]
    assert len(found) >= least
    assert not {label: error for label, error in found.items() if error}


def test_an_older_torch_is_asked_for_groups_as_it_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(dist, "new_group", lambda ranks, backend, timeout: asked.append(ranks))
    open_groups("nccl", timedelta(seconds=1), [[0, 1], [2, 3]], 3, torch.device("cuda", 1))
    assert asked == [[0, 1], [2, 3]]


def test_groups_of_nccl_are_bound_to_the_gpu_of_their_rank_and_others_are_not(
    reported: dict[str, Any],
) -> None:
    lines = [[0, 1], [2, 3], [0], [1], [2], [3]]
    found = reported["groups"]
    assert found["nccl"] == [["nccl", line, "cuda:3"] for line in lines]
    assert found["gloo"] == [["gloo", line, None] for line in lines]


def test_what_is_kept_by_torch_is_free_and_cold_buffers_are_by_the_cache_of_the_gpu(
    reported: dict[str, Any],
) -> None:
    found = reported["memory"]
    assert found["free"] == (10**8 + 3 * 10**8) // 2  # half of what is free, and of what is kept
    assert found["sets"] == 4 * 50 // 25  # four times an H100's 50 MiB
