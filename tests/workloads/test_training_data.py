"""Every layout of the ranks sees the same global batch, and a new one in each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hpcbench.errors import CaseError, FileError
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run import data
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.operations.token_file import TokenFile, open_tokens, sidecar
from workloads.training_cases import alone, training

CPU = torch.device("cpu")


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_replicas_divide_one_global_batch(dp: int) -> None:
    whole = training("single", batch_size=8)
    part = training("single", batch_size=8 // dp, degrees=Degrees(dp=dp))
    for step in (0, 3):
        parts = [Loader(part, CPU).batch(step, replica * 8 // dp, 8 // dp)
                 for replica in range(dp)]
        for ours, theirs in zip(Loader(whole, CPU).batch(step, 0, 8), zip(*parts, strict=True),
                                strict=True):
            assert torch.equal(ours, torch.cat(theirs))


def test_tokens_are_new_in_every_step_and_sample_and_follow_each_other() -> None:
    spec = training("single", batch_size=16)
    seen = set()
    for step in range(4):
        tokens, targets = Loader(spec, CPU).batch(step, 0, 16)
        assert tokens.shape == targets.shape == (16, spec.seq_length)
        assert tokens.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < spec.vocab
        seen |= {tuple(sample) for sample in tokens.tolist()}
    assert len(seen) == 4 * 16


def from_file(path: Path, tokens: npt.NDArray[np.int64], **changes: Any) -> Training:
    tokens.astype("<u2").tofile(path)
    return training("single", data=str(path), batch_size=4, **changes)


def test_samples_are_the_stretches_of_a_file_on_every_layout(tmp_path: Path) -> None:
    tokens = np.arange(16 * 10 + 1) % 96
    whole = from_file(tmp_path / "a.bin", tokens)
    halves = replace(whole, batch_size=2, dp=2)
    assert Loader(whole, CPU).source.n_samples == 10
    for step in range(6):  # 10 samples are 2 steps and a half
        seen, wanted = Loader(whole, CPU).batch(step, 0, 4)
        for index in range(4):
            first = (4 * step + index) % 10 * 16
            assert seen[index].tolist() == tokens[first:first + 16].tolist()
            assert wanted[index].tolist() == tokens[first + 1:first + 17].tolist()
        parts = [Loader(halves, CPU).batch(step, first, count)[0]
                 for first, count in ((0, 3), (3, 1))]
        assert torch.equal(seen, torch.cat(parts))


def test_a_file_without_a_whole_step_or_with_other_words_than_it_states_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.bin"
    short = from_file(path, np.zeros(64, np.int64))
    with pytest.raises(CaseError, match="has 64 tokens, a step takes 4 samples of 16 and one more"):
        Loader(short, CPU)
    liar = from_file(path, np.full(65, 96))
    sidecar(path).write_text('{"vocab": 96}')
    with pytest.raises(FileError, match="token 0 is 96, outside of the model's vocabulary"):
        Loader(liar, CPU).batch(0, 0, 4)


def test_a_step_reads_its_file_and_records_how_much(tmp_path: Path) -> None:
    spec = from_file(tmp_path / "a.bin", np.arange(16 * 5 + 1) % 96)
    with alone() as place:
        operation = TrainingOperation(spec, place, validate=True)
        for _ in range(2):
            operation.prepare()
            operation.run()
            assert operation.check() is None
        told = operation.answer()
    assert told["data"] == {"samples": 5, "steps": 2}
    assert told["parity"]["on"] == "the model"


def test_a_file_is_read_once_in_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a file that declares no vocabulary is read; its reference takes the open one."""
    def opened(path: Path, vocab: int) -> TokenFile:
        read.append(path)
        return open_tokens(path, vocab)

    spec, read = from_file(tmp_path / "a.bin", np.arange(16 * 10 + 1) % 96), []
    monkeypatch.setattr(data, "open_tokens", opened)
    with alone() as place:
        TrainingOperation(spec, place, validate=True)
    assert read == [tmp_path / "a.bin"]
