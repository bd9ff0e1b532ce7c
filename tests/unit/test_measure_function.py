"""hpcbench.measure of one rank, its arguments and texts; how ranks share an exception."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import hpcbench
from hpcbench.api.measure import Host, MeasureRequest
from hpcbench.api.measurement import Measurement
from hpcbench.api.ranks import Ranks, SharedFailures, open_ranks
from hpcbench.errors import MeasureError
from hpcbench.operations.functions import WrongResult
from launcher import ROOT
from test_shared_control import controls


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True,
                          timeout=60, check=True).stdout


def test_importing_the_package_loads_next_to_nothing() -> None:
    """50 ms are for a few modules of the standard library: neither torch, nor numpy, nor ours."""
    code = ("import sys; before = set(sys.modules); import hpcbench; "
            "print(*sorted(set(sys.modules) - before))")
    loaded = python(code).split()
    assert [name for name in loaded if name.partition(".")[0] == "hpcbench"] == ["hpcbench"]
    assert not {"torch", "numpy", "mpi4py", "h5py", "pydantic"} & set(loaded)
    assert len(loaded) < 40, loaded


def test_measuring_loads_neither_torch_nor_mpi() -> None:
    code = ("import sys, hpcbench; hpcbench.measure(lambda: 0, iterations=3); "
            "print({'torch', 'mpi4py', 'matplotlib'} & set(sys.modules))")
    assert python(code).strip() == "set()"


def test_public_names_are_found_and_others_are_not() -> None:
    assert hpcbench.measure.__name__ == "measure"
    assert hpcbench.Measurement is Measurement and hpcbench.MeasureError is MeasureError
    with pytest.raises(AttributeError):
        hpcbench.mesure  # noqa: B018


def test_a_fixed_count_is_exact() -> None:
    calls: list[str] = []
    found = hpcbench.measure(partial(calls.append, "fn"), setup=partial(calls.append, "setup"),
                             iterations=20, warmup=3)
    assert calls == ["setup", "fn"] * 23
    assert found.samples.shape == (1, 20) and found.times.shape == (20,)
    assert found.median == np.median(found.times) == found.per_rank[0]
    assert found.name == "partial" or found.name.endswith("append")


def test_seconds_are_kept_and_the_time_is_right() -> None:
    began = time.monotonic()
    found = hpcbench.measure(partial(time.sleep, 0.002), seconds=0.2, bytes=2e6, flops=4e9)
    assert 0.2 <= time.monotonic() - began < 10
    assert 0.002 <= found.median < 0.2
    assert (found.interval is None) == ("ci_unreliable" in found.flags)  # as on a busy machine
    low, high = found.interval or (0, 1)
    assert low <= found.median <= high
    assert found.bandwidth == 2e6 / found.median
    assert found.tflops == pytest.approx(4e9 / found.median / 1e12)


def test_a_function_that_sleeps_takes_as_long_as_in_a_plain_loop() -> None:
    """A sleep of 10 us takes some 60 us more in both: the timer slack is the process's own."""
    def nap() -> None:
        time.sleep(1e-5)

    plain, measured = [], []
    for _ in range(8):
        times = []
        for _ in range(25):
            began = time.perf_counter()
            nap()
            times.append(time.perf_counter() - began)
        plain.append(np.median(times))
        measured.append(hpcbench.measure(nap, iterations=25).median)
    # the least of each: on a busy machine the others also wait for a core
    assert 0.7 < min(measured) / min(plain) < 1.4


def test_a_slow_function_is_called_six_times_which_hold_no_reliable_interval() -> None:
    """As of a loaded case: there is none where the flag doubts it."""
    found = hpcbench.measure(partial(time.sleep, 0.02), seconds=0.01, warmup=0)
    assert found.samples.shape[1] == 6
    assert found.interval is None and "ci_unreliable" in found.flags
    assert "unreliable" in found._repr_html_()


def test_few_samples_have_no_interval() -> None:
    found = hpcbench.measure(lambda: None, iterations=5)
    assert found.interval is None and "too few samples" in found._repr_html_()


