"""The workload of a collective, and the planner of collectives.

The points of a block become cases, or skips with their reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hpcbench.config.axes import TORCH, UNEVEN, library_of
from hpcbench.operations import collectives
from hpcbench.operations.loads import (
    MATRIX,
    ByteMatrix,
    ExpertTraffic,
    Load,
    is_load,
    read_matrix,
)
from hpcbench.plan import points as measured
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.order import ALPHA_S, CASE_S, bytes_per_s, device_kind
from hpcbench.plan.support import resolve_device, traits_of, unsupported
from hpcbench.plan.workload import (
    Choice,
    Features,
    Label,
    Workload,
)
from hpcbench.records import dataclass
from hpcbench.units import format_bytes, plural

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware
    from hpcbench.config.section import Block
    from hpcbench.kinds.collective.block import CollectiveBlock


USUAL: Mapping[str, Any] = MappingProxyType({
    "split": "even", "groups": 1, "group_stride": 1, "buffers": "warm", "asynchronous": False})
"""Usual values, which labels leave out."""
_DERIVED = ("size_bytes", "count", "matrix", "received_max_over_mean", "busiest_wire_bytes")
"""Fields that follow from others; of a file its hash counts."""
ISSUE = "issue"
"""The phase of an asynchronous call until it returns; the rest of its sample is waiting."""


@dataclass(frozen=True, slots=True)
class Collective(Workload):
    """One collective operation, sized as nccl-tests sizes it (docs/method.md).

    ``count`` is nccl-tests' count column, in elements: the whole buffer for all_reduce, broadcast,
    reduce and send_recv, each rank's part for all_gather, reduce_scatter, all_to_all, gather and
    scatter (the largest part if ``split`` is not even), 0 for barrier. ``size_bytes`` is the size
    after rounding, ``requested_bytes`` that of the sweep file. ``op``, ``root`` and ``in_place``
    are None where the collective has no such option; a barrier moves no data, its dtype is uint8
    by convention. ``groups`` equal groups of ranks that are ``group_stride`` apart run it at the
    same time; sizes, counts and ``root`` are those of one group. With ``buffers`` ``cold``, calls
    take turns over `sets` of buffers. ``asynchronous``: issued with async_op, then waited for.
    ``matrix`` is the file of split ``matrix``, ``sha256`` identifies its content. An all_to_all
    whose split is not even has ``received_max_over_mean``, of the bytes that ranks receive, and
    ``busiest_wire_bytes``: the most that a rank sends to others, or receives from them."""

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
    buffers: str = "warm"
    group_stride: int = 1
    asynchronous: bool = False
    matrix: str = ""
    sha256: str = ""
    received_max_over_mean: float | None = None
    busiest_wire_bytes: int | None = None

    def choice(self) -> Choice:
        """Return the fields that distinguish the collective; sizes are those of the sweep file."""
        axes = {name: value for name, value in asdict(self).items()
                if name not in _DERIVED}
        return Choice(axes, axes)

    @property
    def traits(self) -> collectives.CollectiveSpec:
        return collectives.collective_spec(self.collective)

    def own_call(self) -> collectives.Call:
        return collectives.Call(self.collective, self.dtype, self.op, self.split, self.in_place,
                                is_case=True)

    @property
    def cold_bytes(self) -> int:
        """Return the bytes of the buffers of a call that takes turns over sets of them, else 0."""
        return self.size_bytes if self.buffers == "cold" else 0

    def sets(self, together_bytes: int) -> int:
        """Return how many sets of buffers, ``together_bytes`` in all, the calls take turns over."""
        return collectives.cold_sets(self.cold_bytes, together_bytes) if self.cold_bytes else 1

    @property
    def features(self) -> Features:
        """Return the features; its calls are itself, or the collectives that it is made of.

        No rank can end a call before all have begun where each rank's result depends on every other
        rank's data: not where a root, or a neighbour, is all that some rank waits for, nor where a
        part is empty."""
        traits = self.traits
        return Features(
            calls=collectives.calls_of(traits.calls, self.dtype) or (self.own_call(),),
            profiled_for=frozenset({"communication"}), has_result=traits.moves_data,
            settles=not self.asynchronous, enters_late=True, has_phases=self.asynchronous,
            cold_bytes=self.cold_bytes,
            needs_all_ranks=traits.needs_all_ranks and not (
                self.split == "zero" or is_load(self.split)),
            files={self.matrix: self.sha256} if self.matrix else {})

    def label(self, world_size: int) -> Label:
        traits, parts = self.traits, [self.collective]
        parts += [self.dtype] if traits.moves_data else []
        parts += [self.op] if self.op else []
        parts += [f"root={self.root}"] if self.root else []
        parts += [f"{self.size_bytes}B"] if traits.moves_data else []
        parts += ["in_place"] if self.in_place and traits.in_place != (True,) else []
        parts += ["out_of_place"] if self.in_place is False and traits.in_place == (True,) else []
        own = self.unusual_words()
        split = [own.pop("split")] if "split" in own else []
        return Label(self.collective, [*parts, *split, f"n={world_size}", *own.values()])

    def unusual(self) -> dict[str, Any]:
        """Return the fields of USUAL that have another value."""
        return {name: value for name, usual in USUAL.items()
                if (value := getattr(self, name)) != usual}

    def unusual_words(self) -> dict[str, str]:
        """Return a text such as ``groups=2`` for each field of `unusual`, by name."""
        return {name: "async" if value is True else f"{name.removeprefix('group_')}={value}"
                for name, value in self.unusual().items()}


def groups_text(work: Collective) -> str:
    """Return ``2 groups``, or ``8 groups of stride 8``."""
    stride = f" of stride {work.group_stride}" if work.group_stride != 1 else ""
    return f"{plural(work.groups, 'group')}{stride}"


def collective_of(case: Case) -> Collective:
    """Raises TypeError for a case of another kind."""
    if not isinstance(case.workload, Collective):
        raise TypeError(f"{case.label} is not a collective")
    return case.workload


_CHECKS, _CHECK_BYTES_PER_S = 2, 5e8
"""Assumed: checked iterations of a case, and how fast each is read once."""


class Division(NamedTuple):
    """Equal groups, how far apart the ranks of each are, and why a world cannot be divided so."""

    groups: int
    stride: int = 1
    unfit: str | None = None


class Point(NamedTuple):
    """One value of every axis; ``size`` is the requested one, in bytes."""

    common: measured.CommonPoint
    collective: str
    op: str
    root: int
    in_place: bool | None
    uneven: str
    groups: int | Mapping[str, int]
    cache: str
    asynchronous: bool
    size: int
    file: str
    matrix: ByteMatrix | None

    @property
    def division(self) -> Division:
        return _division(self.groups, self.common.world_size)

    @property
    def group_size(self) -> int:
        """Return the ranks of one group, at least 1, also of a world that cannot be divided."""
        return max(self.common.world_size // self.division.groups, 1)


def points(block: CollectiveBlock, job: PlanRequest) -> Iterator[Point]:
    """Yield the points of a block; ``all`` becomes the job's world size. Raises FileError."""
    axes = axes_of(block, job.config)
    matrix = read_matrix(block.matrix) if block.matrix else None
    axes["env"] = measured.environments(block)
    axes["world_size"] = tuple(job.world_size if k == "all" else k for k in block.world_size)
    for values in product(*axes.values()):
        value = dict(zip(axes, values, strict=True))
        common = measured.CommonPoint(*(value[name] for name in measured.CommonPoint._fields))
        own = {name: value[name] for name in Point._fields if name in value}
        yield Point(common, **own, file=block.matrix or "", matrix=matrix)


