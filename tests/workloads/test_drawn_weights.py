"""Weights of the seed: those of a CPU stay what they were, those of GPUs are the same on any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hpcbench.kinds.training.run.models import model as draw
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import counted_normals, drawn
from hpcbench.kinds.training.run.parity import parity
from hpcbench.kinds.training.run.strategies.data import low_rank
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Replica
from hpcbench.operations.place import Place
from workloads.training_cases import IMAGES, alone, training

CPU = torch.device("cpu")
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
