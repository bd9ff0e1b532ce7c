"""Is the memory that is predicted of a training what its step takes? Counted, storage by storage.

    python benchmarks/memory.py [--dtypes fp32 bf16] [--shapes logits activations weights]
                                [--strategies fsdp ...]

One process is each rank in turn, on the CPU, with a group that communicates nothing: a step of each
strategy, with its options, on small models of three shapes, of which one is mostly logits, one
mostly activations, one mostly weights. A dispatch mode sees every operation, and adds up the sizes
of all storages that are alive behind it. What is shown is the greatest sum of the second step,
beside the prediction. First the same of the loss alone, in bytes for each logit.

On GPUs torch updates parameters together, so the optimizer does that here, too. What an operation
takes for itself while it runs is not seen, nor are an allocator's rounding and NCCL's buffers.
Goal: no prediction is off by more than `ERROR` (hpcbench/kinds/training/plan/memory.py).
"""

from __future__ import annotations

import argparse
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcbench.backends.counting_backend import CallLog, open_counting_world
from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.memory import ERROR, Memory, memory_of
from hpcbench.kinds.training.plan.step import Stage, stages_of
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.model import mean_loss
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.operations.data import DTYPES
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan

SHAPES: dict[str, dict[str, int]] = {
    "logits": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 8192, "seq_length": 64,
               "batch_size": 8},
    "activations": {"layers": 8, "hidden": 64, "heads": 4, "vocab": 256, "seq_length": 128,
                    "batch_size": 8},
    "weights": {"layers": 8, "hidden": 256, "heads": 8, "vocab": 512, "seq_length": 8,
                "batch_size": 8},
}
"""Mostly logits, mostly activations, mostly weights."""
_SHARDED = [{"reshard": True}, {"reshard": False}]
BLOCKS: dict[str, list[dict[str, Any]]] = {
    "single": [{"world_size": 1}, {"world_size": 1, "loss": CHUNKED},
               {"world_size": 1, "optimizer": "sgd", "accumulation": 2},
               {"world_size": 1, "model": "mistral-7b", "checkpointing": ["none", "full"]}],
    "data": [{"strategies": {"data": [{}, {"bucket_view": True}, {"comm_hook": "powersgd"}]}},
             {"accumulation": 2}, {"checkpointing": "full"}, {"loss": CHUNKED}],
    "zero1": [{}],
    "fsdp": [{"strategies": {"fsdp": _SHARDED}}, {"accumulation": 2},
             {"accumulation": 2, "strategies": {"fsdp": {"sync_each_batch": True}}},
             {"checkpointing": ["full", "selective"]}, {"loss": CHUNKED}],
    "hsdp": [{}],
    "tensor": [{"strategies": {"tensor": [
        {}, {"sequence_parallel": True, "loss_parallel": True}]}}],
    "pipeline": [{"world_size": 2, "strategies": {"pipeline": {"schedule": ["1F1B", "GPipe"]}}}],
    "hybrid": [{"strategies": {"hybrid": [
        {"tp": 2, "data": "fsdp"}, {"pp": 2, "data": "replicate"}, {"pp": 2, "data": "fsdp"}]}}],
    **{name: [{"strategies": {name: [{"over": "data"}, {"over": "fsdp"}]}},
              {"strategies": {name: {"over": "data"}}, "model": "mistral-7b", "inner": 128}]
       for name in ("lora", "qlora")},
    "transformers": [{"library": "transformers", "strategies": ["data", "fsdp"],
                      "model": ["gpt2", "mistral-7b"]}],
}
"""Of each strategy, and of models of a library, what changes what is held."""
RANKS = 4
_NOISE = "aten.randn.generator"
"""What the group of a rehearsal makes to stand for what is received."""


class Followed(TorchDispatchMode):  # type: ignore[misc]
    """Adds up the storages that are alive behind each operation; ``peak`` is the greatest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._noise: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def now(self) -> int:
        """Return the bytes of all storages that are alive."""
        return sum(storage.nbytes() for each in tuple(self._alive.values())
                   if (storage := each()) is not None)

    def restart(self) -> None:
        """Forget the greatest sum, not what is alive."""
        self.peak = 0

    def _see(self, item: object) -> None:
        item = local(item) if isinstance(item, torch.Tensor) else item
        if not isinstance(item, torch.Tensor) or item.device.type == "meta":
            return
        storage = item.untyped_storage()
        key = storage._cdata
        if key not in self._alive and storage not in self._noise:
            self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None,
    ) -> Any:
        """Run an operation, of DTensors what they do with their parts, and look at its tensors."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if str(func) == _NOISE:
            self._noise.add(result.untyped_storage())
        else:
            for item in tree_leaves((args, kwargs, result)):
                self._see(item)
        self.peak = max(self.peak, self.now())
        return result