def _division(requested: int | Mapping[str, int], world_size: int) -> Division:
    """Return the groups of a world, by their number, or by the size and the stride of each.

    Groups of one rank have no stride, nor has a world that cannot be divided."""
    options = {"count": requested} if isinstance(requested, int) else requested
    stride = options.get("stride", 1)
    if size := options.get("size"):
        groups, parts = max(world_size // size, 1), size * stride
        into = f"groups of {plural(size, 'rank')}"
    else:
        groups = parts = options.get("count", stride)
        into = f"{groups} equal groups"
    if world_size % parts:
        distance = f" that are {stride} apart" if stride > 1 else ""
        return Division(groups, unfit=f"{plural(world_size, 'rank')} cannot be divided into {into}"
                        f"{distance}")
    return Division(groups, stride if groups < world_size else 1)


def axes_of(block: CollectiveBlock, config: Config) -> dict[str, tuple[Any, ...]]:
    """Return axis -> values, the last varying fastest; env is left to be multiplied out."""
    later = measured.measurement_axes(block, config)
    how = {name: later.pop(name) for name in ("mode", "warmup", "iterations", "check")}
    return {
        "collective": block.collective, "backend": block.backend, "device": block.device,
        "env": (), "world_size": block.world_size, "dtype": block.dtype, "op": block.op,
        "root": block.root, "in_place": block.in_place or (None,),
        "uneven": block.uneven, "groups": block.groups, "cache": block.cache or ("warm",),
        "asynchronous": block.asynchronous or (False,),
        **how, "size": block.size, **later,
    }


def draft(point: Point, job: PlanRequest) -> measured.Draft:
    """Return the draft of a point; options that the collective does not have are dropped."""
    work, config, ranks = _workload(point), job.config, point.group_size
    common = point.common
    device = resolve_device(common.backend, common.device)
    validate = common.validate and work.traits.moves_data
    memory = min(work.sets(collectives.planned_cold_bytes(device)),
                 collectives.MOST_COLD_SETS) * collectives.rank_bytes(
        work.collective, work.in_place, ranks, work.size_bytes, work.split)
    calls = measured.least_calls(common, config)
    over = measured.too_large(memory, 0, device, config.hardware)
    fits = over and advice(work, int((config.hardware.memory_per_device_gb or 0) * 1e9))
    return measured.Draft(
        workload=work, device=device, validate=validate, memory_bytes=memory,
        skip=(unsupported(common.backend, device, [work.own_call()])
              or _unfit_world(point, work, job.world_size) or _rounded_to_nothing(point, work)
              or _unfit_for_cold(work, cuda_graph=common.cuda_graph)
              or _unfit_for_async(work, common)
              or (f"{over}; {fits}" if fits else over)),
        estimate_s=_estimate_s(work, device, ranks, calls, validate * (
            _CHECKS + measured.further_checks(common, config)), config.hardware),
        identity=_identity(work, point))


def advice(work: Collective, available_bytes: int) -> str:
    """Return the largest power of two whose buffers fit; "" where they differ by rank or turn."""
    if not work.count or work.split != "even" or work.buffers != "warm":
        return ""
    ranks = work.size_bytes // (work.count * collectives.DTYPE_BYTES[work.dtype])
    needed = collectives.rank_bytes(work.collective, work.in_place, ranks, work.size_bytes)
    largest = int(work.size_bytes * available_bytes / needed)
    return f"{work.collective} of {format_bytes(2 ** (largest.bit_length() - 1))} fits" if (
        0 < largest < work.size_bytes) else ""


def _identity(work: Collective, point: Point) -> dict[str, Any]:
    identity: dict[str, Any] = {
        "kind": "collective", "collective": work.collective, "dtype": work.dtype, "op": work.op,
        "root": work.root, "in_place": work.in_place, "size_bytes": work.size_bytes}
    if work.size_bytes == 0:
        identity["requested_bytes"] = work.requested_bytes
    if point.division.unfit and not isinstance(point.groups, int):
        identity["asked_groups"] = point.groups
    if work.matrix:
        identity["sha256"] = work.sha256
    return identity | work.unusual()


def _workload(point: Point) -> Collective:
    traits = collectives.collective_spec(point.collective)
    dtype = point.common.dtype if traits.moves_data else "uint8"
    split = UNEVEN.get(point.uneven, point.uneven) if traits.uneven else "even"
    division = point.division
    size, count = collectives.rounded(point.collective, dtype, point.group_size, point.size, split)
    work = Collective(
        collective=point.collective, dtype=dtype, op=point.op if traits.has_op else None,
        root=point.root if traits.has_root else None,
        in_place=None if traits.in_place is None else (
            traits.in_place[0] if point.in_place is None else point.in_place),
        requested_bytes=point.size if traits.moves_data else 0, size_bytes=size, count=count,
        asynchronous=point.asynchronous,
        split=split, groups=division.groups, group_stride=division.stride,
        buffers=point.cache if traits.moves_data else "warm")
    return _loaded(work, point) if split != "even" and traits.pairwise else work


def _loaded(work: Collective, point: Point) -> Collective:
    """Return an uneven all_to_all with its bytes from rank to rank; a table decides its size."""
    ranks, element = point.group_size, collectives.DTYPE_BYTES[work.dtype]
    if point.matrix is None or work.split != MATRIX:
        parts = collectives.part_counts(work.split, ranks, work.count, work.dtype)
        traffic = ExpertTraffic.of_rows([[element * count for count in parts]] * ranks)
    else:
        rows = point.matrix.of(ranks)
        traffic = ExpertTraffic.of_rows(rows)
        work = replace(work, matrix=point.file, sha256=point.matrix.sha256,
                       requested_bytes=traffic.busiest, size_bytes=traffic.busiest,
                       count=max(map(max, rows)) // element)
    return replace(work, received_max_over_mean=traffic.max_over_mean,
                   busiest_wire_bytes=traffic.busiest_wire)


def _unfit_load(point: Point, work: Collective) -> str | None:
    """Return why the ranks cannot divide data by a load, or None."""
    if not is_load(work.split):
        return None
    if not work.traits.pairwise:
        return f"split {work.split}: loads of experts are of all_to_all, not of {work.collective}"
    if point.matrix and work.matrix:
        return point.matrix.unfit(
            point.group_size, collectives.DTYPE_BYTES[work.dtype], f"elements of {work.dtype}")
    return Load.from_text(work.split).unfit(point.group_size)


def _estimate_s(
    work: Collective, device: str, ranks: int, calls: int, checks: int, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: steps of latency, what a ring sends, and checks."""
    kind = device_kind(device)
    span = (ranks - 1) * work.group_stride + 1  # as many ranks as a node has may be on one
    steps = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    moved_bytes = work.traits.ring_rounds * work.size_bytes * (ranks - 1) / ranks
    call_s = 2 * ALPHA_S[kind] * steps + moved_bytes / bytes_per_s(kind, hardware, span)
    checks_s = checks * work.size_bytes / _CHECK_BYTES_PER_S
    return CASE_S + calls * call_s + checks_s


def _unfit_world(point: Point, work: Collective, job_size: int) -> str | None:
    """Return why the ranks are too few or too many, or cannot be divided as requested, or None."""
    ranks, least = point.group_size, work.traits.min_world_size
    where = " in a group" if work.groups > 1 else ""
    world_size, backend = point.common.world_size, point.common.backend
    if world_size > job_size:
        return f"world_size {world_size} is more than the job's {job_size} ranks"
    if point.division.unfit:
        return point.division.unfit
    if ranks < least:
        return f"{work.collective} needs at least {least} ranks{where}"
    if ranks < traits_of(backend).min_world_size:
        return f"{backend} makes no group of {ranks} rank"
    if work.split != "even" and ranks < 2:
        return f"split {work.split} needs at least 2 ranks{where}"
    if work.root is not None and work.root >= ranks:
        return f"root {work.root} is not one of {ranks} ranks{where}"
    return _unfit_load(point, work)


def _unfit_for_cold(work: Collective, *, cuda_graph: bool) -> str | None:
    """Return why buffers cannot be cold on the device with the smallest cache, or None."""
    if work.buffers == "warm":
        return None
    if cuda_graph:
        return "buffers cold: a CUDA graph repeats the call of one set of buffers"
    return collectives.too_many_cold_sets(work.cold_bytes, collectives.COLD_BYTES)


def _unfit_for_async(work: Collective, common: measured.CommonPoint) -> str | None:
    """Return why a call cannot be issued apart from waiting for it, or None."""
    if not work.asynchronous:
        return None
    if library_of(common.backend) == "mpi" and not common.backend.startswith(TORCH):
        return f"async: calls of {common.backend} block; take another backend"
    if common.mode == "pipelined":
        return "async: a sample of mode pipelined has several calls; take isolated or barrier_start"
    if work.buffers == "cold":
        return "async: buffers that take turns are not supported; take cache warm"
    if common.cuda_graph:
        return "async: a CUDA graph replays a call with its wait; take cuda_graph false"
    if work.traits.is_plugin:
        return f"async: {work.collective} is a plug-in's collective, which waits itself"
    return None


def _rounded_to_nothing(point: Point, work: Collective) -> str | None:
    if work.size_bytes or not work.traits.moves_data:
        return None
    ranks = point.group_size
    smallest = collectives.smallest_bytes(work.collective, work.dtype, ranks, work.split)
    split = f" split {work.split}" if work.split != "even" else ""
    return (f"{work.requested_bytes} B is rounded to nothing: {work.collective} of "
            f"{work.dtype}{split} over {ranks} ranks begins at {smallest} B")


class CollectivePlanner(Planner):
    """Plans collectives."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        own = cast("CollectiveBlock", block)
        return {name: len(values) for name, values in axes_of(own, config).items()
                if name != "env"}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        for point in points(cast("CollectiveBlock", block), job):
            yield measured.assemble(title, block, job, point.common, draft(point, job))

    def workload_from_json(self, data: Mapping[str, Any]) -> Collective:
        return Collective(**data)

    def advice(self, work: Workload, available_bytes: int) -> str:
        assert isinstance(work, Collective)
        return advice(work, available_bytes)


def catalogue() -> dict[str, dict[str, Any]]:
    return {"collectives": {name: {
        "aliases": list(spec.aliases), "has_op": spec.has_op, "has_root": spec.has_root,
        "least_ranks": spec.min_world_size, "backends": list(spec.backends) or None,
    } for name, spec in collectives.collectives().items()}}
