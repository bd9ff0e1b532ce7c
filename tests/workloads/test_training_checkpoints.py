"""Checkpoints while a training goes on: what they hold, and disks that do not take them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.predict import checkpoint_bytes
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.runner import TrainingOperation
from workloads.training_cases import alone, training


@contextmanager
def begun(work: Training) -> Iterator[TrainingOperation]:
    with alone() as place:
        operation = TrainingOperation(work, place, validate=False)
        try:
            yield operation
        finally:
            operation.close()


def take(operation: TrainingOperation, steps: int) -> dict[str, Any]:
    for _ in range(steps):
        operation.prepare()
        operation.run()
    return operation.answer()


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(("strategy", "changes"), [
    ("single", {}), ("single", {"model": "bert-large", "optimizer": "sgd"}), ("zero1", {}),
    ("fsdp", {"dtype": "bf16"})])
def test_the_last_checkpoint_has_all_that_is_needed_to_go_on(
    tmp_path: Path, strategy: str, changes: dict[str, Any],
) -> None:
    work = training(strategy, checkpoint_every=2, checkpoint_folder=str(tmp_path), **changes)
    with begun(work) as operation:
        told = take(operation, 5)["checkpoint"]
        (folder,) = tmp_path.glob("*/*")
        stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata.values()
        assert sum(one.size.numel() * one.properties.dtype.itemsize for one in stored
                   if isinstance(one, TensorStorageMetadata)) == checkpoint_bytes(work)
        assert len(told["stalls_s"]) == 2 and min(told["stalls_s"]) > 0
        assert checkpoint_bytes(work) < told["bytes"] < 1.5 * checkpoint_bytes(work)
        name = "model.head.norm.weight"
        loaded = {name: torch.zeros(work.hidden)}
        dcp.load(loaded, checkpoint_id=folder)
        assert loaded[name].any()
    assert not [*tmp_path.iterdir()]


def test_a_disk_that_takes_no_more_fails_the_case_in_one_line(tmp_path: Path) -> None:
    work = training("single", checkpoint_every=1, checkpoint_folder=str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with begun(work) as operation:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
        try:
            with pytest.raises(CaseError) as raised:
                take(operation, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_made_fails_the_case(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    work = training("single", checkpoint_every=1, checkpoint_folder=str(tmp_path / "file"))
    with alone() as place, pytest.raises(CaseError, match="file"):
        TrainingOperation(work, place, validate=False)
