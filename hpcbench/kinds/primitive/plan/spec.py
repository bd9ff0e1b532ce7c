"""Specifications of primitives and implementations for a plan, and the sources of m, n and k.

Plain data with pure functions, importable without torch (docs/primitives.md, docs/plugins.md).
Runners are named by a string, ``module:class``. A published model's layer is m tokens times a
weight of (k, n); biases and the attention itself are not products with a weight and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Literal, NamedTuple

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.primitive.block import PrimitiveBlock
from hpcbench.operations.loads import ByteMatrix
from hpcbench.operations.models import layer_of
from hpcbench.plan.points import NO_OPTIONS, Option, Values
from hpcbench.records import dataclass


class Shape(NamedTuple):
    """A global problem. ``origin`` names its source, empty where it was given.

    ``misfit``, unless it is empty, is why it is none: m, n and k are then the undivided layer's."""

    m: int
    n: int
    k: int
    origin: str = ""
    misfit: str = ""


def undivided(model: str, layer: str, degree: int) -> str | None:
    bad = [f"{count} {what}" for what, count in layer_of(model, layer).units.items()
           if count % degree]
    return (f"{' and '.join(bad)} of {model} cannot be divided evenly among {degree} ranks"
            if bad else None)


def share_on(model: str, layer: str, degree: int, ranks: int) -> tuple[int, int]:
    """Return (n, k) on ``ranks`` ranks, each with the share of one of ``degree`` ranks."""
    weight = layer_of(model, layer)
    if weight.divided == "n":
        return weight.n // degree * ranks, weight.k
    return weight.n, weight.k // degree * ranks


def shapes(block: PrimitiveBlock, primitive: PrimitiveSpec) -> Iterator[Callable[[int], Shape]]:
    """Yield the block's shapes by number of ranks; without ``layer`` all that a primitive takes."""
    if block.model is None:
        for extents in product(block.m or (), block.n or (), block.k or ()):
            yield partial(_fixed, Shape(*extents))
        return
    for model, layer, tokens, degree in product(
            block.model, block.layer or primitive.layers, block.tokens or (),
            block.degree or (None,)):
        yield partial(_of_layer, primitive, model, layer, tokens, degree)


def _fixed(shape: Shape, ranks: int) -> Shape:
    return shape


def _of_layer(
    primitive: PrimitiveSpec, model: str, layer: str, tokens: int, degree: int | str | None,
    ranks: int,
) -> Shape:
    """Return the shape on ``ranks`` ranks: each has what a rank of the degree has.

    The usual degree is the number of ranks where they divide the layer among themselves. It is
    1 where each rank has all of the layer (data and expert parallelism)."""
    usual = ranks if primitive.divides_layer else 1
    degree = int(usual if degree is None else ranks if degree == "all" else degree)
    origin = f"{model} {layer} tp={degree}"
    layers = " or ".join(primitive.layers) or "no layer"
    misfit = undivided(model, layer, degree) or ""
    if layer not in primitive.layers:
        misfit = f"{primitive.name} takes its shape from {layers}, not from {layer}"
    if misfit:
        whole = layer_of(model, layer)
        return Shape(tokens, whole.n, whole.k, origin, misfit)
    return Shape(tokens, *share_on(model, layer, degree, usual), origin)


