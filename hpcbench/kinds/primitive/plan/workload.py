"""The workload of a distributed primitive."""

from __future__ import annotations

from hpcbench.operations.collectives import calls_of
from hpcbench.plan.case import Case
from hpcbench.plan.points import Option
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass

PHASES = ("dispatch", "experts", "combine")
"""Phases of a call of a primitive that has a load of experts."""
_STAMPED = "cuda_graph: a graph replays a call without the stamps of its phases"
_AXES = ("primitive", "implementation", "order", "dtype", "m", "n", "k", "groups")


@dataclass(frozen=True, slots=True)
class Primitive(Workload):
    """One distributed primitive: communication and matrix products together (docs/primitives.md).

    ``m``, ``n``, ``k`` are those of the global problem; ``shape`` names their source (``llama3-8b
    mlp_up tp=8``; several models if equal), empty where they were given. ``order`` is which comes
    first, communication or product. ``options`` are sorted by name: those of the implementation and
    of the primitive. The specifications give the rest when the plan is made, so that results are
    read without them: ``flops`` of one call on the rank that has most to do, ``total_flops`` of all
    ranks, ``size_bytes`` and ``wire_bytes``: nccl-tests' sizes of the call's communication, summed,
    and times their busbw factors. ``calls`` names the collectives. The implementation runs on
    ``devices`` only, needs Python ``modules`` beside torch, and a compiler if it ``compiles`` when
    it is set up; a GPU of CUDA has at least this compute ``capability``, if any is given, and at
    least this many ``multiprocessors``. ``variables`` names those of the case's environment that
    the implementation requested. ``connects``: a library of its own connects the ranks. ``peers``:
    they read each other's GPU memory. ``file``: the Python file that has the implementation, a
    function of that name; ``sha256`` identifies its content. ``loads`` are names and numbers of how
    unevenly experts are loaded; ``matrix`` is the file of a load that is one, with its own hash."""

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
    groups: int = 1
    devices: tuple[str, ...] = ("cpu", "cuda")
    modules: tuple[str, ...] = ()
    compiles: bool = False
    capability: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()
    connects: bool = False
    peers: bool = False
    multiprocessors: int = 0
    file: str = ""
    sha256: str = ""
    loads: tuple[tuple[str, float], ...] = ()
    matrix: str = ""
    matrix_sha256: str = ""
    origin = "shape"

    def choice(self) -> Choice:
        """Return the problem, and how it is solved; parts alone have no task.

        Options of the primitive are of the problem, those of the implementation are its own. Which
        are which is not known of a primitive that is not installed here."""
        from hpcbench.kinds.primitive.plan.implementations import (
            installed,  # it imports this module
        )

        axes = {**{name: getattr(self, name) for name in _AXES},
                **{f"options.{name}": value for name, value in self.options},
                **({"matrix": self.matrix_sha256} if self.matrix else {})}
        spec = installed().primitives.get(self.primitive)
        if spec is None or not (self.size_bytes and (self.flops or self.loads)):
            return Choice(axes, None)
        own = {f"options.{name}" for name, _ in self.options if name not in spec.options}
        own |= {"implementation", "order"}
        return Choice(axes, {name: value for name, value in axes.items() if name not in own},
                      {name: value for name, value in axes.items() if name in own}, any_ranks=True)

    @property
    def features(self) -> Features:
        """Return the needs of the implementation; profiles show parts alone."""
        alone = {(False, True): "compute", (True, False): "communication"}
        shown = alone.get((bool(self.calls), self.flops > 0))
        split = "linear" if self.loads else str(dict(self.options).get("split", "even"))
        files = {self.file: self.sha256, self.matrix: self.matrix_sha256}
        return Features(
            implementer=self.implementation, calls=calls_of(self.calls, self.dtype, split),
            needs=(*self.modules, *(("compiler",) if self.compiles else ())),
            only_on=self.devices, least_capability=self.capability,
            least_multiprocessors=self.multiprocessors, needs_ranks=self.connects,
            reads_peers=self.peers, profiled_for=frozenset({shown} if shown else ()),
            compiled_graphs=int(self.compiles), settles=not self.loads, enters_late=True,
            has_phases=bool(self.loads), not_captured=_STAMPED if self.loads else None,
            files={file: sha256 for file, sha256 in files.items() if file})

    def option(self, name: str) -> Option:
        """Return the value of an option. Raises KeyError."""
        return dict(self.options)[name]

    def label(self, world_size: int) -> Label:
        return Label(self.primitive, [
            f"{self.primitive} {self.implementation}", self.dtype,
            f"m={self.m}", f"n={self.n}", f"k={self.k}", self.order,
            *(f"{name}={value}" for name, value in self.options), f"ranks={world_size}"])


def primitive_of(case: Case) -> Primitive:
    """Raises TypeError for a case of another kind."""
    if not isinstance(case.workload, Primitive):
        raise TypeError(f"{case.label} is not a primitive")
    return case.workload
