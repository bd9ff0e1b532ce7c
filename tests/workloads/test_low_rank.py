"""Adapters: what a single process computes passes, every fault is found, and counts are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hpcbench.kinds.training.block import LIBRARIES
from hpcbench.kinds.training.plan import planner
from hpcbench.kinds.training.plan.models import EXACT, TARGETS, flops, recomputed, shape_of
from hpcbench.kinds.training.plan.spec import Degrees, adapters_of
from hpcbench.kinds.training.plan.step import (
    ActivationLayout,
    block_bytes,
    embedding_bytes,
    head_bytes,
    unkept_bytes,
)
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.model import Model, Part, mean_loss
from hpcbench.kinds.training.run.parity import _Comparison, parity
from hpcbench.kinds.training.run.strategies.base import Batch, PhaseClock
from hpcbench.kinds.training.run.strategies.data import LowRank as Alone
from hpcbench.kinds.training.run.strategies.data import draft, fill, is_adapter, low_rank
from hpcbench.operations.place import Place
from workloads.training_cases import SIZES, alone, saved_bytes, training

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
WIDE: dict[str, Any] = {**SIZES, "hidden": 128}
"""Of a model with a gate: rows of its weights are blocks of 64 then."""


LIBRARYS: dict[str, Any] = {"library": "transformers", "model": "mistral-7b", "sizes": WIDE}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with alone() as found:
        yield found


@pytest.mark.parametrize("name", ["lora", "qlora"])
@pytest.mark.parametrize(("options", "changes"), [
    ({"over": "single"}, {"dtype": "bf16", "checkpointing": "selective"}),
    ({"over": "data", "targets": "attention", "rank": 4}, {}),
    ({"over": "data"}, {"dtype": "fp16", "model": "bert-large", "accumulation": 2}),
    ({"over": "fsdp"}, {"dtype": "bf16", "checkpointing": "full"}),
    ({"over": "fsdp", "reshard": False}, {"dtype": "fp16", "accumulation": 2}),
    ({"over": "fsdp"}, {"model": "llama3-8b", "sizes": WIDE, "optimizer": "sgd"}),
    ({"over": "data", "targets": "qv"}, {"checkpointing": "operators", "dtype": "bf16"}),
    ({"over": "data", "variant": "dora"}, {"dtype": "bf16", "model": "bert-large"}),
    ({"over": "fsdp", "variant": "dora", "targets": "qv"}, {"checkpointing": "full"}),
    ({"over": "fsdp"}, {"checkpointing": "offload", "dtype": "bf16"}),
    ({"over": "fsdp", "targets": "mlp"}, {"checkpointing": "attention", "dtype": "bf16"}),
    ({"over": "fsdp"}, LIBRARYS | {"checkpointing": "operators", "dtype": "bf16"}),
    ({"over": "data"}, LIBRARYS | {"model": "bert-large", "dtype": "fp16"})])
def test_adapters_in_one_process_are_right(
    place: Place, name: str, options: dict[str, Any], changes: dict[str, Any],
) -> None:
    if (name, options.get("variant")) == ("qlora", "dora"):
        return  # a skip of every plan
    found = parity(training(name, options, **changes), place, low_rank)
    assert found.wrong is None, found.wrong.words
    assert found.on == "the model"
    assert 0.02 < found.share < 0.5


@pytest.mark.parametrize("variant", ["lora", "dora"])
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_weights_that_are_transposed_have_adapters(
    place: Place, targets: str, variant: str,
) -> None:
    work = training("lora", {"over": "data", "targets": targets, "variant": variant},
                    library="transformers", model="gpt2", sizes=SIZES | {"hidden": 96},
                    dtype="bf16")
    found = parity(work, place, low_rank)
    assert found.wrong is None, found.wrong.words
    assert len(low_rank(work, place).full_weights()) == (
        2 * (2 + (variant == "dora")) * (4 if targets == "all" else 2))


class Unfrozen(Alone):
    """A base that is trained, too."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        for parameter in self.plain.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return super().make_optimizer()


class Drifting(Alone):
    """A base that changes without a gradient."""

    def update(self, phases: PhaseClock) -> None:
        super().update(phases)
        with torch.no_grad():
            self.plain.get_parameter("head.norm.weight")[0] *= 1 + 2.0**-23


class PackedDrifting(Alone):
    """One weight of 4 bits that becomes another."""

    def update(self, phases: PhaseClock) -> None:
        super().update(phases)
        weight = self.plain.get_parameter("blocks.1.mlp.up.base_layer.weight")
        weight.data[3] ^= 1


class Untrained(Alone):
    """An optimizer that never heard of the adapters: nothing is learned."""

    def update(self, phases: PhaseClock) -> None:
        self.discard()


class Unlearned(Alone):
    """A step whose gradients are all 0."""

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(batch, phases)
        for parameter in self.plain.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        return loss


