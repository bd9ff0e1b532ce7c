"""What `bash benchmarks/gpu.sh` says of results, without a GPU: each judge, met and missed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from hpcbench.kinds.hardware.derive import HardwareDeriver
from hpcbench.kinds.memory.derive import MemoryDeriver
from hpcbench.kinds.training.derive.deriver import TrainingDeriver
from hpcbench.reduce.results import Usage
from launcher import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu import judges  # noqa: E402
from gpu.machine import Machine  # noqa: E402

H100 = Machine(("NVIDIA H100 80GB HBM3",) * 2, ("a", "b"), (80 * 2**30,) * 2, (None, None))


def case(label: str, status: str, **values: Any) -> SimpleNamespace:
    """Return as much of a result as judges look at."""
    given = {"reason": "", "n_wrong": 0, "timing": None, "library": None, "memory": None,
             "usage": None}
    work = SimpleNamespace(**values.pop("work", {}))
    bytes_ = values.pop("memory_bytes", 0)
    return SimpleNamespace(
        status=status, case=SimpleNamespace(
            label=label, kind=values.pop("kind", ""), workload=work, memory_bytes=bytes_),
        **{**given, **values})


def evidence(*cases: SimpleNamespace) -> Any:
    results: Any = SimpleNamespace(cases=cases, record_of=lambda item: None,
                                   plan=SimpleNamespace(config={}))
    return judges.Evidence(results, H100)


def test_all_ok_reports_skips_and_the_first_that_is_not() -> None:
    good, skip = case("a", "ok"), case("b", "skipped", reason="no such")
    assert judges.all_ok(evidence(good, skip)) == judges.Judgement(
        "met", "1 cases ok, 2 of them checked; skipped: 1 x no such")
    assert judges.all_ok(evidence(skip)).verdict == "skipped"
    assert judges.all_ok(evidence()).verdict == "cannot tell"
    bad = judges.all_ok(evidence(good, case("c", "wrong", n_wrong=3)))
    assert bad == judges.Judgement("missed", "1 of 2 cases: c: wrong: 3 wrong")


def test_patterns_of_cases_are_divided_by_a_bar() -> None:
    found = evidence(case("x data y", "ok"), case("x fsdp y", "wrong"), case("x single y", "ok"))
    assert len(found.cases("* data *|* fsdp *")) == 2 and len(found.cases()) == 3
    assert judges.all_ok(found, "* data *|* single *").verdict == "met"


def test_a_fault_is_survived_if_the_next_case_is_ok() -> None:
    hit, after = case("a 8B", "failed", reason="CUDA error: x"), case("b", "ok")
    judge = judges.survived
    assert judge(evidence(hit, after), "a *", ["failed"], "cuda").verdict == "met"
    assert judge(evidence(hit, after), "a *", ["timeout"]).verdict == "missed"
    assert judge(evidence(hit, after), "a *", ["failed"], "rank 1").verdict == "missed"
    assert judge(evidence(hit), "a *", ["failed"]).verdict == "missed"
    assert judge(evidence(hit, hit, after), "a *", ["failed"]).verdict == "missed"


def test_events_may_not_take_longer_than_the_host() -> None:
    def timed(device_s: float | None) -> SimpleNamespace:
        return case("a", "ok", timing=SimpleNamespace(
            device_s=device_s, local_max_s=1e-3, calls=1, first_call_s=None))

    assert judges.events(evidence(timed(9e-4), timed(1.004e-3))).verdict == "met"
    assert judges.events(evidence(timed(1.01e-3))).verdict == "missed"
    assert judges.events(evidence(timed(None))).verdict == "missed"
    assert judges.told(evidence(timed(9e-4)), "first_call_s").verdict == "missed"
    assert judges.told(evidence(timed(9e-4)), "device_s").verdict == "met"


def recorded(*pairs: tuple[SimpleNamespace, Any], **declared: float) -> Any:
    """Return evidence of cases with what is derived of each, and declared peaks."""
    names = {one.name for deriver in (HardwareDeriver, MemoryDeriver, TrainingDeriver)
             for one in deriver.columns}
    assert all(names >= values.keys() for _, values in pairs if values), "no such metric"
    found = {id(item): record for item, record in pairs}
    results: Any = SimpleNamespace(
        cases=[item for item, _ in pairs], record_of=lambda item: found[id(item)],
        plan=SimpleNamespace(config={"hardware": {"peak_flops": declared}}))
    return judges.Evidence(results, H100)


def test_the_largest_batch_is_compared_with_the_predicted_one() -> None:
    def searched(deviation: float | None, too_large: int | None = 120) -> Any:
        return recorded((case("bert", "ok"), {
            "largest_batch": 110, "too_large_batch": too_large, "tries": 9,
            "too_large_ended": "out of memory", "predicted_largest_batch": 100,
            "batch_deviation": deviation}))

    judge = judges.largest_batch
    assert judge(searched(0.1), within=0.2).verdict == "met"
    assert judge(searched(-0.3), within=0.2).verdict == "missed"
    assert judge(searched(None), within=0.2).verdict == "cannot tell"
    assert judge(searched(0.1, None), within=0.2).verdict == "cannot tell"
    failed = recorded((case("bert", "failed", reason="killed"), None))
    assert judge(failed, within=0.2) == judges.Judgement("missed", "failed: killed")


def product(dtype: str, rate: float, status: str = "ok", reason: str = "") -> tuple[Any, Any]:
    return (case(f"gemm {dtype}", status, reason=reason, kind="hardware", work={"dtype": dtype}),
            {"rank_flops_per_s": rate})


def test_products_are_compared_with_the_declared_peak_and_with_each_other() -> None:
    rates = (product("bf16", 6e14), product("bf16", 7e14), product("fp8_e4m3", 12e14))
    told = judges.peak(recorded(*rates, bf16=1e15, fp8=2e15), share=0.5)
    assert told.verdict == "met" and "fp8_e4m3 1200 TFLOP/s (60.0% of declared)" in told.detail
    assert judges.peak(recorded(*rates, bf16=1e15, fp8=3e15), share=0.5).verdict == "missed"
    assert judges.peak(recorded(*rates), share=0.5).verdict == "cannot tell"
    bad = product("fp16", 0, "wrong", "3 wrong elements")
    told = judges.peak(recorded(*rates, bad, bf16=1e15, fp8=2e15, fp16=1e15), share=0.5)
    assert told == judges.Judgement("missed", "gemm fp16: wrong: 3 wrong elements")
    assert judges.peak(recorded(*rates, bad, bf16=1e15), share=0.5).verdict == "met"
    unknown = judges.peak(recorded(*rates, bad), share=0.5)
    assert unknown.verdict == "cannot tell" and "bf16 700 TFLOP/s" in unknown.detail
    assert judges.peak(recorded(bad), share=0.5).verdict == "cannot tell"
    assert judges.peak(recorded(bad, fp16=1e15), share=0.5).verdict == "missed"
    fp8 = judges.faster(recorded(*rates), "fp8_e4m3", "bf16")
    assert fp8 == judges.Judgement("met", "1.71 times as fast as bf16")
    assert judges.faster(recorded(rates[1]), "fp8_e4m3", "bf16").verdict == "cannot tell"
    for reason, verdict in (("CaseError: torch 2.13 has no product of fp8_e4m3 on cuda", "skipped"),
                            ("3 of 9 elements", "missed")):
        other = product("fp8_e4m3", 0, "failed", reason)
        assert judges.faster(recorded(rates[0], other), "fp8_e4m3", "bf16").verdict == verdict
        has_it = recorded(rates[0], other, fp8=2e15)
        assert judges.faster(has_it, "fp8_e4m3", "bf16").verdict == "missed"


def test_mfu_stands_beside_both_peaks() -> None:
    def step(mfu: float | None, of_measured: float | None) -> tuple[Any, Any]:
        return (case("resnet50 single", "ok", work={"model": "resnet50", "dtype": "bf16"}),
                {"mfu": mfu, "mfu_of_measured": of_measured})

    told = judges.mfu(recorded(step(0.04, 0.05), step(0.02, 0.03)), 0.03, "resnet50 *")
    assert told == judges.Judgement(
        "met", "resnet50 bf16 4.0% of declared; resnet50 bf16 5.0% of measured")
    assert judges.mfu(recorded(step(0.02, 0.03)), least=0.03).verdict == "missed"
    unknown = judges.mfu(recorded(step(None, 0.05)), least=0.03)
    assert unknown.verdict == "cannot tell" and "5.0% of measured" in unknown.detail
    bad = (case("resnet50 single", "failed", reason="OOM"), {"mfu": None})
    assert judges.mfu(recorded(bad), least=0.03).verdict == "cannot tell"
    declared = judges.mfu(recorded(bad, bf16=1e15), least=0.03)
    assert declared == judges.Judgement("missed", "resnet50 single: failed: OOM")


def test_power_and_clocks_of_a_gpu_are_to_be_read() -> None:
    def used(**values: Any) -> Any:
        return evidence(case("a", "ok", usage=Usage(**{
            "passes": 1, "mean_power_w": 400.0, "energy_of": "cpu and gpu", "clock_low_mhz": 1500,
            "clock_high_mhz": 1980, "clock_of": "gpu", "throttled_by": ("power cap",), **values})))

    assert judges.gpu_read(used()) == judges.Judgement(
        "met", "mean power of a case 400 to 400 W, clocks 1500 to 1980 MHz, lowered by power cap")
    assert judges.gpu_read(used(clock_of="cpu")).detail == "no clock of a GPU was read"
    assert judges.gpu_read(used(energy_of="cpu")).verdict == "missed"


def test_memory_is_within_a_share_of_what_was_measured() -> None:
    def held(peak: int) -> SimpleNamespace:
        return case("a", "ok", memory={"0": {"peak": peak, "peak_of": "cuda allocated"}},
                    memory_bytes=100)

    assert judges.memory(evidence(held(100), held(90)), within=0.2).verdict == "met"
    assert judges.memory(evidence(held(100), held(70)), within=0.2).verdict == "missed"
