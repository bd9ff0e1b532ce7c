"""Experiment files of TorchScale (github.com/ambicuity/Distributed-Deep-Learning-Benchmark-Suite).

Keys, defaults and meanings are those of commit 3bafc70: ``batch_sizes`` are samples of each GPU,
and each model is trained by DistributedDataParallel on each number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hpcbench.config.axes import MAX_WORLD_SIZE, PROFILERS, TRIGGERS, Axis, named
from hpcbench.config.section import Dialect, Extent, Section, Text, key

Gpus = Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)]
Tool = Annotated[str, named(PROFILERS, {"nsight": "nsys", "pytorch": "torch"})]
When = Annotated[str, named(TRIGGERS, {"sync_stall_detection": "sync_stalls"})]
_LONGEST_NAME = 64


class TorchScaleProfiling(Section):
    """Section ``profiling``."""

    enabled: bool = key(False, "Whether to profile.")
    tool: Tool = key("nsys", "Who records.")
    trigger: When = key("sync_stalls", "Which cases.")


class TorchScaleFile(Dialect):
    """A whole experiment file of TorchScale."""

    tool: ClassVar[str] = "TorchScale"
    experiment_name: Text = key("unnamed_experiment", "Name of the results folder.")
    models: Axis[Text] = Field(description="The models: a name or a list.")
    batch_sizes: Axis[Extent] = Field(description="Samples of each GPU: a number or a list.")
    gpu_counts: Axis[Gpus] = Field(description="Numbers of GPUs: a number or a list.")
    profiling: TorchScaleProfiling | None = key(None, "Whether to profile, and by what.")

    @classmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return its keys that are in the file; ``models`` may be a slip of our ``model``."""
        own = ("experiment_name", "batch_sizes", "gpu_counts",
               *(() if "benchmarks" in raw else ("models",)))
        return tuple(name for name in own if name in raw)

    def translated(self, file: str = "") -> dict[str, Any]:
        profiling = {} if self.profiling is None else {"profiling": self.profiling.model_dump()}
        return {"name": _folder_name(self.experiment_name), "notes": list(_notes(self)),
                **profiling, "benchmarks": list(_blocks(self))}


def _blocks(file: TorchScaleFile) -> Iterator[dict[str, Any]]:
    """Yield a block of one GPU, which has nobody to exchange gradients with, and one of several."""
    several = [count for count in file.gpu_counts if count > 1]
    for name, strategy, counts in (("one_gpu", "single", [1]), ("several_gpus", "data", several)):
        if set(counts) & set(file.gpu_counts):
            yield {"kind": "training", "name": name, "model": list(file.models), "backend": "nccl",
                   "dtype": "fp32", "world_size": counts, "batch_size": list(file.batch_sizes),
                   "strategies": strategy}


def _folder_name(experiment: str) -> str:
    """Return the name with _ in place of what a folder's name may not have."""
    fitting = re.sub(r"[^A-Za-z0-9._-]+", "_", experiment).lstrip("._-")
    return fitting[:_LONGEST_NAME] or "torchscale"


def _notes(file: TorchScaleFile) -> Iterator[str]:
    if (name := _folder_name(file.experiment_name)) != file.experiment_name:
        yield f"experiment_name {file.experiment_name[:200]!r}: the results folder is named {name}"
    yield ("not in the file: dtype fp32, backend nccl, optimizer adamw, and samples as long as a "
           "model takes, unless --set (benchmarks.0.dtype=bf16, ...) gives others")
