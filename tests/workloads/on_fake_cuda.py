"""Set cases up and call them on fake tensors of ``cuda:0``; started by test_fake_cuda.py.

The tensors have shapes, dtypes and a device, but no memory (torch's FakeTensorMode); torch refuses
to mix devices as it does with a GPU. fake_cuda.cpp is preloaded, so that autograd takes them. What
stands here for torch.cuda is the device, not the library: streams and events do nothing, but refuse
what CUDA leaves undefined. Groups refuse what NCCL would have to guess.

    python on_fake_cuda.py SWEEP WORLD_SIZE

It prints JSON: "cases", a list of [kind, label, error or nothing]; "memory", what is counted as
free, and the sets of a cold collective; "groups", what groups under test are bound to, by backend.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map_only

from hpcbench.backends.counting_backend import (
    COUNTING_BACKEND,
    CallLog,
    CountingGroup,
    open_counting_world,
)
from hpcbench.backends.devices import CudaDevice
from hpcbench.backends.groups import open_lines
from hpcbench.config.load import check_config, load_config
from hpcbench.kinds.primitive.run import operands
from hpcbench.kinds.training.run import parity as timed_model
from hpcbench.kinds.training.run.strategies.base import Grid
from hpcbench.launch.messages import JoinRequest
from hpcbench.measurement.control import SharedProgress
from hpcbench.measurement.runner import opened, runner_of
from hpcbench.operations.place import Place, close
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.worker import Worker

H100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=85 * 10**9, major=9, minor=0,
                       multi_processor_count=132, uuid="0", L2_cache_size=50 * 2**20)
FREE_BYTES, HELD_BYTES, KEPT_BYTES = 10**8, 10**9, 3 * 10**8
"""Free for all processes, in tensors of this one, and kept by its cache: less than any host has."""
SCALAR = torch.ops.aten._local_scalar_dense.default


class Stream:
    """A stream of CUDA, on which everything is over at once."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.device_index, self.device_type = torch.device("cuda", 0), 0, 1
        self.cuda_stream = self.stream_id = id(self)

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream), f"a stream waits for {other!r}"

    def wait_event(self, event: Event) -> None:
        assert event.at is not None, "a stream waits for an event that nobody recorded"

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        pass


class Event:
    """An event of CUDA. Waiting for one that was never recorded waits for nothing, so it fails."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.timing, self.at = enable_timing, None

    def record(self, stream: Stream | None = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        assert self.at is not None, "waits for an event that nobody recorded"

    def synchronize(self) -> None:
        self.wait()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        assert self.timing and end.timing, "the time between events that keep none"
        assert self.at is not None and end.at is not None, "the time of what nobody recorded"
        return (end.at - self.at) * 1e3


def stand_in_for_cuda() -> None:
    """Let torch.cuda be eight GPUs that compute nothing."""
    current = [Stream()]

    @contextmanager
    def stream(chosen: Stream | None) -> Iterator[None]:
        current.append(chosen or current[-1])
        try:
            yield
        finally:
            current.pop()

    for name, value in {
        "is_available": True, "is_initialized": True, "_lazy_init": None, "set_device": None,
        "device_count": 8, "current_device": 0, "synchronize": None, "empty_cache": None,
        "manual_seed_all": None, "get_device_properties": H100, "get_device_name": H100.name,
        "get_device_capability": (H100.major, H100.minor),
        "mem_get_info": (FREE_BYTES, H100.total_memory), "memory_allocated": HELD_BYTES,
        "max_memory_allocated": HELD_BYTES, "memory_reserved": HELD_BYTES + KEPT_BYTES,
        "memory_stats": defaultdict(int), "reset_peak_memory_stats": None,
        "set_per_process_memory_fraction": None, "set_rng_state": None,
        "get_rng_state": torch.empty(16, dtype=torch.uint8),
    }.items():
        setattr(torch.cuda, name, _returning(value))
    for name, stand_in in {
        "Stream": Stream, "Event": Event, "stream": stream,
        "current_stream": lambda *_: current[-1], "default_stream": lambda *_: current[0],
    }.items():
        setattr(torch.cuda, name, stand_in)
    torch.Tensor.record_stream = _returning(None)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes numbers on the CPU, then moves


def _returning(value: Any) -> Any:
    """Return a function of its own: torch keeps them by identity."""
    return lambda *_, **__: value


def let_values_be_ones() -> None:
    """Let a number that is read of a tensor be 1: a loss, a scale, a yes among pipeline stages."""
    fake_impls.op_implementations_dict[SCALAR] = lambda mode, func, tensor: (
        1.0 if tensor.is_floating_point() else tensor.dtype is torch.bool or 1)


def let_meshes_be_real() -> None:
    """Let the numbers of ranks in meshes be real: they decide who talks to whom."""
    for kind, name in ((Grid, "__init__"), (DeviceMesh, "__init__"), (DeviceMesh, "from_group")):
        setattr(kind, name, _really(getattr(kind, name)))


def let_drawn_numbers_be_real() -> None:
    """Draw the operands of primitives on real tensors of the CPU: on fake ones it takes 10 s.

    What a case does with them is done on fake ones.
    """
    for name in ("cancelling_terms", "left_factors", "right_factors", "mlp_factors"):
        really = _really(getattr(operands, name))
        setattr(operands, name, lambda *arguments, of=really, **named: tree_map_only(
            torch.Tensor, torch.empty_like, of(*arguments, **named)))


def _really(made: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        with unset_fake_temporarily():
            return made(*arguments, **named)
    return call


def demand_devices() -> None:
    """Refuse a barrier for which NCCL would have to guess the GPU.

    torch asks in this order: what the call names, what the group is bound to, the accelerator.
    """
    plain = CountingGroup.barrier

    def barrier(self: CountingGroup, opts: Any = None) -> Any:
        assert opts.device_ids or opts.device.index is not None, (
            "a barrier on NCCL without device_ids: it takes the GPU of the global rank's number")
        return plain(self, opts)

    CountingGroup.barrier = barrier


SHORT_PRODUCTS = {
    # (left, right): what the extents of left (m, k) and right (k, n) must be multiples of
    (torch.int8, torch.int8): 8,
    (torch.float8_e4m3fn, torch.float8_e4m3fn): 16,
    (torch.float8_e4m3fn, torch.float8_e5m2): 16,
    (torch.float8_e5m2, torch.float8_e4m3fn): 16,
}
"""What cublasLtMatmul has of one-byte types: its tables of supported types (no e5m2 by e5m2), "TN
format": left row-major, right column-major. Multiples: checks of torch's _int_mm, _scaled_mm."""
INT8_ROWS = 16
"""torch's _int_mm takes more rows than that on CUDA."""


