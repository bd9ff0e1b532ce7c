"""What the tests of real jobs read of a finished one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.reduce.results_file import open_results


@dataclass(frozen=True)
class Outcome:
    """The results of one job, with all samples read."""

    results: Results
    samples: dict[str, CaseSamples | None]

    def status(self) -> dict[str, str]:
        """Return status by label."""
        return {item.case.label: item.status for item in self.results.cases}

    def of_size(self, size_bytes: int) -> CaseResult:
        """Return the one case of this size."""
        found = [item for item in self.results.cases if item.case.workload.size_bytes == size_bytes]
        assert len(found) == 1, [item.case.label for item in found]
        return found[0]

    def codes(self) -> set[str]:
        """Return the codes of all findings."""
        return {finding.code for finding in self.results.findings}


def read(folder: Path | None) -> Outcome:
    """Read results.h5 of a results folder."""
    assert folder is not None
    with open_results(folder) as file:
        samples = {item.case.case_id: file.samples(item.case.case_id)
                   for item in file.results.cases}
        return Outcome(file.results, samples)


ONCE = {"passes": 1, "order": "planned", "canary": False, "noise_check_s": 0}
"""Measured once, in order, and nothing beside it: most tests are about something else."""
NOT_DRAWN = {"plots": False, "report": False}
"""Neither is read by most tests, and both together take a quarter of a small job."""
QUICK = tuple(word for setting in (
    "output.plots=false", "output.report=false", "measure.canary=false", "measure.noise_check_s=0")
    for word in ("--set", setting))
"""The same for a sweep that is as it is shipped: flags of ``hpcbench run``."""


def sweep(*sizes: str, **options: Any) -> dict[str, Any]:
    """Return a config that sweeps all_reduce on gloo over these sizes; options replace sections."""
    block = {"kind": "collective", "collective": "all_reduce", "backend": "gloo",
             "size": list(sizes)}
    block.update(options.pop("block", {}))
    measure = {**ONCE, "warmup": 1, "iterations": 3, **options.pop("measure", {})}
    return {"name": "test", "measure": measure, "output": NOT_DRAWN,
            "launch": {"timeout_s": 30}, "benchmarks": [block], **options}
