"""The ranks of a user's program: an mpi4py communicator, a torch.distributed group, or one alone.

Lining them up leaves the user's own group alone, but for one exchange at the beginning: after
an exception on one rank, messages of the function under test may still be under way in it."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcbench.errors import HpcbenchError, MeasureError
from hpcbench.measurement.control import Control, Integers, control_in_memory
from hpcbench.measurement.environment import clock_identity
from hpcbench.trace.clock import ClockModel

if TYPE_CHECKING:
    from hpcbench.launch.communicator import Communicator

PATIENT_S = 1800.0
"""How long ranks wait for one another: torch's own limit for gloo."""
IMPATIENT_S = 10.0
"""How long a rank with an exception waits for others, which may hang in the function."""
_YIELDS_S, _PAUSE_S = 1e-3, 1e-3


class LineUp(Control, Protocol):
    """A control whose patience can end."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group of ranks of ``library``: mpi4py, a backend of torch, or "" of one rank.

    ``gather`` returns each rank's value, in the order of ranks; ``communicator`` one that compares
    clocks, None where there is none. ``close`` is collective."""

    rank: int
    size: int
    gather: Callable[[Any], list[Any]]
    line: LineUp
    communicator: Callable[[], Communicator | None]
    close: Callable[[], None]
    library: str = ""


def open_ranks(group: Any) -> Ranks:
    """Return the ranks of a group; None: torch's default group if there is one, else this process
    alone. Collective. Raises TypeError for anything but a group, ValueError outside of it."""
    torch, mpi = sys.modules.get("torch"), sys.modules.get("mpi4py.MPI")
    dist = torch.distributed if torch is not None and torch.distributed.is_available() else None
    if group is None:
        return _of_torch(None) if dist is not None and dist.is_initialized() else _alone()
    if mpi is not None and isinstance(group, mpi.Comm):
        if group == mpi.COMM_NULL:
            raise ValueError("measure: group is MPI.COMM_NULL: call it on ranks of the group only")
        if group.Is_inter():
            raise TypeError("measure: group is an intercommunicator; give comm.Merge()")
        return _of_mpi(group, mpi.MAX)
    if dist is not None and group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("measure: this rank is not in the group: call it on ranks of the group")
    if dist is not None and isinstance(group, dist.ProcessGroup):
        return _of_torch(group)
    raise TypeError(f"measure: group is of type {type(group).__name__}; give an mpi4py "
                    "communicator, a torch.distributed process group, or None")


def _nothing() -> None:
    pass


class _NoLine:
    """One rank waits for nobody."""

    timeout_s = PATIENT_S

    def barrier(self) -> None:
        pass

    def maximum(self, values: Integers) -> Integers:
        same: Integers = values.copy()
        return same


def _alone() -> Ranks:
    return Ranks(0, 1, lambda value: [value], _NoLine(), lambda: None, _nothing)


class _MpiLine:
    """A communicator of its own. A rank that waits yields its core, then sleeps."""

    def __init__(self, comm: Any, maximum: Any) -> None:
        self._comm, self._max, self.timeout_s = comm, maximum, PATIENT_S

    def barrier(self) -> None:
        self.maximum(np.zeros(1, dtype=np.int64))

    def maximum(self, values: Integers) -> Integers:
        agreed: Integers = np.empty_like(values)
        request, began_s = self._comm.Iallreduce(values, agreed, self._max), time.monotonic()
        while not request.Test():
            waited_s = time.monotonic() - began_s
            if waited_s > self.timeout_s:
                raise RuntimeError(f"timed out: not all ranks came in {self.timeout_s:g} s")
            if waited_s < _YIELDS_S:
                os.sched_yield()
            else:
                time.sleep(_PAUSE_S)
        return agreed


def _of_mpi(comm: Any, maximum: Any) -> Ranks:
    if comm.Get_size() == 1:
        return _alone()
    own = comm.Dup()

    def communicator() -> Communicator:
        from hpcbench.launch.communicator import MpiCommunicator

        return MpiCommunicator(own, _nothing)

    return _lined_up(Ranks(own.Get_rank(), own.Get_size(), own.allgather, _MpiLine(own, maximum),
                           communicator, own.Free, "mpi4py"))


