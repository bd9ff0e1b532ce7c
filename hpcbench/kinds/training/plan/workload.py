"""The workload of a training: the steps of one model with one strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcbench.operations.collectives import calls_of
from hpcbench.operations.loads import FP8
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.plan.case import Case
from hpcbench.plan.points import Option
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass
from hpcbench.units import plural

CROSS_ENTROPY = "cross_entropy"  # torch's own loss: all logits together
CHUNKED = "chunked_cross_entropy"
"""The same loss of a part of the tokens after another, as torchtune and torchtitan call it."""
LINEAR = "linear_cross_entropy"
"""torch's product and loss in one: gradients of a few rows' logits are made as these are."""
OFFLOAD = "offload"
"""The checkpointing that recomputes nothing: what blocks keep is in the host's memory meanwhile."""
LOSSES = (CROSS_ENTROPY, CHUNKED, LINEAR)
IN_8_BITS = "adamw8bit"  # the optimizer whose states are in 8 bits
MIXED, BF16, BF16_MASTER = "mixed", "bf16", "bf16_master"
PRECISIONS = (MIXED, BF16, BF16_MASTER, "fp8_tensorwise", "fp8_rowwise")
"""How numbers are held and multiplied.

``mixed``: weights, gradients and states in fp32, whatever the dtype of the arithmetic. ``bf16``:
all in bf16. ``bf16_master``: weights and gradients in bf16; the optimizer has fp32 weights of its
own. ``fp8``: as mixed, with products of blocks in 8 bits, by a scale for each tensor or row."""
_SAME_STEPS = ("single", "data", "zero1", "fsdp", "hsdp", "moe", "tensor", "model", "pipeline",
               "hybrid", "lora", "qlora", "context")
"""Strategies whose first step counts what the next ones do. Plug-ins are not among them."""
_AXES = (
    "strategy", "model", "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length",
    "width", "classes", "image_size", "dtype", "batch_size", "accumulation", "optimizer",
    "checkpointing", "communication", "data", "library", "compile", "precision", "offload_state",
    "loss", "checkpoint_every", "documents", "groups")
"""Fields that distinguish trainings; the rest follows from them."""
SYNTHETIC = "synthetic"  # the data of a training that reads no file: random tokens
USUAL: Mapping[str, Option] = MappingProxyType({
    "data": SYNTHETIC, "library": OWN_LIBRARY, "compile": False, "precision": MIXED,
    "offload_state": False, "loss": CROSS_ENTROPY, "checkpoint_every": 0, "documents": 1})
"""Settings that labels and ids leave out: the later ones, as they are where a sweep has none."""


_PROFILED_FOR = {"on": frozenset({"sync_stalls"}), "off": frozenset({"compute", "sync_stalls"}),
                 "only": frozenset({"communication"})}
_NOT_CAPTURED = ("cuda_graph: a training step takes data from the host and stamps its phases "
                 "there; collectives and primitives can be captured")


