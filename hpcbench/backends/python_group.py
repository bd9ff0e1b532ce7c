"""The base of process groups in Python, and the collectives that torch's operations call.

Such a group is torch's ProcessGroup itself, so it has its names and its collectives under the names
of several versions. Python and DistributedDataParallel's reducer call operations ``c10d``,
functional collectives ``_c10d_functional``; a group in Python is called directly, which `watched`
sees. Sizes are those of nccl-tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

Tensors = Sequence[torch.Tensor]
NEW_NAMES: Mapping[str, str] = MappingProxyType({
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
})
"""Name of a method in torch 2.13 -> its name before; a group defines the old one, and has both."""


class FinishedWork(dist.Work):  # type: ignore[misc]
    """A call that was complete when it was returned; its future holds ``outputs``."""

    def __init__(self, outputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = list(outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        """Return None: a failed call has raised."""

    def synchronize(self) -> None:
        ...

    def result(self) -> list[torch.Tensor]:
        return self.outputs

    def get_future(self) -> Any:
        """Return a completed future, made only for those who ask (DistributedDataParallel does)."""
        devices = {tensor.device for tensor in self.outputs if tensor.is_cuda}
        future: Any = torch.futures.Future(devices=sorted(devices, key=str))
        future.set_result(self.outputs)
        return future


class PythonGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group; subclasses define the collectives, with the arguments of torch's."""

    BACKEND = ""
    """The name under which torch knows the backend."""

    def __init_subclass__(cls) -> None:
        for new, old in NEW_NAMES.items():
            setattr(cls, new, getattr(cls, old))

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return self.BACKEND

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to free."""

    def _start_coalescing(self, device: Any) -> None:
        """Do nothing: each call is carried out when it is made."""

    def _end_coalescing(self, device: Any) -> FinishedWork:
        return FinishedWork([])


def register(name: str, opener: Callable[[Any, Any], PythonGroup]) -> None:
    """Make a backend known to torch.distributed; ``opener`` gets torch's options and
    ``pg_options``."""
    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(name, opener, extended_api=True, devices=["cpu", "cuda"])


class GroupCall(NamedTuple):
    """A call of a collective on so many ranks, of so many bytes."""

    collective: str
    size_bytes: int
    ranks: int


class _Form(NamedTuple):
    """The place of the tensors whose size counts: an argument's index, or the result."""

    collective: str
    at: int | str


def _forms(rows: Mapping[tuple[str, int | str], str]) -> Mapping[str, _Form]:
    return MappingProxyType({name: _Form(*form) for form, names in rows.items()
                             for name in names.split()})


_GROUP = _forms({
    ("all_reduce", 0): "allreduce_ allreduce_coalesced_", ("broadcast", 0): "broadcast_",
    ("reduce", 0): "reduce_", ("send_recv", 0): "send", ("gather", 0): "gather_",
    ("all_gather", 0): "allgather_ _allgather_base_ allgather_coalesced_ "
                       "allgather_into_tensor_coalesced_",
    ("reduce_scatter", 1): "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_",
    ("scatter", 1): "scatter_", ("all_to_all", 1): "alltoall_base_ alltoall_",
    ("barrier", -1): "barrier monitored_barrier_"})
"""Operations on a group: the arguments of `torch.distributed.ProcessGroup` in C++."""
_FUNCTIONAL = _forms({
    ("all_reduce", 0): "all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_",
    ("all_gather", "result"): "all_gather_into_tensor all_gather_into_tensor_out "
                              "all_gather_into_tensor_coalesced",
    ("reduce_scatter", 0): "reduce_scatter_tensor reduce_scatter_tensor_out "
                           "reduce_scatter_tensor_coalesced",
    ("all_to_all", 0): "all_to_all_single shard_dim_alltoall", ("send_recv", 0): "isend",
    ("broadcast", 0): "broadcast broadcast_"})