def demand_layouts() -> None:
    """Refuse products of one-byte types that cuBLASLt has not; torch takes any on the CPU."""
    def taken(left: Any, right: Any, *_: Any, out: Any = None, **__: Any) -> Any:
        (m, k), n = left.shape, right.shape[1]
        each = SHORT_PRODUCTS.get((left.dtype, right.dtype))
        assert each, f"cuBLASLt has no product of {left.dtype} and {right.dtype}"
        assert not (k % each or n % each), f"k={k} or n={n} is no multiple of {each}"
        assert left.stride() == (k, 1), f"a left operand of strides {left.stride()}"
        assert right.stride() == (1, k), f"a right operand of strides {right.stride()}"
        assert left.dtype is not torch.int8 or m > INT8_ROWS, f"int8 with {m} rows"
        assert out.shape == (m, n) and out.device == left.device == right.device
        return out

    torch._int_mm = torch._scaled_mm = taken


def cases(sweep: Path, world_size: int) -> list[tuple[str, str, str]]:
    """Set up and call twice every case on cuda; return kind, label, and what it ended with."""
    plan = make_plan(load_config(sweep, []), world_size)
    return [(case.kind, case.label, outcome(case)) for case in plan.cases
            if case.device == "cuda" and not case.skip]


def outcome(case: Case) -> str:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            fake.may_turn_const = lambda _: False
            called_twice(case)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def called_twice(case: Case) -> None:
    device, runner = CudaDevice(0), runner_of(case.kind)
    place = Place(0, case.world_size, open_counting_world(case.world_size, CallLog()),
                  device.torch_device, local_size=case.world_size)
    with opened(runner, case.workload, place, validate=False) as operation:
        call = device.prepared(operation.run, time.perf_counter_ns)
        for _ in range(2):
            operation.prepare()
            call()
            device.took()
        close(operation)


def groups() -> dict[str, Any]:
    """Return what torch was asked to bind the groups of a worker on GPU 3 to, by backend."""
    asked: list[Any] = []
    opened: dict[Any, str] = {}
    plain, named = dist.new_group, dist.get_backend

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None,
                  pg_options: Any = None, device_id: Any = None, **others: Any) -> Any:
        if backend == COUNTING_BACKEND:
            return plain(ranks, backend=backend, pg_options=pg_options, **others)
        asked.append([backend, list(ranks), device_id and str(device_id)])
        group = plain(ranks, backend=COUNTING_BACKEND, pg_options=(CallLog(), None))
        if isinstance(group, CountingGroup):
            group.bound_device_id = device_id
            opened[group] = backend
        return group

    dist.new_group = new_group
    dist.get_backend = lambda group=None: opened.get(group) or named(group)
    open_counting_world(4, CallLog(), rank=2)
    found = {}
    for backend in ("nccl", "gloo"):
        asked.clear()
        group = opened_by_worker(backend)
        open_lines(group, [[0], [1], [2], [3]], 2)
        found[backend] = [*asked]
    return found


def memory() -> dict[str, int]:
    """Return the free bytes that a training may compare its model in, and a collective's sets."""
    with patch.object(timed_model, "_agreed", lambda place, value, how: value):  # the only rank
        free = timed_model._least_free(Place(0, 1, None, torch.device("cuda", 0)))
    job = {"benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": "25MiB",
                           "backend": "nccl", "device": "cuda", "cache": "cold"}]}
    (case,) = make_plan(check_config(job, "test"), 4).cases
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        fake.may_turn_const = lambda _: False
        group = open_counting_world(4, CallLog())
        operation: Any = runner_of(case.kind).open(
            case.workload, Place(0, 4, group, torch.device("cuda", 0)), validate=False)
    return {"free": free, "sets": len(operation.sets)}


def opened_by_worker(backend: str) -> Any:
    """Return the group that a worker of 4 ranks opens for a case on its GPU, number 3."""
    job = {"benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": 64,
                           "backend": backend, "device": "cuda", "groups": 2}]}
    (case,) = make_plan(check_config(job, "test"), 4).cases
    worker = Worker(SharedProgress.create(1))
    worker._workers_control = SimpleNamespace(barrier=lambda: None)
    worker._membership = JoinRequest("", 0, 2, 4, 2, 4, 3, 60.0)
    worker._open_group(case, worker._device("cuda"))
    return worker._groups[next(iter(worker._groups))]


if __name__ == "__main__":
    stand_in_for_cuda()
    let_values_be_ones()
    let_meshes_be_real()
    let_drawn_numbers_be_real()
    demand_devices()
    demand_layouts()
    print(json.dumps({"cases": cases(Path(sys.argv[1]), int(sys.argv[2])), "memory": memory(),
                      "groups": groups()}))  # the last one alters torch.distributed