def test_an_exception_of_one_rank_alone_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        hpcbench.measure(lambda: 1 // 0)
    with pytest.raises(TypeError, match="check returned a list"):
        hpcbench.measure(lambda: 0, check=lambda: [1], iterations=3)


def test_checks_are_outside_of_the_time() -> None:
    checked: list[int] = []

    def check() -> bool:
        checked.append(1)
        time.sleep(0.01)
        return len(checked) != 2

    found = hpcbench.measure(lambda: 0, check=check, iterations=30)
    assert found.checked and found.wrong == ("rank 0: the check returned False",)
    assert 3 <= len(checked) < 20
    assert (found.times >= 0.01).sum() < 2, "a call may have had to wait for a core"
    assert "WRONG" in str(found)
    right = hpcbench.measure(lambda: 0, check=lambda: None, iterations=3)
    assert not right.wrong and "WRONG" not in str(right)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"fn": 3}, TypeError, "fn"),
    ({"setup": 3}, TypeError, "setup"), ({"check": "x"}, TypeError, "check"),
    ({"seconds": 1, "iterations": 3}, ValueError, "seconds and iterations"),
    ({"seconds": -1}, ValueError, "seconds"), ({"seconds": 0}, ValueError, "seconds"),
    ({"seconds": float("nan")}, ValueError, "seconds"), ({"seconds": "1"}, TypeError, "seconds"),
    ({"iterations": 0}, ValueError, "iterations"), ({"iterations": 2.5}, TypeError, "iterations"),
    ({"iterations": True}, TypeError, "iterations"),
    ({"warmup": -1}, ValueError, "warmup"), ({"warmup": None}, TypeError, "warmup"),
    ({"bytes": -1}, ValueError, "bytes"), ({"flops": "many"}, TypeError, "flops"),
    ({"name": 3}, TypeError, "name"),
    ({"group": "world"}, TypeError, "group"), ({"device": "tpu"}, ValueError, "device"),
    ({"device": "cuda:99"}, ValueError, "cuda:99"),
]


@pytest.mark.parametrize(("options", "error", "word"), BAD, ids=[str(bad[0]) for bad in BAD])
def test_bad_input_is_one_line(
    options: dict[str, Any], error: type[Exception], word: str,
) -> None:
    calls: list[int] = []
    with pytest.raises(error) as caught:
        hpcbench.measure(**{"fn": lambda: calls.append(1), **options})
    assert word in str(caught.value) and "\n" not in str(caught.value) and not calls


async def step() -> None:
    """Do nothing, but only if someone waits for it."""


@pytest.mark.parametrize(("fn", "warmup"), [
    (lambda: step(), 1), (lambda: step(), 0), (lambda: (n for n in (1, 2)), 1),
    (lambda: map(print, (1, 2)), 1), (step, 1)])
def test_a_call_that_runs_nothing_is_one_line(fn: Callable[[], Any], warmup: int) -> None:
    with pytest.raises(TypeError, match="nobody runs|runs nothing"):
        hpcbench.measure(fn, iterations=2, warmup=warmup)


def test_an_async_setup_restores_nothing() -> None:
    with pytest.raises(TypeError, match="setup is async"):
        hpcbench.measure(lambda: 0, setup=step, iterations=1)


def test_a_call_that_ran_may_return_what_it_ran() -> None:
    def done() -> Any:
        loop = asyncio.new_event_loop()
        task = loop.create_task(step())
        loop.run_until_complete(task)
        loop.close()
        return task

    def begun() -> Iterator[int]:
        numbers = (n for n in (1, 2))
        next(numbers)
        return numbers

    for fn in (done, begun, lambda: [1], lambda: iter([1])):
        assert hpcbench.measure(fn, iterations=2).samples.shape == (1, 2)


def test_a_gpu_needs_torch() -> None:
    code = """
import sys, hpcbench
sys.modules["torch"] = None
try:
    hpcbench.measure(lambda: 0, device="cuda")
except ValueError as error:
    print(error)
"""
    assert "torch" in python(code)


def test_a_gpu_is_current_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch's CUDA: the device runs each call, in its own context."""
    import torch

    from hpcbench.backends import devices

    events: list[str] = []

    class OnGpu(Host):
        torch_device = torch.device("cuda", 1)

        def __init__(self, index: int) -> None:
            events.append(f"opened {index}")

        def prepared(self, run: Callable[[], object], now_ns: Callable[[], int]) -> Any:
            return lambda: (run(), events.append("complete"))

    @contextmanager
    def device(index: int) -> Iterator[None]:
        events.append(f"enter {index}")
        yield
        events.append("leave")

    monkeypatch.setattr(devices, "CudaDevice", OnGpu)
    for name, value in (("is_available", lambda: True), ("device_count", lambda: 2),
                        ("current_device", lambda: 0), ("device", device),
                        ("is_initialized", lambda: True)):
        monkeypatch.setattr(torch.cuda, name, value)
    hpcbench.measure(partial(events.append, "call"), device="cuda:1", iterations=2, warmup=0)
    assert events == ["enter 1", "opened 1", *["call", "complete"] * 2, "leave"]
    events.clear()
    hpcbench.measure(partial(events.append, "call"), iterations=1, warmup=0)
    assert events[:2] == ["enter 0", "opened 0"]
    with pytest.raises(ValueError, match="cuda:2"):
        hpcbench.measure(lambda: 0, device=torch.device("cuda", 2))


def a_measurement(**changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "name": "step <1>", "median": 2e-3, "interval": (1.9e-3, 2.2e-3), "times": np.ones(7),
        "samples": np.ones((2, 7)), "per_rank": (1.9e-3, 2e-3), "skew": 1e-5, "bandwidth": 2e9,
        "tflops": 1.5, "checked": True, "wrong": (), "flags": ("fragile",)}
    return Measurement(**{**values, **changes})


