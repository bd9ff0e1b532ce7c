"""Files of other tools under mpirun, as they are but for what makes them small."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from reading import QUICK, read

from hpcbench.kinds.training.plan.workload import training_of
from launcher import ROOT, MpiLauncher

SMALL = {"measure.passes": 1, "benchmarks.0.backend": "gloo", "benchmarks.0.seq_length": 16}


def words(*flags: str, **keys: Any) -> list[str]:
    given = SMALL | {key.replace("__", "."): value for key, value in keys.items()}
    return [*flags, "--model", "transformer-tiny", "--warmup", "1", "--iters", "2", *QUICK,
            *(word for key, value in given.items() for word in ("--set", f"{key}={value}"))]


@pytest.mark.mpi
def test_a_file_of_torchscale_trains_on_each_number_of_gpus(mpirun: MpiLauncher) -> None:
    config = yaml.safe_load((ROOT / "tests/data/torchscale.yaml").read_text())
    config["profiling"]["enabled"] = False  # there is no nsys here
    second = {"benchmarks__1__backend": "gloo", "benchmarks__1__seq_length": 16,
              "benchmarks__0__batch_size": 2, "benchmarks__1__batch_size": 2,
              "benchmarks__1__world_size": 2}
    job = mpirun.run(2, *words(**second), config=config).check()
    cases = read(job.folder).results.cases
    assert {(training_of(item.case).strategy, item.case.world_size, item.status)
            for item in cases} == {("single", 1, "ok"), ("data", 2, "ok")}
    assert job.folder is not None and job.folder.name.startswith("resnet50_scaling_test-")


@pytest.mark.mpi
def test_a_file_of_the_candle_suite_trains_as_specified(mpirun: MpiLauncher) -> None:
    config = json.loads((ROOT / "tests/data/candle.json").read_text())
    config["hardware"]["device_type"] = "cpu"
    config["parallelization"] = {"strategy": "pipeline", "model_parallel_size": 2}
    job = mpirun.run(2, *words(), config=config).check()
    (item,) = read(job.folder).results.cases
    work = training_of(item.case)
    assert (item.status, work.strategy, work.pp) == ("ok", "pipeline", 2)
    assert job.stdout.count("\nBenchmark Results\n") == 1
    notes = json.loads((job.folder / "summary.json").read_text())["notes"]
    assert notes[-1] == "benchmarks[0]: model transformer-tiny instead of transformer-large"
