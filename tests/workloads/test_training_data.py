"""The global batch is that of one process in each layout; weights are those of the seed."""

from __future__ import annotations

from collections.abc import Iterator
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
from hpcbench.kinds.training.run.models import model as draw
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import counted_normals, drawn
from hpcbench.kinds.training.run.parity import parity
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.kinds.training.run.strategies.data import low_rank
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Replica
from hpcbench.operations.place import Place
from hpcbench.operations.token_file import TokenFile, open_tokens, sidecar
from workloads.training_cases import IMAGES, alone, training

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


NORM = [1.0205587148666382, 1.019014835357666, 0.9919725656509399]
PRODUCT = [[-0.03151547536253929, -0.022563088685274124],
           [0.01384575292468071, 0.033914659172296524]]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with alone() as found:
        yield found


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "ON_DEVICE", frozenset({"cpu", "cuda"}))


def test_a_cpu_draws_what_it_always_drew() -> None:
    assert drawn("blocks.0.norm.weight", (3,), 0.02, 7, CPU).tolist() == NORM
    assert drawn("a.b", (2, 2), 0.02, 7, CPU).tolist() == PRODUCT


def test_the_hash_is_splitmix64() -> None:
    """The first five numbers of the seed 1234567, as other implementations of it print them."""
    known = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
             16408922859458223821)
    sums = [sum(number >> place & 0xFFFF for place in (0, 16, 32, 48)) - 2 * 0xFFFF
            for number in known]
    assert draw._sums(1234567, 0, 5, CPU).tolist() == sums


def test_numbers_of_a_gpu_are_of_mean_0_and_deviation_1(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted_normals(99, 400_000, CPU).double()
    assert abs(found.mean()) < 5 / 400_000**0.5 and abs(found.std() - 1) < 0.01
    assert abs(found[1:] @ found[:-1] / 400_000) < 0.01, "neighbours depend on each other"
    shares = [float((found.abs() < limit).double().mean()) for limit in (1, 2)]
    assert shares == pytest.approx([0.683, 0.954], abs=0.02), "not nearly normal"
    monkeypatch.setattr(draw, "_PIECE", 1000)
    assert torch.equal(counted_normals(99, 400_000, CPU).double(), found)
    assert not torch.equal(counted_normals(98, 10, CPU), counted_normals(99, 10, CPU))


@pytest.mark.parametrize("model", ["transformer-tiny", "resnet50"])
def test_a_device_that_draws_for_itself_has_its_weights_nowhere_else(
    model: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draw, "ON_DEVICE", frozenset({"meta"}))
    sizes = {"sizes": IMAGES} if model == "resnet50" else {}
    work = make_model(training("single", model=model, **sizes))
    for name, parameter in work.named_parameters():
        value = work.initial(name, tuple(parameter.shape), 1, torch.device("meta"))
        assert (value.device.type, value.dtype) == ("meta", torch.float32)
        assert value.shape == parameter.shape


@pytest.mark.parametrize(("kind", "name", "options"), [
    (Replica, "single", {}), (Fsdp, "fsdp", {}), (low_rank, "lora", {"over": "single"})])
def test_the_reference_has_the_weights_that_a_gpu_drew(
    place: Place, kind: type[Replica], name: str, options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_on_a_gpu(monkeypatch)
    found = parity(training(name, options, dtype="bf16"), place, kind)
    assert found.wrong is None and 0 < found.share < 0.5
