"""A package of somebody else's, installed beside hpcbench: listed, planned, run and validated."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import NOT_DRAWN, ONCE, read

from hpcbench.kinds.primitive.plan.workload import primitive_of
from launcher import ROOT, MpiLauncher
from packages import hpcbench, install, offer, path_with

SWEEP = {
    "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": NOT_DRAWN,
    "launch": {"timeout_s": 30}, "benchmarks": [
        {"kind": "primitive", "primitive": ["tp_columnwise", "fsdp_forward"],
         "m": 64, "n": 32, "k": 16, "order": "AG_before",
         "implementations": {"torch": {}, "broadcasts": {"ahead": [True, False]}}},
        {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 32, "k": 16,
         "implementations": ["brittle", "miscounted"]},
        {"kind": "primitive", "primitive": "fsdp_forward", "model": "gpt2", "tokens": 8,
         "layer": "attention_out", "implementations": "torch"},
    ]}
BRITTLE = """
from hpcbench.plugins import ImplementationSpec
SPECS = [
    ImplementationSpec("brittle", "no class", {"tp_columnwise": "brittle:NoSuchClass"}),
    ImplementationSpec("miscounted", "1 / 0", {"tp_columnwise": "brittle:NoSuchClass"},
                       unfit=lambda primitive, problem: 1 / 0),
]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the built package, and with others that are broken."""
    target = install(ROOT / "tests/data/plugin", tmp_path_factory.mktemp("plugins"))
    (target / "brittle.py").write_text(BRITTLE)
    offer(target, "broken", "hpcbench.primitives", {
        "brittle": "brittle:SPECS", "broken": "no_such_module:SPEC",
        "thief": "hpcbench.kinds.primitive.plan.implementations:TP_MLP", "odd": "os.path:sep"})
    return target


def test_they_are_listed_and_a_broken_one_costs_only_itself(installed: Path) -> None:
    told = hpcbench(installed, "list", "--no-probe")
    row = next(line.split() for line in told.splitlines() if line.startswith("  broadcasts   ")
               and "AG_before" in line)
    assert row == ["broadcasts", "AG_before", "-", "-", "-", "-", "-"]
    assert "no broadcasts of tp_rowwise: partial sums must be added" in told
    assert ("example hpcbench-example 1.0: primitive fsdp_forward; torch of fsdp_forward; "
            "broadcasts of tp_columnwise") in " ".join(told.split())
    assert "broken 0.1: cannot be used: ModuleNotFoundError: No module named" in told
    assert "broken 0.1: cannot be used: there is a primitive tp_mlp already" in told
    assert "broken 0.1: cannot be used: offers a str, no PrimitiveSpec" in told


@pytest.mark.mpi
def test_they_are_planned_run_and_validated(mpirun: MpiLauncher, installed: Path) -> None:
    job = mpirun.run(2, config=SWEEP, env=path_with(installed)).check(1)
    planned = hpcbench(installed, "plan", job.command[-3], "--world-size", "2")
    assert "8 cases" in planned
    outcome = read(job.folder)
    found = {(primitive_of(item.case).primitive, primitive_of(item.case).implementation,
              primitive_of(item.case).k, dict(primitive_of(item.case).options).get("ahead")):
             (item.status, item.reason) for item in outcome.results.cases}
    absent = ("skipped", "no broadcasts of fsdp_forward: nobody has written it")
    (brittle,) = [item for item in outcome.results.cases
                  if primitive_of(item.case).implementation == "brittle"]
    assert brittle.status == "failed"
    assert "brittle:NoSuchClass cannot be loaded: module 'brittle' has no" in brittle.reason
    assert found == {
        ("tp_columnwise", "torch", 16, None): ("ok", ""),
        ("tp_columnwise", "broadcasts", 16, True): ("ok", ""),
        ("tp_columnwise", "broadcasts", 16, False): ("ok", ""),
        ("fsdp_forward", "torch", 16, None): ("ok", ""),
        ("fsdp_forward", "broadcasts", 16, None): absent,
        ("fsdp_forward", "torch", 768, None): ("ok", ""),
        ("tp_columnwise", "brittle", 16, None): ("failed", brittle.reason),
        ("tp_columnwise", "miscounted", 16, None): (
            "skipped", "its plug-in cannot plan it: ZeroDivisionError: division by zero"),
    }
    assert {item.n_wrong for item in outcome.results.cases if item.status == "ok"} == {0}