class _GlooLine:
    """A gloo group of its own, unknown to torch's list of groups."""

    def __init__(self, group: Any) -> None:
        self._group, self.timeout_s = group, PATIENT_S

    def barrier(self) -> None:
        self.maximum(np.zeros(1, dtype=np.int64))

    def maximum(self, values: Integers) -> Integers:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        agreed: Integers = values.copy()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._group.allreduce([torch.from_numpy(agreed)], options).wait(
            timedelta(seconds=self.timeout_s))
        return agreed

    def gather(self, value: Any) -> list[Any]:
        """Return each rank's value."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        lengths = [int(part[0]) for part in self._gathered(np.array([data.size]))]
        padded = np.zeros(max(lengths), dtype=np.uint8)
        padded[:data.size] = data
        return [pickle.loads(part[:length].tobytes())
                for part, length in zip(self._gathered(padded), lengths, strict=True)]

    def _gathered(self, values: Any) -> list[Any]:
        import torch

        own = torch.from_numpy(values)
        parts = [torch.empty_like(own) for _ in range(self._group.size())]
        self._group.allgather([parts], [own]).wait()
        return [part.numpy() for part in parts]


def _of_torch(group: Any) -> Ranks:
    import torch.distributed as dist

    if dist.get_rank(group) < 0:
        raise ValueError("measure: this rank is not in the group: call it on ranks of the group")
    size = dist.get_world_size(group)
    if size == 1:
        return _alone()
    names: list[Any] = [None] * size
    dist.all_gather_object(names, secrets.token_hex(8), group=group)
    rank, name = dist.get_rank(group), f"hpcbench/measure/{names[0]}"
    line = _GlooLine(_own_group(name, rank, size))
    return _lined_up(Ranks(rank, size, line.gather, line,
                           lambda: _over_store(name, rank, size), _nothing,
                           dist.get_backend(group)))


def _own_group(name: str, rank: int, size: int) -> Any:
    """Return a gloo group that only this module knows.

    `dist.new_group` gives groups of some ranks the same name again, and gloo then finds the
    addresses of the one before in the store (torch 2.13: ranks wait for ever)."""
    from datetime import timedelta

    import torch.distributed as dist

    return dist.ProcessGroupGloo(dist.PrefixStore(name, _store()), rank, size,
                                 timedelta(seconds=PATIENT_S))


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _over_store(name: str, rank: int, size: int) -> Communicator | None:
    """Return a communicator over torch's store, None where rank 0's address is not known."""
    from torch.distributed import PrefixStore

    from hpcbench.launch.communicator import own_address_towards
    from hpcbench.launch.store_communicator import StoreCommunicator

    address = os.environ.get("MASTER_ADDR")
    return None if address is None else StoreCommunicator(
        PrefixStore(f"{name}/clocks", _store()), "all", rank, size, _nothing,
        own_address_towards(address))


def _lined_up(ranks: Ranks) -> Ranks:
    """Return the ranks, lined up in shared memory where that is possible."""
    shared = control_in_memory(ranks.rank, ranks.size, PATIENT_S, ranks.gather)
    return ranks if shared is None else replace(ranks, line=shared)


@dataclass(frozen=True, slots=True)
class CommonClock:
    """This rank's model of the clock of rank 0, and its ``bound_ns``; None: there is no common
    clock. ``shared``: all ranks read one clock."""

    model: ClockModel | None
    bound_ns: float = 0.0
    shared: bool = False


def common_clock(ranks: Ranks) -> CommonClock:
    """Compare the clocks of all ranks, unless they share one; collective."""
    now_ns, identity = time.perf_counter_ns, clock_identity()
    if len(set(ranks.gather(identity))) == 1:
        return CommonClock(ClockModel.identity(now_ns()), shared=True)
    comm = None
    with contextlib.suppress(HpcbenchError):  # no route to rank 0
        comm = ranks.communicator()
    if not all(ranks.gather(comm is not None)) or comm is None:
        return CommonClock(None)
    from hpcbench.launch.clocks import synchronise

    model = synchronise(comm, now_ns, identity).model
    return CommonClock(model, model.bound_at(now_ns()))


_TEXT_BYTES = 240
_WORDS = 2 + _TEXT_BYTES // 8


class SharedFailures:
    """A control in which a rank's exception reaches all others at their next exchange.

    Each exchange begins with one of a fixed length: a code by which one rank is chosen, and its
    text. Where several ranks came with different texts, their checksum does not fit, and the
    chosen one alone repeats its own. A rank that another one's end brought down keeps its text
    back: the other may be gone, and cannot repeat anything."""

    def __init__(self, ranks: Ranks) -> None:
        self._rank, self._size, self._line = ranks.rank, ranks.size, ranks.line
        self._well = np.zeros(_WORDS, dtype=np.int64)

    def barrier(self) -> None:
        self._meet(self._well, self._well)

    def maximum(self, values: Integers) -> Integers:
        """Return the maximum over ranks. Raises MeasureError where a rank has failed."""
        self._meet(self._well, self._well)
        return self._line.maximum(values)

    def fail(self, text: str, *, by_peer: bool) -> MeasureError:
        """Return the error for all ranks; ``by_peer``: another rank's end can have caused it."""
        own = _encoded(1 + (not by_peer) * self._size + self._size - 1 - self._rank, text)
        sent = np.where(np.arange(_WORDS) == 0, own, 0) if by_peer else own
        self._line.timeout_s = IMPATIENT_S
        try:
            self._meet(sent, own)
        except MeasureError as known:
            return known
        except Exception:
            pass  # others hang in the function, or are gone
        return MeasureError(self._rank, text)

    def _meet(self, sent: Integers, own: Integers) -> None:
        agreed = self._line.maximum(sent)
        if not agreed[0]:
            return
        rank, text = self._size - 1 - (int(agreed[0]) - 1) % self._size, _text(agreed)
        if text is None:
            self._line.timeout_s = IMPATIENT_S
            with contextlib.suppress(Exception):  # that rank is gone
                text = _text(self._line.maximum(own if rank == self._rank else self._well))
        raise MeasureError(rank, text or "an exception, whose text did not arrive")


def _encoded(code: int, text: str) -> Integers:
    """Return a code, a checksum and an ASCII text as whole numbers that are not negative."""
    data = text.encode("ascii", "backslashreplace")[:_TEXT_BYTES].ljust(_TEXT_BYTES, b" ")
    head = np.array([code, zlib.crc32(data, code)])
    return np.concatenate([head, np.frombuffer(data, ">i8")]).astype(np.int64)


def _text(words: Integers) -> str | None:
    """Return the text, None if words of several ranks are mixed."""
    data = words[2:].astype(">i8").tobytes()
    return data.decode("ascii").rstrip() if zlib.crc32(data, int(words[0])) == words[1] else None
