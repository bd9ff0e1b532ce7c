"""ResNets: parity with batch norms, their predictions against torch, and their images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.any_model import ResNetShape, resnet_kept_bytes, running_bytes
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.models.model import BatchNorm, ResNet, mean_loss
from hpcbench.kinds.training.run.parity import Disparity, parity, parity_training
from hpcbench.kinds.training.run.strategies.base import Batch, PhaseClock
from hpcbench.kinds.training.run.strategies.replica import Fsdp
from hpcbench.kinds.training.run.strategies.replica import Replica as Single
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan
from workloads.test_training_predictions import rehearsed
from workloads.training_cases import IMAGES, alone, training

DTYPES = pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])


@pytest.fixture
def place() -> Iterator[Place]:
    with alone() as found:
        yield found


def images(name: str = "single", sizes: dict[str, Any] = IMAGES, **changes: Any) -> Training:
    return training(name, model="resnet50", sizes=sizes, **{"batch_size": 16, **changes})


@DTYPES
@pytest.mark.parametrize(("name", "kind"), [("single", Single), ("fsdp", Fsdp)])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
def test_torch_in_one_process_is_right(
    place: Place, dtype: str, name: str, kind: type[Single],
) -> None:
    sizes = IMAGES | {"image_size": 64}
    found = parity(images(name, sizes, dtype=dtype, batch_size=8, accumulation=2), place, kind)
    assert found.wrong is None
    assert found.on == "the model"
    assert 0 < found.share < 0.5


class ScaledGradients(Single):
    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(batch, phases)
        for parameter in self.plain.parameters():
            parameter.grad *= 2
        return loss


class WholeBatch(Single):
    """Batch norms that see all parts of a batch at once."""

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        loss = mean_loss(self.model(batch[0]), batch[1])
        loss.backward()
        return loss.detach()


class ForeignStatistics(Single):
    """Running statistics of another replica's images, as if they were broadcast."""

    def buffers(self) -> dict[str, torch.Tensor]:
        size = self.spec.batch_size
        other = Loader(self.spec, self.place.device).batch(0, size, size)
        model = self.build()
        model(other[0])
        return {name: buffer.clone() for name, buffer in model.named_buffers()}


class TwiceCounted(Single):
    """A batch that went through the model once more, to see what comes out."""

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        self.model(torch.zeros_like(batch[0]))
        return super().forward_backward(batch, phases)


def wrong(place: Place, kind: type[Single], **changes: Any) -> Disparity:
    found = parity(images(**changes), place, kind).wrong
    assert found is not None
    return found


@DTYPES
def test_wrong_gradients_are_found(place: Place, dtype: str) -> None:
    assert wrong(place, ScaledGradients, dtype=dtype).what == "gradients"
    unexchanged = wrong(place, Single, dtype=dtype, degrees=Degrees(dp=2))
    assert unexchanged.what == "gradients"
    assert unexchanged.n_wrong > 10 or dtype != "fp32"


@pytest.mark.parametrize(("kind", "what", "parts"), [
    (WholeBatch, "losses", 2), (ForeignStatistics, "running statistics", 1),
    (TwiceCounted, "running statistics", 1)])
def test_wrong_statistics_are_found(
    place: Place, kind: type[Single], what: str, parts: int,
) -> None:
    found = wrong(place, kind, batch_size=16 * parts, accumulation=parts)
    assert found.what == what


def test_what_is_tried_instead_of_a_resnet() -> None:
    """Few values in a batch norm are noise: fewer images are larger ones."""
    whole = images(sizes={}, batch_size=64)
    twin = parity_training(whole)
    assert (twin.layers, twin.width, twin.image_size, twin.classes) == (4, 8, 32, 128)
    assert parity_training(images(sizes={}, batch_size=1)).image_size == 128
    assert parity_training(images(sizes={}, batch_size=4, accumulation=2)).image_size == 96
    for same in (twin, images(), images(sizes=IMAGES | {"image_size": 48})):
        assert parity_training(same) is same
    assert parity_training(images(sizes=IMAGES | {"width": 64})).width == 8