"""Operations that name their group by their last argument that is a text."""
_METHODS: Mapping[str, _Form] = MappingProxyType({
    name.removesuffix("_"): form for name, form in _GROUP.items() if name != "monitored_barrier_"})
"""Methods of a group in Python: its operations without the mark of what works in place."""
_SILENT = frozenset({"recv_", "recv_any_source_", "irecv", "wait_tensor", "_wrap_tensor_autograd",
                     "check_for_nan"})
"""Operations that call nothing, or that the sending rank counts."""
_SPACES = ("c10d", "_c10d_functional", "_dtensor")


def is_call(operation: Any) -> bool:
    return operation.namespace in _SPACES


def called(operation: Any, arguments: Sequence[Any], result: Any) -> list[GroupCall]:
    """Return the calls of an operation on a process group; none for a group in Python (`watched`).

    Raises KeyError with the name of an unknown operation."""
    name = operation._schema.name.partition("::")[2]
    if name in _SILENT:
        return []
    if operation.namespace == "c10d":
        form = _GROUP[name]
        group = next(dist.ProcessGroup.unbox(item) for item in arguments
                     if isinstance(item, torch.ScriptObject))
    else:
        form = _FUNCTIONAL[name]
        group = torch._C._distributed_c10d._resolve_process_group(
            [item for item in arguments if isinstance(item, str)][-1])
    if isinstance(group, PythonGroup):
        return []
    return _sized(form, arguments, result, group.size())


def _sized(form: _Form, arguments: Sequence[Any], result: Any, ranks: int) -> list[GroupCall]:
    if form.at == -1:
        return [GroupCall(form.collective, 0, ranks)]
    sized = result if isinstance(form.at, str) else arguments[form.at]
    parts = [sized] if isinstance(sized, torch.Tensor) else sized
    if form.collective == "all_to_all" and not isinstance(sized, torch.Tensor):
        parts = [sized]  # parts of one call, which is of all of them
    name = exchanged(arguments) if form.collective == "all_to_all" else form.collective
    return [GroupCall(name, _bytes(part), ranks) for part in parts]


def exchanged(arguments: Sequence[Any]) -> str:
    """Return what an all_to_all with these arguments is: messages, if a rank sends to one only.

    So functional collectives of torch send to a neighbour."""
    splits = [one for one in arguments if isinstance(one, (list, tuple)) and one
              and all(isinstance(part, int) for part in one)]
    to_one = bool(splits) and all(sum(map(bool, one)) == 1 < len(one) for one in splits)
    return "send_recv" if to_one else "all_to_all"


def _bytes(tensors: torch.Tensor | Iterable[torch.Tensor]) -> int:
    if isinstance(tensors, torch.Tensor):
        return int(tensors.nbytes)
    return sum(int(tensor.nbytes) for tensor in tensors)


@contextlib.contextmanager
def watched(groups: Iterable[Any], note: Callable[[Sequence[GroupCall]], object]) -> Iterator[None]:
    """Pass each outer call of the groups in Python to ``note``."""
    own = {id(group): group for group in groups if isinstance(group, PythonGroup)}.values()
    names = {**{name: name for name in _METHODS}, **NEW_NAMES}
    try:
        for group in own:
            for name, old in names.items():
                if hasattr(group, name) and old in _METHODS:
                    setattr(group, name, _watching(group, name, _METHODS[old], note))
        yield
    finally:
        for group in own:
            for name in names:
                group.__dict__.pop(name, None)


def _watching(
    group: PythonGroup, name: str, form: _Form, note: Callable[[Sequence[GroupCall]], object],
) -> Callable[..., Any]:
    method = getattr(type(group), name)

    def call(*arguments: Any, **named: Any) -> Any:
        note(_sized(form, (*arguments, *named.values()), None, group.size()))
        own = group.__dict__
        watching = {key: own.pop(key) for key in (*_METHODS, *NEW_NAMES) if key in own}
        try:
            return method(group, *arguments, **named)
        finally:
            own.update(watching)

    return call