@dataclass(frozen=True, slots=True)
class Training(Workload):
    """One training strategy on one model: what is timed is one optimizer step (docs/training.md).

    ``model`` names the published extents; ``changed``: some differ, ``shrunk``: none is larger;
    ``named_extents`` do not follow from the others. Extents of the other family are 0.
    ``batch_size`` counts samples of one replica in a step, in ``accumulation`` equal parts; there
    are ``dp`` replicas of ``cp`` x ``tp`` x ``pp`` ranks, of which ``cp`` share the tokens of each
    sample. ``dtype`` is that of the arithmetic over fp32 weights, or others by ``precision``.
    ``offload_state``: the optimizer's states are in the host's memory, and it steps there.
    ``options`` are the strategy's, sorted. ``adapters``: trained parameters beside a frozen model.
    ``flops``: the model's in a step on all ranks, by definition. ``modules``: needed beside torch.
    ``communication`` ``off``: steps without any; ``only``: nothing else. ``data``: a file of
    tokens, or SYNTHETIC. ``checkpoint_every``: steps from one checkpoint, which is written to a
    folder in ``checkpoint_folder``, to the next; 0: none. ``count_step``: one more step counts its
    calls, FLOPs and activations. ``architecture``: of a model that a file describes, what it is
    beside its extents (`model_file.architecture_of`). ``documents`` of a sample, none of which sees
    another."""

    strategy: str
    options: tuple[tuple[str, Option], ...]
    model: str
    shrunk: bool
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    seq_length: int
    dtype: str
    batch_size: int
    accumulation: int
    optimizer: str
    checkpointing: str
    dp: int
    tp: int
    pp: int
    parameters: int
    flops: tuple[tuple[str, int], ...]
    calls: tuple[str, ...]
    groups: int = 1
    communication: str = "on"
    width: int = 0
    classes: int = 0
    image_size: int = 0
    changed: bool = False
    named_extents: tuple[tuple[str, int], ...] = ()
    adapters: int = 0
    modules: tuple[str, ...] = ()
    data: str = SYNTHETIC
    library: str = OWN_LIBRARY
    compile: bool = False
    precision: str = MIXED
    offload_state: bool = False
    count_step: bool = True
    loss: str = CROSS_ENTROPY
    checkpoint_every: int = 0
    checkpoint_folder: str = ""
    architecture: tuple[tuple[str, Any], ...] = ()
    cp: int = 1
    documents: int = 1

    def choice(self) -> Choice:
        """Return the step of so many samples in all, and the strategy; no task of no training."""
        axes = {**{name: getattr(self, name) for name in _AXES},
                **{f"options.{name}": value for name, value in self.options}}
        if not self.trains:
            return Choice(axes, None)
        task = {name: value for name, value in axes.items()
                if not name.startswith("options.") and name not in ("strategy", "batch_size")}
        task["architecture"] = self.architecture  # files of two models may have one name
        return Choice(axes, {**task, "global_batch": self.global_batch}, {
            name: value for name, value in axes.items() if name not in {*task, "batch_size"}},
            any_ranks=True)

    @property
    def is_narrow(self) -> bool:
        """Return whether weights and gradients are held in bf16."""
        return self.precision in (BF16, BF16_MASTER)

    @property
    def is_mixed(self) -> bool:
        """Return whether the arithmetic is in another dtype than the weights."""
        return self.dtype != "fp32" and not self.is_narrow

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of an element of trained weights, and of their gradients."""
        return 2 if self.is_narrow else 4

    @property
    def has_master(self) -> bool:
        """Return whether the optimizer updates fp32 weights of its own."""
        return self.precision == BF16_MASTER

    @property
    def in_8_bits(self) -> bool:
        return self.precision.startswith("fp8")

    @property
    def peak_type(self) -> str:
        """Return the key of ``hardware.peak_flops`` of the arithmetic."""
        return "fp8" if self.in_8_bits else self.dtype

    @property
    def trains(self) -> bool:
        return self.communication == "on"

    @property
    def shape_text(self) -> str:
        wide = f"width {self.width}" if self.of_images else f"hidden {self.hidden}"
        return f"{plural(self.layers, 'layer')}, {wide}"

    @property
    def title(self) -> str:
        """Return the model, with its shape if that is not the published one."""
        return f"{self.model} of {self.shape_text}" if self.changed else self.model

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.dp

    @property
    def replica_ranks(self) -> int:
        return self.cp * self.tp * self.pp

    @property
    def ranks(self) -> int:
        return self.dp * self.replica_ranks

    @property
    def of_images(self) -> bool:
        return self.image_size > 0

    @property
    def tokens(self) -> int | None:
        """Return the tokens of one step, each once; None of images."""
        return None if self.of_images else self.global_batch * self.seq_length

    @property
    def features(self) -> Features:
        """Return the calls and needs of a step.

        A profile shows stalls; without communication also computing. A pipeline stage sees no whole
        samples. Compiled are the loss and a block. One dry-run step counts our strategies' calls;
        plug-ins may agree later."""
        return Features(
            calls=calls_of(self.calls, self.dtype),
            needs=(*self.modules, *(("compiler",) if self.compiles else ())),
            selectors={"model": self.model, "strategy": self.strategy},
            profiled_for=_PROFILED_FOR[self.communication], not_captured=_NOT_CAPTURED,
            least_capability=(8, 9) if self.in_8_bits else (),
            only_on=("cpu", "cuda") if self.in_8_bits or FP8 in dict(self.options).values() else (),
            compiled_graphs=2 * self.compiles, drawn_numbers=self.parameters,
            dry_run_workload=self._dry if self._dry != self else None,
            dry_run_calls=1 if self.strategy in _SAME_STEPS else 2,
            has_whole_samples=self.pp == 1 and self.communication != "only", has_phases=True)

    @property
    def _dry(self) -> Training:
        """Return a training that calls the same: it is not compiled, offloads nothing, and reads no
        tensor's values, as bitsandbytes does when its optimizer is made."""
        kept = "none" if self.checkpointing == OFFLOAD else self.checkpointing
        if self.optimizer != IN_8_BITS:
            return replace(self, compile=False, checkpointing=kept)
        return replace(self, compile=False, checkpointing=kept, optimizer="adamw", modules=tuple(
            name for name in self.modules if name != "bitsandbytes"))

    @property
    def compiles(self) -> bool:
        return self.compile and self.communication != "only"

    def unusual(self) -> list[tuple[str, Option]]:
        usual = {"checkpointing": "none", **USUAL}
        return [(name, getattr(self, name)) for name, value in usual.items()
                if getattr(self, name) != value]

    def degrees(self) -> list[tuple[str, Option]]:
        return [(name, degree) for name, degree in (
            ("dp", self.dp), ("cp", self.cp), ("tp", self.tp), ("pp", self.pp)) if degree != 1]

    def option(self, name: str) -> Option:
        return dict(self.options)[name]

    def label(self, world_size: int) -> Label:
        parts = [f"{self.model} {self.strategy}", self.dtype]
        wide = f"width={self.width}" if self.of_images else f"hidden={self.hidden}"
        parts += [f"layers={self.layers}", wide] if self.changed else []
        parts += [f"{name}={extent}" for name, extent in self.named_extents]
        parts += [f"image={self.image_size}" if self.of_images else f"seq={self.seq_length}",
                  f"batch={self.batch_size}"]
        parts += [f"accumulation={self.accumulation}"] if self.accumulation != 1 else []
        parts += [self.optimizer]
        communication = [] if self.trains else [("communication", self.communication)]
        options = [option for option in self.options if option[0] not in ("cp", "tp", "pp")]
        parts += [f"{name}={value}" for name, value in (
            *self.unusual(), *communication, *self.degrees(), *options)]
        return Label(self.strategy, [*parts, f"ranks={world_size}"])


def training_of(case: Case) -> Training:
    """Return the workload of a case of a training. Raises TypeError for another kind."""
    if not isinstance(case.workload, Training):
        raise TypeError(f"{case.label} is not a training")
    return case.workload


WEIGHTS, GRADIENTS, UPDATES = "weights", "gradients", "updates"
"""The kinds of values that are compared: at the start, of the first step, and what it changes."""
_BIAS, _WEIGHT = ".bias", ".weight"


def weight_beside(name: str) -> str | None:
    """Return the name of the weight whose outputs the bias of this name is added to, or None."""
    return name.removesuffix(_BIAS) + _WEIGHT if name.endswith(_BIAS) else None


def bias_scale(norm: float, elements: int, of_bias: int) -> float:
    """Return the least norm that rounding errors of a bias's gradient are relative to.

    That gradient is the sum of all tokens' errors d; its weight's is the sum of d x of normed
    inputs x: as large as the sum of d that does not cancel. A key's bias cancels to 0, its
    roundings do not: over 6 shapes in bf16 0.8 to 3.9 units of this. A norm's weight is no larger
    than its bias: then 0."""
    return norm * math.sqrt(of_bias / elements) if elements > of_bias else 0.0