def test_a_line_and_a_table() -> None:
    line, table = str(a_measurement()), a_measurement()._repr_html_()
    assert line == ("step <1>: 2 ms (95 % CI 1.9 ms to 2.2 ms), 2 GB/s, 1.5 TFLOP/s, 2 ranks, "
                    "7 samples, fragile")
    assert "step &lt;1&gt;" in table and table.count("<tr>") == 10
    assert a_measurement(per_rank=(1e-3,) * 20)._repr_html_().count("1 ms") == 8


def test_this_process_alone_meets_nobody() -> None:
    alone = open_ranks(None)
    assert (alone.rank, alone.size, alone.gather(3)) == (0, 1, [3])


@pytest.mark.parametrize(("bounds_ns", "time_ns"), [
    ((1.0, 1.0, 1.0), 900), ((1.0, 900.0, 1.0), 800)])
def test_times_of_three_ranks_by_hand(
    bounds_ns: tuple[float, ...], time_ns: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks 1 and 2 are played: they start 100 and 50 ns after rank 0, and end where these say.

    Where two clocks together are too inexact for a time over ranks, the longest own time counts.
    """
    starts, ends = np.array([0, 100, 50]), np.array([500, 900, 600])

    def gathered(value: Any) -> list[Any]:
        if not isinstance(value, tuple) or len(value) < 3:
            return [value] * 3
        rows = np.stack([value[0]] * 3)
        rows[:, :, 0] = 10**12 + 10**6 * np.arange(rows.shape[1]) + starts[:, None]
        rows[:, :, 1] = rows[:, :, 0] + (ends - starts)[:, None]
        return list(zip(rows, [[], [WrongResult(1, "late")], []], bounds_ns, strict=True))

    alone = open_ranks(None)
    monkeypatch.setattr("hpcbench.api.measure.open_ranks", lambda group: replace(
        alone, size=3, gather=gathered))
    found = hpcbench.measure(lambda: None, iterations=8, warmup=2)
    assert (found.times * 1e9).round().tolist() == [time_ns] * 8
    assert found.skew == pytest.approx(400e-9) and found.samples.shape == (3, 8)
    assert found.per_rank == pytest.approx((500e-9, 800e-9, 550e-9))
    assert found.wrong == ("rank 1: late",)


def test_all_ranks_together_have_a_limit_of_samples() -> None:
    request = MeasureRequest(len, None, None, None, None, None, None, 5, "step", None)
    assert [request.counts(ranks) for ranks in (1, 1000, 10**6)] == [(6, 10_000), (6, 2000), (6, 6)]


def failures(call: Callable[[SharedFailures, int], Any], size: int) -> list[Any]:
    """Return what each rank's call gives, over memory that threads share."""
    def on_rank(line: Any, rank: int) -> Any:
        return call(SharedFailures(Ranks(
            rank, size, lambda value: [value], line, lambda: None, lambda: None)), rank)

    with controls(size) as lines, ThreadPoolExecutor(size) as pool:
        return list(pool.map(on_rank, lines, range(size)))


@pytest.mark.parametrize(("texts", "rank"), [
    ({2: "late"}, 2), ({1: "one", 2: "two"}, 1), ({0: "a", 1: "b", 2: "c"}, 0),
    ({0: "x", 1: "x", 2: "x"}, 0), ({0: "by peer", 2: "the cause"}, 2), ({1: "by peer"}, 1),
    ({0: "by peer a", 1: "by peer b"}, 0), ({1: "\u00fc" * 300}, 1)])
def test_ranks_agree_on_whose_exception_it_is(texts: dict[int, str], rank: int) -> None:
    def call(control: SharedFailures, own: int) -> MeasureError:
        control.barrier()
        if own in texts:
            return control.fail(texts[own], by_peer="peer" in texts[own])
        with pytest.raises(MeasureError) as caught:
            control.maximum(np.arange(5))
        return caught.value

    found = failures(call, 3)
    assert {error.rank for error in found} == {rank}
    wanted = texts[rank].encode("ascii", "backslashreplace").decode()
    assert all(str(error).startswith(f"rank {rank}: {wanted[:200]}") for error in found)


def test_a_rank_whose_peers_hang_raises_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbench.api.ranks.IMPATIENT_S", 0.05)

    def call(control: SharedFailures, rank: int) -> MeasureError | None:
        return control.fail("no batch", by_peer=False) if rank else None

    _, error = failures(call, 2)
    assert (error.rank, str(error)) == (1, "rank 1: no batch")


def test_ranks_that_are_well_exchange_what_they_have() -> None:
    found = failures(lambda control, rank: control.maximum(np.array([rank, 7 - rank])), 3)
    assert [values.tolist() for values in found] == [[2, 7]] * 3