class Unscaled(Alone):
    """Adapters that are added without alpha / rank."""

    def build(self) -> Model:
        model = super().build()
        for module in model.modules():
            if hasattr(module, "scaling"):
                module.scaling["default"] = 1.0
        return model


class Zeroed(Alone):
    """B as peft begins with it: gradients of A that are 0 say nothing of A."""

    def build(self) -> Model:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.zero_()
        return model


class Unpacked(Alone):
    """Weights that were to be held in 4 bits."""

    def fill(self, model: Model, part: Part) -> None:
        options = dict(self.spec.options)
        plain = training("lora", options, dtype=self.spec.dtype)
        fill(model, part, plain, self.place.device)

    def draft(self) -> Model:
        return draft(training("lora", dict(self.spec.options), dtype=self.spec.dtype))


@pytest.mark.parametrize(("name", "kind", "what"), [
    ("lora", Unfrozen, "gradients"), ("lora", Drifting, "frozen weights after a step"),
    ("qlora", Drifting, "frozen weights after a step"),
    ("qlora", PackedDrifting, "frozen weights after a step"),
    ("lora", Untrained, "updated weights"), ("qlora", Untrained, "updated weights"),
    ("qlora", Unlearned, "gradients"), ("lora", Unscaled, "losses"), ("lora", Zeroed, "losses"),
    ("qlora", Unpacked, "gradients")])
def test_what_differs_is_found(place: Place, name: str, kind: type[Alone], what: str) -> None:
    found = parity(training(name, {"over": "single"}), place, kind).wrong
    assert found.what == what


@pytest.mark.parametrize("kind", [Untrained, Unlearned])
def test_adapters_that_do_not_change_are_reported_whatever_the_optimizer_should_do(
    place: Place, kind: type[Alone], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An expectation that is as wrong as what is tried does not hide it."""
    for what in ("_gradients", "_weights"):
        monkeypatch.setattr(f"hpcbench.kinds.training.run.parity.{what}", lambda *_: [
            _Comparison("all", 0.0, 1.0, "", "")])
    found = parity(training("qlora", {"over": "single"}, optimizer="sgd"), place, kind).wrong
    assert found.what == ("norms of all gradients of adapters" if kind is Unlearned else
                          "adapters after a step")


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_adapters_that_are_not_exchanged_are_found(place: Place, name: str) -> None:
    """The first of two replicas alone has gradients of its own samples."""
    found = parity(training(name, {"over": "data"}, degrees=Degrees(dp=2)), place, Alone).wrong
    assert found.what == "gradients"
    assert found.n_wrong > 18


def test_large_models_are_tried_on_a_twin_that_can_be_packed(
    place: Place, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "MOST_S", 0.0)  # the model itself takes long
    work = training("qlora", {"over": "single"}, model="gpt2", sizes={"layers": 4})
    found = parity(work, place, low_rank)
    assert found.wrong is None
    twin, _, rest = found.on.partition(";")
    assert twin == "a small model of 2 layers, hidden 64, 2 heads, 16 tokens"
    assert rest.startswith(" the timed model is not compared with one process, because it is "
                           "expected to take")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("variant", ["lora", "dora"])
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("model", ["gpt2", "bert-large", "mistral-7b"])
def test_peft_makes_as_many_adapters_as_are_counted(
    model: str, targets: str, variant: str, library: str,
) -> None:
    work = training("lora", {"targets": targets, "rank": 16, "variant": variant}, model=model,
                    sizes={"layers": 3}, library=library)
    made = draft(work)
    trained = {name: item.numel() for name, item in made.named_parameters() if item.requires_grad}
    assert sum(trained.values()) == work.adapters
    assert all(map(is_adapter, trained))
    whole = sum(item.numel() for item in made.parameters())
    assert whole == work.parameters + work.adapters


@pytest.fixture
def _unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer what the library asks of positions: nothing is known of them on the meta device."""
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices",
                        lambda positions: None)


@pytest.mark.usefixtures("_unpacked")
@pytest.mark.parametrize(("library", "checkpointing", "targets"), [
    ("hpcbench", "none", "all"), ("hpcbench", "full", "attention"), ("hpcbench", "full", "all"),
    ("hpcbench", "attention", "qv"), ("hpcbench", "none", "qv"), ("hpcbench", "full", "mlp"),
    ("hpcbench", "attention", "mlp"), ("transformers", "full", "mlp"),
    ("transformers", "operators", "all"), ("transformers", "full", "attention")])
