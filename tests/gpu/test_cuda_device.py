"""What reads CUDA: events beside the host's clock, NVML, memory, the place of a rank."""

from __future__ import annotations

import os
import time

import pytest
import torch

import hpcbench
from hpcbench.backends.devices import CudaDevice, cache_bytes, free_bytes, open_device
from hpcbench.kinds.training.run.memory import Peak
from hpcbench.launch.worker_pool import facts_of_child
from hpcbench.operations.collectives import cold_bytes

pytestmark = pytest.mark.usefixtures("gpus")


def test_events_measure_what_the_host_waits_for() -> None:
    device = CudaDevice(0)
    cycles = 200_000_000

    def sleep() -> None:
        torch.cuda._sleep(cycles)

    call = device.prepared(sleep, time.perf_counter_ns)
    call()
    began = time.perf_counter_ns()
    call()
    host_ns = time.perf_counter_ns() - began
    enqueue_ns, device_ns = device.took()
    assert 0 < enqueue_ns < device_ns / 10
    assert 0.9 * host_ns < device_ns <= host_ns + 5_000


def test_a_function_of_a_program_is_timed_until_it_is_complete() -> None:
    torch.zeros(1, device="cuda")
    found = hpcbench.measure(lambda: torch.cuda._sleep(50_000_000), iterations=20)
    assert 0.01 < found.median < 1


def test_what_is_enqueued_is_complete_when_the_call_is_timed() -> None:
    device = CudaDevice(0)
    tensor = torch.zeros(1, device="cuda")

    def late() -> None:
        torch.cuda._sleep(50_000_000)
        tensor.fill_(7)

    device.prepared(late, time.perf_counter_ns)()
    assert torch.cuda.current_stream().query()
    assert tensor.item() == 7


def test_the_machine_is_described(gpus: int) -> None:
    found = facts_of_child((), os.environ, 100.0)  # a fork of this process cannot use CUDA any more
    assert found["lost"] == {}
    cuda = found["cuda"]
    assert cuda["available"] and len(cuda["names"]) == gpus
    assert all(cuda["uuids"]) and not any(cuda["no_code"])
    for detail in cuda["details"]:
        assert detail["max_mhz"]["sm"] and detail["power_limit_w"] and detail["now"]["celsius"]


def test_the_peak_of_memory_is_the_allocators() -> None:
    device = torch.device("cuda", 0)
    peak = Peak(device)
    before = torch.cuda.memory_allocated(device)
    held = torch.empty(64 * 2**20, dtype=torch.uint8, device=device)
    del held
    told = peak.read()
    assert told["peak_of"] == "cuda allocated"
    assert 64 * 2**20 <= int(told["peak"]) - before < 66 * 2**20


def test_what_a_case_left_in_the_cache_counts_as_free_and_is_given_back() -> None:
    device = CudaDevice(0)
    device.give_back()
    place = device.torch_device
    before, kept = free_bytes(place), torch.cuda.memory_reserved(place)
    held = torch.empty(256 * 2**20, dtype=torch.uint8, device=place)
    assert free_bytes(place) <= before - 256 * 2**20
    cycle = [held]
    cycle.append(cycle)  # type: ignore[arg-type]
    del held, cycle
    device.give_back()
    assert torch.cuda.memory_reserved(place) <= kept
    assert free_bytes(place) >= before - 4 * 2**20


def test_cold_buffers_exceed_the_cache_of_this_gpu() -> None:
    cache = cache_bytes(torch.device("cuda", 0))
    assert cache is not None and cache >= 4 * 2**20
    assert cold_bytes(cache) >= 4 * cache


def test_fp32_is_fp32() -> None:
    """Of numbers that TF32 rounds, with their 10 bits behind the point."""
    device = open_device("cuda", 0).torch_device
    exact = torch.full((256, 256), 1 + 2**-12, device=device)
    assert torch.equal(exact @ torch.eye(256, device=device), exact)
    image, kernel = exact.reshape(1, 1, 256, 256), torch.ones(1, 1, 1, 1, device=device)
    assert torch.equal(torch.nn.functional.conv2d(image, kernel), image)
