"""Compiled trainings: one graph for all blocks, right, nothing compiled in a step, no more memory.

Most of it is tried without code for the CPU, which takes a compiler seconds: torch captures the
graphs, and divides what is kept between forward and backward, all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.step import ActivationLayout, block_bytes, recomputed_bytes
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.models import build
from hpcbench.kinds.training.run.models.build import forget, graphs, make_loss, make_model
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.operations.place import Place
from workloads.training_cases import SIZES, alone, training

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch, to itself
              pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
              pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with alone() as found:
        yield found
    forget()


@pytest.fixture
def _uncoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BACKEND", "aot_eager_decomp_partition")


def stepped(work: Training, place: Place) -> TrainingOperation:
    """Return an operation that has taken two right steps."""
    operation = TrainingOperation(work, place, validate=True)
    operation.prepare()
    for _ in range(2):
        operation.run()
        assert operation.check() is None
    return operation


@pytest.mark.soak
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_code_for_the_cpu_is_right(place: Place, checkpointing: str) -> None:
    stepped(training("single", compile=True, checkpointing=checkpointing), place).close()


@pytest.mark.usefixtures("_uncoded")
@pytest.mark.parametrize(("strategy", "options", "changes", "count"), [
    ("lora", {"over": "fsdp"}, {"dtype": "bf16"}, 3),  # the first block's input has no gradient
    ("moe", {"ep": 1, "load": "router"}, {"model": "moe-tiny", "checkpointing": "full",
     "sizes": SIZES | {"heads": 4, "kv_heads": 2}}, 3),  # of experts' blocks attention
    *(pytest.param(*case, marks=pytest.mark.soak) for case in (
        ("single", {}, {"dtype": "bf16"}, 2),
        ("fsdp", {}, {"library": "transformers", "model": "mistral-7b", "dtype": "bf16",
                      "checkpointing": "operators"}, 2),
        ("data", {}, {"model": "mistral-7b", "accumulation": 2}, 2),
        ("fsdp", {}, {"checkpointing": "selective", "sizes": SIZES | {"layers": 4}}, 3),
        ("lora", {"over": "data"}, {"library": "transformers", "model": "gpt2", "dtype": "fp16",
                                    "sizes": SIZES | {"hidden": 96}}, 3),
        ("lora", {"over": "data"}, {"checkpointing": "operators", "model": "bert-large"}, 3),
        ("qlora", {"over": "data"}, {"dtype": "bf16"}, 3)))])
def test_all_blocks_are_one_graph(
    place: Place, strategy: str, options: dict[str, Any], changes: dict[str, Any], count: int,
) -> None:
    forget()
    before = graphs()
    stepped(training(strategy, options, compile=True, **changes), place).close()
    assert graphs() - before == 2 * count  # for the one that is compared, and the one that is timed


@pytest.mark.usefixtures("_uncoded")
def test_what_is_compiled_in_a_step_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch,
) -> None:
    operation = stepped(training("single", compile=True), place)
    short = replace(operation._spec, seq_length=8)
    monkeypatch.setattr(operation, "_loader", Loader(short, place.device))
    operation.run()
    found = operation.check()
    assert found.words == ("2 of 2 graphs are not those of a single process, first graph: got "
                           "compiled within a step, expected compiled before the first one")
    operation.close()


@pytest.mark.usefixtures("_uncoded")
@pytest.mark.parametrize(("model", "library", "checkpointing"), [
    ("mistral-7b", "hpcbench", "none"), *(pytest.param(*case, marks=pytest.mark.soak) for case in (
        ("mistral-7b", "hpcbench", "operators"), ("mistral-7b", "hpcbench", "full"),
        ("bert-large", "hpcbench", "none"), ("gpt2", "transformers", "operators")))])
def test_a_compiled_block_keeps_no_more_than_is_predicted(
    model: str, library: str, checkpointing: str,
) -> None:
    sizes = {"layers": 1, "hidden": 192, "seq_length": 40, "vocab": 256}
    work = training("single", model=model, sizes=sizes, compile=True, library=library,
                    checkpointing=checkpointing)
    forget()
    one, three = (kept_bytes(replace(work, layers=layers)) for layers in (1, 3))
    shape, kept = shape_of(work), ActivationLayout(2, 4, copies=True)
    predicted = (block_bytes(shape, kept) if checkpointing == "none" else
                 recomputed_bytes(shape, kept, checkpointing))
    assert 0.5 * predicted < (three - one) / (2 * 2 * 40) <= predicted


def kept_bytes(work: Training) -> int:
    """Return what a forward pass of 2 samples leaves, but for weights and random generators."""
    model, loss = make_model(work), make_loss(work)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    widths = {tuple(parameter.shape) for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        weights = {tuple(tensor.shape), tuple(tensor.t().shape)} if tensor.dim() == 2 else set()
        if (tensor.dtype != torch.uint8 and not weights & widths
                and storage.data_ptr() not in own):
            found[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros((2, work.seq_length), dtype=torch.int64)
    for hooks in (nullcontext(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)):
        with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
            loss(model(tokens), tokens)
    return sum(storage.nbytes() for storage in found.values())