@pytest.mark.parametrize("model", ["gpt2", "bert-large", "mistral-7b"])
def test_flops_are_those_that_torch_counts(
    model: str, targets: str, checkpointing: str, library: str,
) -> None:
    work = training("lora", {"targets": targets}, model=model, sizes=WIDE | {
        "hidden": 192, "layers": 3}, checkpointing=checkpointing, library=library)
    made, shape = draft(work), shape_of(work)
    tokens = torch.zeros((2, shape.seq_length), dtype=torch.int64, device="meta")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        mean_loss(made(tokens), tokens).backward()
    adapters = adapters_of(work)
    told = dict(flops(shape, 2, adapters))
    assert tuple(told) == EXACT
    again = recomputed(shape, 2, checkpointing, "counted", adapters)
    # fused attention has a gradient of the first keys, too, which nobody needs
    idle = 2 * 2 * shape.seq_length**2 * shape.hidden if targets == "qv" else 0
    assert counter.get_total_flops() + idle == told["counted"] + again
    halves = 0.5 if shape.causal else 1
    passes = 3 * shape.layers - 2 * (targets == "mlp")
    attention = passes * 4 * shape.seq_length**2 * shape.hidden * 2
    assert told["counted"] - told["megatron"] == attention * (1 - halves)


def kept_bytes(work: Training, arithmetic: str) -> int:
    """Return what a forward pass of 2 samples leaves for backward, but for weights."""
    model = draft(work)
    device = torch.device("cpu")
    for part in model.parts():
        fill(model, part, work, device)
    model.complete(device)
    return saved_bytes(model.bfloat16() if arithmetic == "cast" else model, arithmetic)


@pytest.mark.parametrize(("name", "arithmetic", "targets"), [
    ("lora", "fp32", "attention"), ("lora", "autocast", "all"), ("lora", "cast", "all"),
    ("qlora", "autocast", "attention"), ("qlora", "autocast", "all"),
    ("lora", "fp32", "qv"), ("lora", "autocast", "qv"), ("qlora", "autocast", "mlp"),
    ("lora", "cast", "mlp")])
@pytest.mark.parametrize(("model", "library"), [
    (model, library) for model in ("gpt2", "mistral-7b", "bert-large") for library in LIBRARIES])
def test_what_a_forward_pass_keeps(
    model: str, library: str, name: str, targets: str, arithmetic: str,
) -> None:
    """Of blocks behind the first, whose inputs need a gradient; the first keeps a little less."""
    hidden = 256 if model == "mistral-7b" else 192
    if (name, model, library) == ("qlora", "gpt2", "transformers"):
        return  # a skip of every plan

    def made(layers: int, checkpointing: str = "none") -> Training:
        sizes = {"layers": layers, "hidden": hidden, "seq_length": 40, "vocab": 255}
        return training(name, {"targets": targets}, model=model, sizes=sizes,
                        dtype="fp32" if arithmetic == "fp32" else "bf16",
                        checkpointing=checkpointing, library=library)

    adapters, shape, tokens = adapters_of(made(1)), shape_of(made(1)), 2 * 40
    kept = {"fp32": ActivationLayout(adapters=adapters),
            "cast": ActivationLayout(2, 2, adapters=adapters),
            "autocast": ActivationLayout(2, 4, copies=True, adapters=adapters)}[arithmetic]
    of_block = block_bytes(shape, kept)
    ends = embedding_bytes(shape, kept) + head_bytes(shape, kept)
    one, two = (kept_bytes(made(layers), arithmetic) for layers in (1, 2))
    # to the statistics of its norms, and the angles that the library keeps once
    assert two - one == pytest.approx(tokens * of_block, abs=tokens * 40)
    ends -= unkept_bytes(shape, kept)
    assert 0.7 * tokens * (of_block + ends) <= one <= 1.02 * tokens * (of_block + ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_in_4_bits_are_what_the_paper_states(dtype: torch.dtype) -> None:
    """Dettmers et al., QLoRA, section 3 and appendix E: levels are normal quantiles."""
    from bitsandbytes.functional import dequantize_4bit

    from hpcbench.kinds.training.run.models.nf4 import quantised, unpacked

    weight = torch.empty(192, 320).normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    packed, state = quantised(weight.to(dtype))
    assert (packed.dtype, packed.numel()) == (torch.uint8, weight.numel() // 2)
    assert state.absmax.dtype == torch.uint8
    found = unpacked(packed, state)
    torch.testing.assert_close(dequantize_4bit(packed, state).double(), found,
                               rtol=torch.finfo(dtype).eps, atol=1e-9)
    blocks, scales = weight.to(dtype).double().view(-1, 64), found.view(-1, 64).abs().amax(dim=1)
    assert float((blocks.abs().amax(dim=1) / scales - 1).abs().max()) < 0.05  # 8 bits of scale
    levels = state.code.double()
    assert (float(levels[0]), float(levels[7]), float(levels[15])) == (-1, 0, 1)
    ours = torch.distributions.Normal(0, 1).icdf(torch.linspace(0.9677083, 0.5, 9).double())[:-1]
    torch.testing.assert_close(levels[8:].flip(0), ours / ours[0], rtol=0, atol=2e-4)
    nearest = (blocks[:, :, None] / scales[:, None, None] - levels).abs().argmin(dim=2)
    best = levels[nearest] * scales[:, None]
    off = (best - found.view(-1, 64)).abs() / scales[:, None]
    assert float((off > 0.31).double().mean()) == 0
    assert float((off > 1e-6).double().mean()) < 0.03  # those between two levels