def test_images_are_bytes_that_were_normed_and_new_in_every_step() -> None:
    spec = images(batch_size=2, degrees=Degrees(dp=2))
    seen = set()
    for step in range(2):
        for replica in range(2):
            pixels, classes = Loader(spec, torch.device("cpu")).batch(step, 2 * replica, 2)
            assert pixels.shape == (2, 3, 32, 32)
            assert pixels.dtype == torch.float32
            assert classes.shape == (2,)
            assert 0 <= int(classes.min()) <= int(classes.max()) < 10
            assert abs(float(pixels.mean())) < 0.05
            assert float(pixels.std()) == pytest.approx(1, abs=0.05)
            seen |= {image.numpy().tobytes() for image in pixels}
    assert len(seen) == 8
    one, two = (Loader(images(batch_size=size), torch.device("cpu")).batch(3, 0, size)[0]
                for size in (1, 2))
    assert torch.equal(one[0], two[0])


@pytest.mark.parametrize("blocks", [(1, 1, 1, 1), (2, 2, 1, 1)])
@pytest.mark.parametrize("arithmetic", ["fp32", "autocast", "cast"])
def test_what_a_forward_pass_keeps(arithmetic: str, blocks: tuple[int, ...]) -> None:
    """To the byte, but for the batch norms' weights that are cast."""
    shape, samples = ResNetShape(blocks, 8, 10, 67), 3
    model = ResNet(shape)
    if arithmetic == "cast":
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    own = {item.untyped_storage().data_ptr() for item in (*model.parameters(), *model.buffers())}
    cast = {form for item in model.parameters() if item.dim() > 1 for form in (
        tuple(item.shape), tuple(item.transpose(0, 1).shape))
            } if arithmetic == "autocast" else set()
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tuple(tensor.shape) not in cast:
            found[storage.data_ptr()] = storage
        return tensor

    batch = torch.zeros(samples, 3, 67, 67, dtype=torch.bfloat16 if arithmetic == "cast" else None)
    mixed = (torch.autocast("cpu", dtype=torch.bfloat16) if arithmetic == "autocast" else
             nullcontext())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        mean_loss(model(batch), torch.zeros(samples, dtype=torch.int64))
    kept = sum(storage.nbytes() for storage in found.values())
    channels = sum(norm.num_features for norm in model.modules() if isinstance(norm, BatchNorm))
    element = 4 if arithmetic == "fp32" else 2
    expected = resnet_kept_bytes(shape, range(shape.layers), samples, element)
    assert kept - expected == (4 * channels if arithmetic == "cast" else 0)
    assert running_bytes(shape, range(shape.layers)) == sum(
        buffer.nbytes for buffer in model.buffers())


SMALL: dict[str, Any] = {"kind": "training", "model": "resnet50", "layers": 8, "width": 16,
                         "classes": 10, "image_size": 32, "batch_size": 16}
BLOCKS: list[dict[str, Any]] = [
    {"strategies": "single", "world_size": 1},
    {"strategies": {"fsdp": {}}, "layers": 4},
    {"optimizer": "sgd", "strategies": {
        "data": [{"bucket_mb": 1, "comm_hook": ["none", "powersgd"]}], "zero1": {},
        "fsdp": {"reshard": [True, False]}}},
    {"optimizer": "sgd", "strategies": {"hsdp": {}}, "dtype": "bf16", "accumulation": 2},
    {"strategies": "model", "world_size": 4, "accumulation": 2},
    {"strategies": {"pipeline": {"schedule": ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"]}},
     "world_size": 2, "dtype": "bf16"},
    {"optimizer": "sgd", "strategies": {"hybrid": {"pp": 2, "data": ["replicate", "fsdp"]}},
     "world_size": 4, "accumulation": 2}]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
def test_calls_and_what_is_held() -> None:
    blocks = [SMALL | more for more in BLOCKS]
    cases = make_plan(check_config({"benchmarks": blocks}, "test"), 8).cases
    assert not [case.skip for case in cases if case.skip]
    for work in (training_of(case) for case in cases):
        for stage in stages_of(work)[::max(work.pp - 1, 1)]:  # the first and the last
            expected = predict_stage(work, stage)
            called, told = rehearsed(work, stage.rank)
            assert called == {one.collective: (one.count, one.size_bytes)
                              for one in expected.calls}, work
            memory = moments(work, stage)[-1]
            assert (told["parameters"], told["gradients"], told["optimizer_state"]) == (
                memory.parameters, memory.gradients, memory.optimizer), work
