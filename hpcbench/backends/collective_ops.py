"""Which collectives torch's own operations call: those of process groups, and functional ones.

Python and C++ (DistributedDataParallel's reducer) reach a group of torch by operations ``c10d``.
Functional collectives are operations ``_c10d_functional``. Sizes are those of nccl-tests, as in
`backends.rehearsal`: of what is reduced or sent, of what is gathered whole. A group in Python
(`backends.python_group`) is called without an operation: `watched` sees these calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpcbench.backends.python_group import NEW_NAMES, PythonGroup


class Called(NamedTuple):
    """A call of a collective on so many ranks, of so many bytes."""

    collective: str
    size_bytes: int
    ranks: int


class _Form(NamedTuple):
    """Where the tensors of an operation are whose size counts: an argument, or the result."""

    collective: str
    at: int | str


_GROUP: Mapping[str, _Form] = MappingProxyType({
    "allreduce_": _Form("all_reduce", 0), "allreduce_coalesced_": _Form("all_reduce", 0),
    "broadcast_": _Form("broadcast", 0), "reduce_": _Form("reduce", 0),
    "send": _Form("send_recv", 0), "allgather_": _Form("all_gather", 0),
    "_allgather_base_": _Form("all_gather", 0), "allgather_coalesced_": _Form("all_gather", 0),
    "allgather_into_tensor_coalesced_": _Form("all_gather", 0), "gather_": _Form("gather", 0),
    "reduce_scatter_": _Form("reduce_scatter", 1), "scatter_": _Form("scatter", 1),
    "_reduce_scatter_base_": _Form("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": _Form("reduce_scatter", 1),
    "alltoall_base_": _Form("all_to_all", 1), "alltoall_": _Form("all_to_all", 1),
    "barrier": _Form("barrier", -1), "monitored_barrier_": _Form("barrier", -1)})
"""Operations on a group: the arguments of `torch.distributed.ProcessGroup` in C++."""
_FUNCTIONAL: Mapping[str, _Form] = MappingProxyType({
    "all_reduce": _Form("all_reduce", 0), "all_reduce_": _Form("all_reduce", 0),
    "all_reduce_coalesced": _Form("all_reduce", 0),
    "all_reduce_coalesced_": _Form("all_reduce", 0),
    "all_gather_into_tensor": _Form("all_gather", "result"),
    "all_gather_into_tensor_out": _Form("all_gather", "result"),
    "all_gather_into_tensor_coalesced": _Form("all_gather", "result"),
    "reduce_scatter_tensor": _Form("reduce_scatter", 0),
    "reduce_scatter_tensor_out": _Form("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": _Form("reduce_scatter", 0),
    "all_to_all_single": _Form("all_to_all", 0), "isend": _Form("send_recv", 0),
    "broadcast": _Form("broadcast", 0), "broadcast_": _Form("broadcast", 0),
    "shard_dim_alltoall": _Form("all_to_all", 0)})
"""Operations that name their group by their last argument that is a text."""
_METHODS: Mapping[str, _Form] = MappingProxyType({
    name.removesuffix("_"): form for name, form in _GROUP.items() if name != "monitored_barrier_"})
"""Methods of a group in Python: its operations without the mark of what works in place."""
_SILENT = frozenset({"recv_", "recv_any_source_", "irecv", "wait_tensor", "_wrap_tensor_autograd",
                     "check_for_nan"})
"""What calls nothing, or what the rank counts that sends."""
_SPACES = ("c10d", "_c10d_functional", "_dtensor")


def is_call(operation: Any) -> bool:
    """Return whether an operation is one on a process group."""
    return operation.namespace in _SPACES


def called(operation: Any, arguments: Sequence[Any], result: Any) -> list[Called]:
    """Return what an operation on a process group called.

    Nothing for a group in Python: it is called by the operation, too, and `watched` sees that.
    Raises KeyError, with the name of the operation, of one that is not known.
    """
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


def _sized(form: _Form, arguments: Sequence[Any], result: Any, ranks: int) -> list[Called]:
    if form.at == -1:
        return [Called(form.collective, 0, ranks)]
    told = result if isinstance(form.at, str) else arguments[form.at]
    parts = [told] if isinstance(told, torch.Tensor) else told
    if form.collective == "all_to_all" and not isinstance(told, torch.Tensor):
        parts = [told]  # parts of one call, which is of all of them
    return [Called(form.collective, _bytes(part), ranks) for part in parts]


def _bytes(tensors: torch.Tensor | Iterable[torch.Tensor]) -> int:
    if isinstance(tensors, torch.Tensor):
        return int(tensors.nbytes)
    return sum(int(tensor.nbytes) for tensor in tensors)


@contextlib.contextmanager
def watched(groups: Iterable[Any], note: Callable[[Sequence[Called]], object]) -> Iterator[None]:
    """Tell ``note`` of each call of those of the groups that are written in Python.

    What a method of the group calls itself is no call of its own.
    """
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
    group: PythonGroup, name: str, form: _Form, note: Callable[[Sequence[Called]], object],
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
