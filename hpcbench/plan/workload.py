"""What a case runs: one collective, one distributed primitive, or the steps of one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcbench.config.names import OWN_LIBRARY

_TWO_FORMS = ("all_gather", "reduce_scatter")
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
Option = str | int | bool
SYNTHETIC = "synthetic"
"""The data of a training that reads no file: random tokens."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation, sized as nccl-tests sizes it (docs/method.md).

    ``count`` is nccl-tests' count column, in elements: the whole buffer for all_reduce, broadcast,
    reduce and send_recv, each rank's part for all_gather, reduce_scatter, all_to_all, gather and
    scatter (the largest part if ``split`` is not even), 0 for barrier. ``size_bytes`` is the size
    after rounding, ``requested_bytes`` what the sweep asked for. ``op``, ``root`` and ``in_place``
    are None where the collective has no such option; a barrier moves no data, its dtype is uint8
    by convention. ``groups`` equal groups of consecutive ranks run it at the same time; sizes,
    counts and ``root`` are those of one group.
    """

    collective: str
    dtype: str
    op: str | None
    root: int | None
    in_place: bool | None
    requested_bytes: int
    size_bytes: int
    count: int
    split: str = "even"
    groups: int = 1

    @property
    def name(self) -> str:
        """Return what is called: ``all_reduce``."""
        return self.collective

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives that the workload calls: this one."""
        return (self,)

    def needs(self) -> tuple[str, ...]:
        """Return what it needs of a machine beside backend and device: nothing."""
        return ()

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others, for labels; backend and device go behind the 1st."""
        parts = [self.collective]
        parts += [self.dtype] if self.collective != "barrier" else []
        parts += [self.op] if self.op else []
        parts += [f"root={self.root}"] if self.root else []
        parts += [f"{self.size_bytes}B"] if self.collective != "barrier" else []
        parts += ["in_place"] if self.in_place and self.collective in _TWO_FORMS else []
        parts += [f"split={self.split}"] if self.split != "even" else []
        parts += [f"n={world_size}"]
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        return parts


@dataclass(frozen=True, slots=True)
class Primitive:
    """One distributed primitive: communication and matrix products together (docs/primitives.md).

    ``m``, ``n``, ``k`` are those of the global problem; ``shape`` says what they were derived from
    (``llama3-8b mlp_up tp=8``; several models if equal), empty where they were given. ``order`` is
    which comes first, communication or product. ``options`` are sorted by name: those of the
    implementation and of the primitive. What follows is told by the primitive's own file when the
    plan is made, so that results are read without it: ``flops`` of one call on the rank that has
    most to do, ``total_flops`` of all ranks, ``size_bytes`` and ``wire_bytes``: what the call
    communicates as nccl-tests' sizes, summed, and times their busbw factors; ``inputs`` and
    ``runner`` are ``module:class`` of the inputs and of the implementation. ``calls`` names the
    collectives. The implementation runs on ``devices`` only, needs Python ``modules`` beside torch,
    and a compiler if it ``compiles`` when it is set up.
    """

    primitive: str
    implementation: str
    order: str
    options: tuple[tuple[str, Option], ...]
    dtype: str
    m: int
    n: int
    k: int
    shape: str
    flops: int
    total_flops: int
    size_bytes: int
    wire_bytes: int
    calls: tuple[str, ...]
    inputs: str
    runner: str
    groups: int = 1
    devices: tuple[str, ...] = ("cpu", "cuda")
    modules: tuple[str, ...] = ()
    compiles: bool = False

    @property
    def name(self) -> str:
        """Return what is called: ``tp_columnwise``."""
        return self.primitive

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives that the workload calls, without their sizes."""
        split = str(dict(self.options).get("split", "even"))
        return tuple(Collective(
            collective=name, dtype=self.dtype, op="sum" if name in _REDUCTIONS else None,
            root=None, in_place=name == "all_reduce", requested_bytes=0, size_bytes=0, count=0,
            split=split if name == "all_to_all" else "even") for name in self.calls)

    def needs(self) -> tuple[str, ...]:
        """Return what it needs of a machine beside backend and device: modules, a compiler."""
        return (*self.modules, *(("compiler",) if self.compiles else ()))

    def option(self, name: str) -> Option:
        """Return the value of an option. Raises KeyError."""
        return dict(self.options)[name]

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others, for labels; backend and device go behind the 1st."""
        return [f"{self.primitive} {self.implementation}", self.dtype,
                f"m={self.m}", f"n={self.n}", f"k={self.k}", self.order,
                *(f"{name}={value}" for name, value in self.options), f"ranks={world_size}"]


@dataclass(frozen=True, slots=True)
class Training:
    """One training strategy on one model: a sample is one optimizer step (docs/training.md).

    ``model`` names what the extents were taken from; ``shrunk`` says that some of them were not.
    ``family`` is how blocks are built (`plan.models`). A ResNet (`plan.resnet`)
    has ``layers``, its blocks, and ``width``, ``classes`` and ``image_size``, which are 0 for
    transformers; ``hidden`` to ``seq_length`` are 0 for a ResNet. ``batch_size`` is
    the samples of one data-parallel replica in one step, in ``accumulation`` equal parts; there are
    ``dp`` replicas, each of ``tp`` x ``pp`` ranks. ``dtype`` is that of the arithmetic; bf16 and
    fp16 are mixed precision over fp32 weights. ``options`` are the strategy's, sorted by name.
    ``parameters`` counts the whole model; ``adapters`` are the parameters beside it that alone are
    trained, 0 where the model is. ``flops`` are the model's of one step on all ranks, one figure
    for each definition. ``runner`` is ``module:class``; it needs Python ``modules`` beside torch.
    ``communication`` ``off`` takes the same steps without any, which train nothing; ``only`` calls
    what a step calls, and no more. ``data`` is the path of a file of tokens, or SYNTHETIC.
    ``library`` is whose model of the shape it is; blocks and loss are compiled if it is to
    ``compile``.
    """

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
    runner: str
    groups: int = 1
    communication: str = "on"
    width: int = 0
    classes: int = 0
    image_size: int = 0
    adapters: int = 0
    modules: tuple[str, ...] = ()
    data: str = SYNTHETIC
    library: str = OWN_LIBRARY
    compile: bool = False

    @property
    def name(self) -> str:
        """Return what is run: ``data``, for a training with the strategy of that name."""
        return self.strategy

    @property
    def trains(self) -> bool:
        """Return whether its steps are those of a training, with all communication."""
        return self.communication == "on"

    @property
    def global_batch(self) -> int:
        """Return the samples of one step over all replicas."""
        return self.batch_size * self.dp

    @property
    def of_images(self) -> bool:
        """Return whether samples are images, which have no tokens."""
        return self.image_size > 0

    @property
    def tokens(self) -> int | None:
        """Return the tokens of one step: each counts once, however many ranks see it.

        Images have none.
        """
        return None if self.of_images else self.global_batch * self.seq_length

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives that the workload calls, without their sizes."""
        return tuple(Collective(
            collective=name, dtype=self.dtype, op="sum" if name in _REDUCTIONS else None,
            root=None, in_place=name == "all_reduce", requested_bytes=0, size_bytes=0, count=0)
            for name in self.calls)

    def needs(self) -> tuple[str, ...]:
        """Return what it needs of a machine beside backend and device: modules, a compiler."""
        return (*self.modules, *(("compiler",) if self.compiles else ()))

    @property
    def compiles(self) -> bool:
        """Return whether something is compiled: where all is communication, nothing is."""
        return self.compile and self.communication != "only"

    def unusual(self) -> list[tuple[str, Option]]:
        """Return how a step is taken where that is not as by default, for labels and titles."""
        usual = {"checkpointing": "none", "data": SYNTHETIC, "library": OWN_LIBRARY,
                 "compile": False}
        return [(name, getattr(self, name)) for name, value in usual.items()
                if getattr(self, name) != value]

    def option(self, name: str) -> Option:
        """Return the value of an option. Raises KeyError."""
        return dict(self.options)[name]

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others, for labels; backend and device go behind the 1st."""
        parts = [f"{self.model} {self.strategy}", self.dtype]
        wide = f"width={self.width}" if self.of_images else f"hidden={self.hidden}"
        parts += [f"layers={self.layers}", wide] if self.shrunk else []
        parts += [f"image={self.image_size}" if self.of_images else f"seq={self.seq_length}",
                  f"batch={self.batch_size}"]
        parts += [f"accumulation={self.accumulation}"] if self.accumulation != 1 else []
        parts += [self.optimizer]
        parts += [f"{name}={value}" for name, value in self.unusual()]
        parts += [] if self.trains else [f"communication={self.communication}"]
        parts += [f"{name}={degree}" for name, degree in (
            ("dp", self.dp), ("tp", self.tp), ("pp", self.pp)) if degree != 1]
        parts += [f"{name}={value}" for name, value in self.options if name not in ("tp", "pp")]
        return [*parts, f"ranks={world_size}"]


Workload = Collective | Primitive | Training


def workload_from_json(data: Mapping[str, Any]) -> Workload:
    """Rebuild a workload from the values of `dataclasses.asdict`."""
    if "collective" in data:
        return Collective(**data)
    options = tuple((str(name), value) for name, value in data["options"])
    if "strategy" in data:
        flops = tuple((str(name), int(count)) for name, count in data["flops"])
        return Training(**{**data, "options": options, "flops": flops,
                           "calls": tuple(data["calls"]),
                           "modules": tuple(data.get("modules", ()))})
    several = {name: tuple(data[name]) for name in ("calls", "devices", "modules")}
    return Primitive(**{**data, **several, "options": options})