Part = Literal["both", "compute", "communicate"]
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
LAYERS = ("attention_qkv", "attention_out", "mlp_up", "mlp_down", "mlp")
"""The kinds of layers of a model (`operations.models.layer_of`)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One point of a sweep: the global problem, and how it is to be done on ``ranks`` ranks.

    ``matrix`` are the bytes from rank to rank that the block gives, if it gives any."""

    m: int
    n: int
    k: int
    dtype: str
    ranks: int
    order: str
    options: Mapping[str, Option]
    matrix: ByteMatrix | None = None

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def product_flops(self) -> int:
        """Return the flops of one product, (m, k) by (k, n): 2 m n k."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective of a call; one that is called several times counts with all its bytes.

    ``size_bytes`` is its size as nccl-tests counts it. ``wire_bytes`` is what it stands for on
    the wire: size times the busbw factor (`operations.collectives.busbw_factor`)."""

    collective: str
    size_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call: flops of the rank that has most, of all ranks, and the traffic.

    A multiplication and an addition are two flops; activations and additions of partial results
    are not counted. ``loads`` are names and numbers of how unevenly it is divided."""

    flops: int
    total_flops: int
    traffic: tuple[Traffic, ...]
    loads: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrimitiveSpec:
    """A primitive: its operands and result, and how they lie on the ranks.

    Attributes:
        name: as sweep files write it.
        meaning: one line for people.
        orders: which comes first, communication or product; the first is the default.
        work: the work of one call, by order and options.
        unsharded: the same where every rank does all of the product and sends nothing; for
            ``compute_only``, size ``unsharded``.
        unfit: why a problem cannot be divided among its ranks, or None.
        options: options that every implementation of it has.
        inputs: ``module:class`` of the inputs on a rank (`kinds.primitive.run.inputs`).
        layers: those of LAYERS that it can take its shape from.
        divides_layer: whether the ranks divide such a layer among themselves (tensor
            parallelism); else each has all of it.
        decided: order -> options of the primitive that the order leaves no choice of.
        apart: why implementations of other primitives have it not, unless they say themselves."""

    name: str
    meaning: str
    orders: tuple[str, ...]
    work: Callable[[Problem], Work]
    unsharded: Callable[[Problem], Work]
    unfit: Callable[[Problem], str | None]
    inputs: str
    options: Mapping[str, Values] = field(default_factory=lambda: NO_OPTIONS)
    layers: tuple[str, ...] = ()
    divides_layer: bool = False
    decided: Mapping[str, Mapping[str, Option]] = field(
        default_factory=lambda: MappingProxyType({}))
    apart: str = ""


@dataclass(frozen=True, slots=True)
class ImplementationSpec:
    """One way to do one or several primitives.

    Attributes:
        name: as sweep files write it.
        meaning: one line for people.
        runners: primitive -> ``module:class`` that runs it.
        absent: primitive -> why there is none.
        part: the part of the primitive that it does.
        options: options of its own.
        orders: (primitive, order) pairs that it has; None: all of them.
        calls: collectives that it calls instead of those of the primitive's traffic; None: those.
        traffic: what it sends instead of the primitive's traffic; None: that.
        devices: where it runs.
        backends: the backends that it can run with, without a part behind ``/``; None: all.
        modules: Python modules that it needs beside torch.
        env: variables that its processes must start with; a block can give others.
        compiles: whether setting a case up generates code, which needs a compiler on every rank.
        least_capability: the least compute capability of a GPU of CUDA that it is made for, such as
            (8, 0); (): any. Where it is given, builds of torch for ROCm are a skip.
        least_multiprocessors: how many a GPU of CUDA needs, by the variables of the case; 0: any.
        connects: whether a library of its own connects the ranks; no dry run can stand for them.
        unfit: why a problem does not suit it, or None.
        overlaps: whether communication and product are meant to run at the same time.
        reads_peers: whether ranks read each other's GPU memory: they must be on GPUs that can, of
            one node or NVLink domain, and each must see its GPU under a number of its own.
        uncaptured: why no CUDA graph can hold a call of it; "": one can."""

    name: str
    meaning: str
    runners: Mapping[str, str]
    absent: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    part: Part = "both"
    options: Mapping[str, Values] = field(default_factory=lambda: NO_OPTIONS)
    orders: frozenset[tuple[str, str]] | None = None
    calls: tuple[str, ...] | None = None
    traffic: Callable[[Problem], tuple[Traffic, ...]] | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    backends: tuple[str, ...] | None = None
    modules: tuple[str, ...] = ()
    env: Callable[[str, Problem], Mapping[str, str]] = lambda _primitive, _problem: NO_VARIABLES
    compiles: bool = False
    least_capability: tuple[int, ...] = ()
    least_multiprocessors: Callable[[Mapping[str, str]], int] = lambda _variables: 0
    connects: bool = False
    unfit: Callable[[str, Problem], str | None] = lambda _primitive, _problem: None
    overlaps: bool = False
    reads_peers: bool = False
    uncaptured: str = ""


def options_of(primitive: PrimitiveSpec, implementation: ImplementationSpec) -> dict[str, Values]:
    return {**primitive.options, **implementation.options}


def on_every_rank(flops: Callable[[Problem], int]) -> Callable[[Problem], Work]:
    """Return the work where each rank does all of these flops and sends nothing."""
    def work(problem: Problem) -> Work:
        return Work(flops(problem), flops(problem) * problem.ranks, ())
    return work


def not_divided(ranks: int, **extents: int) -> str | None:
    """Return why one of the extents cannot be divided evenly among the ranks, or None."""
    bad = [f"{name}={extent}" for name, extent in extents.items() if extent % ranks]
    return f"{', '.join(bad)} cannot be divided evenly among {ranks} ranks" if bad else None
