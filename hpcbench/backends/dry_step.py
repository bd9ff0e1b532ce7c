"""A step of a case as rank 0 of a world that does not exist, on tensors without memory.

Two things are missing in torch's FakeTensorMode. Some values decide which calls are made (shapes of
neighbours, bucket numbers, optimizer steps): integers, fp64 numbers or single numbers, so such
small tensors stay real (`_is_number`). Functional collectives (DTensor's) do not reach a group;
they are sent to theirs here, so that it counts them.

FakeTensorMode has no public name; tried with torch 2.13 (tests/workloads/test_fake_tensors.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from hpcbench.backends.counting_backend import CallLog, open_counting_world
from hpcbench.backends.devices import one_line
from hpcbench.errors import CaseError
from hpcbench.measurement.process import no_garbage_collection
from hpcbench.operations.place import AnyOperation, Place, close
from hpcbench.plan.case import Case

_CHUNK = "_chunk_with_empty"


@contextmanager
def one_part() -> Iterator[None]:
    """Have ``fully_shard`` make only this rank's part of each parameter.

    torch makes those of all ranks, 370,000 of Llama-3-70B for 512 ranks, and takes one."""
    try:
        from torch.distributed.fsdp._fully_shard import _fsdp_param
    except ImportError:  # an older torch has it elsewhere, and takes longer
        yield
        return
    plain = getattr(_fsdp_param, _CHUNK)
    setattr(_fsdp_param, _CHUNK, _Chunks)
    try:
        yield
    finally:
        setattr(_fsdp_param, _CHUNK, plain)


class _Chunks:
    """The chunks of a tensor as ``torch.chunk`` returns them, padded with empty ones; each is made
    when it is taken."""

    def __init__(self, whole: torch.Tensor, count: int, dim: int) -> None:
        self._whole, self._count, self._dim = whole, count, dim

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> torch.Tensor:
        extent = self._whole.size(self._dim)
        each = -(-extent // self._count)
        first = range(self._count)[number] * each  # an IndexError ends them
        if first >= extent:
            return self._whole.new_empty(0)
        return self._whole.narrow(self._dim, first, min(each, extent - first))


NeedsValues = (DataDependentOutputException, DynamicOutputShapeException,
               UnsupportedFakeTensorException, UnsupportedOperatorException)
"""Errors of operators that need the values of a fake tensor."""
_MOST = 2**16
"""Elements of a tensor that stays real: all that decides about calls is far smaller."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of models' arithmetic: of these only single numbers are real."""
_OF_VALUES = (float, torch.Generator)
"""Types of arguments that decide about values only."""
_PLAIN = frozenset({torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter), FakeTensor})
_META = torch.device("meta")
_ENLARGING = frozenset({"repeat", "new_empty", "new_zeros", "new_ones", "new_full", "cat", "stack",
                        "new_empty_strided", "constant_pad_nd", "repeat_interleave", "index"})
"""Operators whose result may be larger than all their inputs."""
_MADE_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
"""Operators such as ``to``, which make a view or a copy: torch takes them apart."""
_DEVICE = torch.ops.prim.device.default
_FUNCTIONAL = "_c10d_functional"

Made = Sequence[torch.Tensor]
_CALLS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "all_reduce": lambda group, made, _: group.allreduce(made),
    "all_reduce_": lambda group, made, _: group.allreduce(made),
    "all_reduce_coalesced": lambda group, made, _: group.allreduce(made),
    "broadcast": lambda group, made, _: group.broadcast(made),
    "broadcast_": lambda group, made, _: group.broadcast(made),
    "all_gather_into_tensor": lambda group, made, inputs: group._allgather_base(made[0], inputs[0]),
    "all_gather_into_tensor_coalesced":
        lambda group, made, inputs: group.allgather_into_tensor_coalesced(made, inputs),
    "reduce_scatter_tensor":
        lambda group, made, inputs: group._reduce_scatter_base(made[0], inputs[0]),
    "reduce_scatter_tensor_coalesced":
        lambda group, made, inputs: group.reduce_scatter_tensor_coalesced(made, inputs),
    "all_to_all_single":
        lambda group, made, inputs, *splits: group.alltoall_base(made[0], inputs[0], *splits),
})
"""Functional collective -> the group's call for it, of the group, the results and the inputs, and
the sizes of parts that go to each rank and come from it."""


_SEVERAL = 8  # views of a tensor, of which more are made one by one