class Compared(NamedTuple):
    """What was predicted of a rank, and the bytes that were counted."""

    work: Training
    stage: Stage
    shape: str
    predicted: Memory
    counted: int

    @property
    def ratio(self) -> float:
        """Return the prediction over what was counted."""
        return self.predicted.total / self.counted


def counted_bytes(work: Training, rank: int) -> int:
    """Return the most bytes that a rank of a training holds in its second step."""
    world = open_counting_world(work.ranks, CallLog(), rank)
    try:
        operation = TrainingOperation(work, Place(rank, work.ranks, world, torch.device("cpu")),
                                      validate=False)
        optimizer = operation._strategy.optimizer
        for group in getattr(optimizer, "inner", optimizer).param_groups:
            together = not any(isinstance(one, DTensor) for one in group["params"])
            if together and "foreach" in group:
                group["foreach"] = True
        with Followed() as followed:
            operation.prepare()
            operation.run()
            followed.restart()
            operation.run()
        operation.close()
    finally:
        dist.destroy_process_group()
    return followed.peak


def compared(shape: str, block: dict[str, Any]) -> Iterator[Compared]:
    """Yield the first and the last rank of a pipeline, else the first, of each case of a block."""
    block = {"kind": "training", "model": "gpt2", **SHAPES[shape], **block}
    for case in make_plan(check_config({"benchmarks": [block]}, "memory"), RANKS).cases:
        if case.skip:
            raise ValueError(case.skip)
        work = training_of(case)
        for stage in stages_of(work)[::max(work.pp - 1, 1)]:
            yield Compared(work, stage, shape, memory_of(work, stage),
                           counted_bytes(work, stage.rank * work.tp))


def loss_bytes(dtype: str, tokens: int = 256, words: int = 2048) -> tuple[float, float, float]:
    """Return the bytes for each logit that a loss has in forward, leaves, and has in backward."""
    head = torch.nn.Linear(8, words, bias=False)
    hidden, targets = torch.randn(tokens, 8, requires_grad=True), torch.zeros(tokens).long()
    mixed = nullcontext() if dtype == "fp32" else torch.autocast("cpu", DTYPES[dtype])
    with Followed() as followed:
        with mixed:
            loss = mean_loss(head(hidden)[None], targets[None])
        forward, left = followed.peak, followed.now()
        followed.restart()
        loss.backward()
    fixed = 2 * head.weight.nbytes
    return tuple((each - fixed) / (tokens * words)  # type: ignore[return-value]
                 for each in (forward, left, followed.peak))


def line_of(one: Compared) -> str:
    """Return one row of the table."""
    work = one.work
    options = [f"{name}={value}" for name, value in work.options
               if value not in (False, "none", "static") and name not in ("bucket_mb", "replicas")]
    words = [*options, f"parts={work.accumulation}" if work.accumulation > 1 else "",
             work.checkpointing if work.checkpointing != "none" else "",
             "chunked" if work.loss == CHUNKED else "", work.optimizer if work.optimizer == "sgd"
             else "", f"stage {one.stage.rank}" if work.pp > 1 else ""]
    words.insert(0, work.model if work.model != "gpt2" else "")
    return (f"{one.shape:12}{work.dtype:6}{work.strategy:10}{one.predicted.total / 1e6:8.2f} "
            f"{one.counted / 1e6:8.2f} {100 * (one.ratio - 1):+6.1f} %  "
            f"{one.predicted.moment}; {' '.join(filter(None, words))}")


def main() -> int:
    """Print the table; return 1 if a prediction is off by more than is stated."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--strategies", nargs="+", default=list(BLOCKS), choices=BLOCKS)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    for dtype in (*chosen.dtypes, *(("fp16",) if "fp16" not in chosen.dtypes else ())):
        forward, left, backward = loss_bytes(dtype)
        print(f"loss in {dtype}: {forward:.1f} B a logit in forward, {left:.1f} kept, "
              f"{backward:.1f} in backward")
    print(f"{'shape':12}{'dtype':6}{'strategy':10}predicted  counted MB")
    worst = 0.0
    for strategy in chosen.strategies:
        for more in BLOCKS[strategy]:
            for shape in chosen.shapes:
                for one in compared(shape, {
                        "dtype": chosen.dtypes, "strategies": strategy, **more}):
                    worst = max(worst, abs(one.ratio - 1))
                    print(line_of(one), flush=True)
    print(f"the largest error is {100 * worst:.1f} %, stated are {100 * ERROR:g} %")
    return int(worst > ERROR)


if __name__ == "__main__":
    sys.exit(main())
