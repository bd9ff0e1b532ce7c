"""The memory that is predicted of a training is what its step takes, storage by storage."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest

from hpcbench.kinds.training.plan.memory import ERROR
from hpcbench.kinds.training.plan.workload import CHUNKED
from launcher import ROOT


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = spec_from_file_location("memory_benchmark", ROOT / "benchmarks" / "memory.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_cross_entropy_takes_12_bytes_a_logit(benchmark: Any, dtype: str) -> None:
    forward, kept, backward = benchmark.loss_bytes(dtype)
    assert forward == pytest.approx(8 if dtype == "fp32" else 10, rel=0.02)
    assert kept == pytest.approx(4, rel=0.05)
    assert backward == pytest.approx(12, rel=0.02)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize(("shape", "block"), [
    ("logits", {"strategies": "single", "world_size": 1}),
    ("logits", {"strategies": "fsdp", "loss": CHUNKED}),
    ("weights", {"strategies": "data"}),
    ("weights", {"strategies": "fsdp", "accumulation": 2}),
    ("weights", {"strategies": {"fsdp": {"sync_each_batch": True}}, "accumulation": 2}),
    ("weights", {"strategies": {"hybrid": {"pp": 2, "data": "replicate"}}, "dtype": "fp32",
                 "layers": 8}),
    ("activations", {"strategies": "hsdp", "dtype": "fp32"}),
    ("activations", {"strategies": "fsdp", "library": "transformers"}),
    ("weights", {"strategies": {"qlora": {"over": "data"}}})])
def test_a_step_takes_what_is_predicted(benchmark: Any, shape: str, block: dict[str, Any]) -> None:
    for one in benchmark.compared(shape, {"dtype": "bf16", "layers": 5, **block}):
        assert one.ratio == pytest.approx(1, abs=ERROR), one