@contextmanager
def views_when_used() -> Iterator[None]:
    """Have ``chunk`` of tensors without memory make a part when it is taken.

    A ring takes one of as many parts as it has ranks, in each of as many steps."""
    def chunk(self: FakeTensor, chunks: int, dim: int = 0) -> Any:
        if chunks <= _SEVERAL or self.shape[dim] % chunks:
            return torch.Tensor.chunk(self, chunks, dim)
        return _Chunks(self, chunks, dim)

    FakeTensor.chunk = chunk
    try:
        yield
    finally:
        del FakeTensor.chunk


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make new tensors without memory, small numbers excepted; meta tensors stay meta.

    A call that needs missing values raises one of `NeedsValues`."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with one_part(), views_when_used(), fake, _Numbers(_Known(fake)):
        yield


class _Numbers(TorchDispatchMode):  # type: ignore[misc]
    """Runs before torch's fake mode: numbers are real, collectives reach their group."""

    def __init__(self, known: _Known) -> None:
        super().__init__()
        self._known = known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled in a dry run, and torch's guard costs time."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        """Carry out an operator; DTensors and the like are taken apart first, by themselves."""
        if func is _DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        if not _PLAIN.issuperset(types):
            return NotImplemented
        kwargs = kwargs or {}
        inputs = _tensors((args, kwargs))
        if func.namespace == _FUNCTIONAL:
            return _collective(func, args, kwargs, inputs, self._known)
        fakes = any(isinstance(one, FakeTensor) for one in inputs)
        if _is_meta(inputs, kwargs.get("device"), fakes):
            made = func(*args, **kwargs) if fakes else _really(func, args, kwargs)
            return tree_map_only(FakeTensor, _as_meta, made)
        if fakes:
            return self._known.carry_out(func, args, kwargs)
        if not all(map(_is_number, inputs)):
            return func(*args, **kwargs)
        if inputs and _is_bounded(func, inputs):
            return _really(func, args, kwargs)
        return _small_or_fake(func, args, kwargs)


class _Known:
    """Remembers the shape results of operators: torch's own memory of them takes four times as
    long."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._results: dict[Any, tuple[Any, ...]] = {}
        self._aliasing: dict[Any, str] = {}

    def carry_out(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Carry out an operator of which an argument is fake."""
        kind = self._aliasing.get(func) or self._aliasing.setdefault(func, _aliasing(func))
        if kind == "other":
            return func(*args, **kwargs)
        if kind == "view":
            return self._view(func, args, kwargs)
        key = func, _described(args), _described(tuple(kwargs.items()))
        if (results := self._results.get(key)) is None:
            made = func(*args, **kwargs)
            if results := _results(made, kind):
                self._results[key] = results
            return made
        if kind == "in_place":
            return args[0]
        if kind == "out":
            return kwargs["out"]
        return results[0](tuple(map(self._made, results[1:])))

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return a view. There are too many of them to remember, and the meta kernel is quick."""
        device = args[0].fake_device
        with in_kernel_invocation_manager(self._fake):
            made = func(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            return FakeTensor(self._fake, made, device)
        return type(made)(FakeTensor(self._fake, one, device) for one in made)

    def _made(self, result: Any) -> Any:
        if result is None:
            return None
        shape, stride, dtype, device = result
        with in_kernel_invocation_manager(self._fake):
            plain = torch.empty_strided(shape, stride, dtype=dtype, device=_META)
        return FakeTensor(self._fake, plain, device)


def _aliasing(func: Any) -> str:
    """Return how an operator's results alias its arguments; ``other`` is left to torch."""
    schema = func._schema
    aliased = [one for one in schema.arguments if one.alias_info]
    if (func.namespace not in ("aten", "bitsandbytes", _FUNCTIONAL) or len(aliased) > 1
            or not schema.returns or func is torch.ops.aten.view.dtype
            or func.has_kernel_for_dispatch_key(_MADE_OF_OTHERS)):
        return "other"
    if not aliased:
        return "new"
    first = aliased[0]
    if not first.alias_info.is_write:
        return "view" if first is schema.arguments[0] or first.name == "self" else "other"
    if first.name == "out" and first.kwarg_only:
        return "out"
    return "in_place" if first.name == "self" and len(schema.returns) == 1 else "other"


def _described(value: Any) -> Any:
    """Return the traits of an argument that decide shapes, as a key."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, isinstance(value, FakeTensor)
    if isinstance(value, (tuple, list)):
        return tuple(map(_described, value))
    return type(value), None if isinstance(value, _OF_VALUES) else value


def _results(made: Any, kind: str) -> tuple[Any, ...] | None:
    """Return the container of the results and the form of each tensor; None: unknown."""
    if kind in ("in_place", "out"):
        return (None,)
    several = isinstance(made, (tuple, list))
    tensors = made if several else (made,)
    if not all(one is None or isinstance(one, FakeTensor) and not one.storage_offset()
               for one in tensors):
        return None
    return (type(made) if several else itemgetter(0), *(
        None if one is None else (one.shape, one.stride(), one.dtype, one.fake_device)
        for one in tensors))


def _small_or_fake(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on numbers for real if its results are numbers, too."""
    try:
        made = func(*args, **kwargs)
    except NeedsValues:
        return _really(func, args, kwargs)
    tensors = _tensors(made)
    return _really(func, args, kwargs) if all(map(_is_number, tensors)) else made


def _really(func: Any, args: Any, kwargs: Any) -> Any:
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator is given or makes; torch's trees take far longer."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list, dict)):
            tensors += _tensors(value)
    return tensors


def _is_number(tensor: torch.Tensor) -> bool:
    count = tensor.numel()
    return count <= 1 or (count <= _MOST and tensor.dtype not in _FLOATS)


def _is_bounded(func: Any, inputs: Made) -> bool:
    """Return whether an operator's results are no larger than its inputs."""
    shapes = {tuple(one.shape) for one in inputs if one.numel() != 1}
    name: str = func._schema.name.rpartition(":")[2]
    return len(shapes) < 2 and name not in _ENLARGING


def _is_meta(inputs: Made, device: torch.device | None, fakes: bool) -> bool:
    """Return whether an operator makes meta tensors."""
    if device is not None:
        return bool(torch.device(device).type == "meta")
    return bool(inputs) and not fakes and all(one.device == _META for one in inputs)


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)


def _collective(func: Any, args: Any, kwargs: Any, inputs: Made, known: _Known) -> Any:
    """Return the results of a functional collective, which its group counts."""
    fakes = any(isinstance(one, FakeTensor) for one in inputs)
    made = known.carry_out(func, args, kwargs) if fakes else func(*args, **kwargs)
    name = func._schema.name.rpartition(":")[2]
    if name != "wait_tensor":
        named = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
        group = (named | kwargs)["group_name"]
        group = _resolve_process_group(group) if isinstance(group, str) else group
        splits = [named[part] for part in ("output_split_sizes", "input_split_sizes")
                  if part in named]
        _CALLS[name](group, _tensors(made), inputs, *splits)
    return made


Opener = Callable[[Place], AbstractContextManager[AnyOperation]]
"""Gives the operation of a case, set up."""


SMALL_BYTES = 2**25
"""Bytes up to which a case is tried with memory: for small ones that is faster than without."""


class DryStep(NamedTuple):
    """``calls``: collective -> (calls, bytes in all). ``needed``: the error for missing values,
    after which memory was used; "" without one."""

    calls: dict[str, tuple[int, int]]
    needed: str = ""


def dry_step(case: Case, opened: Opener) -> DryStep:
    """Set the case up and call it; a large one with tensors that have no memory.

    Raises CaseError if it fails or rank 0 does not fit the available memory."""
    needed = case.host_needs("cpu")
    if needed <= SMALL_BYTES:
        return DryStep(_calls_of(case, opened))
    try:
        with fake_tensors(), no_garbage_collection():  # these have no memory, and it takes long
            return DryStep(_calls_of(case, opened))
    except NeedsValues as error:
        missing = one_line(error)
    available = psutil.virtual_memory().available
    if needed > available:
        raise CaseError(f"the case reads values of tensors ({missing}), so it takes memory: "
                        f"rank 0 needs {needed} bytes, {available} are available here")
    return DryStep(_calls_of(case, opened), missing)


def _calls_of(case: Case, opened: Opener) -> dict[str, tuple[int, int]]:
    call_log = CallLog()
    world = open_counting_world(case.world_size, call_log)
    with opened(Place(0, case.world_size, world, torch.device("cpu"))) as operation:
        for _ in range(case.workload.features.dry_run_calls):
            operation.prepare()
            call_log.tally.clear()
            operation.run()
        counted = {name: (len(sizes), sum(sizes)) for name, sizes in call_log.tally.items()}
        close(operation)
    return counted
