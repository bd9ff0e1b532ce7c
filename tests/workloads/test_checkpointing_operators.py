"""Blocks that keep the results of products and compute the rest again: as predicted, and right."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcbench.kinds.training.block import LIBRARIES
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.step import ActivationLayout, recomputed_bytes, step_of
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import Model, mean_loss
from hpcbench.kinds.training.run.parity import parity
from hpcbench.kinds.training.run.strategies.data import low_rank
from hpcbench.kinds.training.run.strategies.replica import Replica as Single
from hpcbench.kinds.training.run.strategies.tensor import TensorParallel
from workloads.training_cases import alone, counting_place, training

FAMILIES = ["gpt2", "mistral-7b", "bert-large"]
SIZES: dict[str, Any] = {"layers": 1, "hidden": 192, "seq_length": 40, "vocab": 256}
SAMPLES = 2
TOKENS = SAMPLES * SIZES["seq_length"]


class Alive(TorchDispatchMode):
    """Everything that was computed and is still there, but for weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._weights = {own(item).untyped_storage().data_ptr() for item in model.parameters()}
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = own(tensor).untyped_storage()
                if storage.data_ptr() not in self._weights:
                    self._seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return found

    def total(self) -> int:
        """Return the bytes."""
        return sum(size for storage, size in self._seen.values() if not storage.expired())


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's part, which is there at last if it was communicated."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return getattr(local, "elem", local)


def left_by(model: Model, dtype: torch.dtype | None) -> int:
    """Return what a forward pass leaves; ``dtype`` is that of autocast."""
    tokens = torch.zeros((SAMPLES, SIZES["seq_length"]), dtype=torch.int64)
    context = torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()
    with Alive(model) as alive, context:
        loss = mean_loss(model(tokens), tokens)
    found = alive.total()
    assert loss.requires_grad  # it holds the graph
    return found


@pytest.mark.parametrize("arithmetic", ["fp32", "autocast", "cast"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_block_keeps_its_input_and_what_products_return(
    library: str, family: str, arithmetic: str,
) -> None:
    kept = {"fp32": ActivationLayout(), "autocast": ActivationLayout(2, 4, copies=True),
            "cast": ActivationLayout(2, 2)}[arithmetic]
    one = training("single", model=family, sizes=SIZES, checkpointing="operators",
                   library=library)
    models = [make_model(replace(one, layers=layers)) for layers in (1, 3)]
    if arithmetic == "cast":
        models = [model.bfloat16() for model in models]
    small, large = (left_by(model, torch.bfloat16 if arithmetic == "autocast" else None)
                    for model in models)
    assert large - small == 2 * TOKENS * recomputed_bytes(shape_of(one), kept, "operators")


@pytest.mark.parametrize("name", ["lora", "qlora"])
@pytest.mark.parametrize(("family", "library"), [
    ("gpt2", "hpcbench"), ("mistral-7b", "transformers")])
def test_with_adapters_it_keeps_their_products_too(
    family: str, library: str, name: str,
) -> None:
    sizes = SIZES | {"hidden": 256 if family == "mistral-7b" else 192}
    one = training(name, {"over": "single"}, model=family, sizes=sizes, library=library,
                   dtype="bf16", checkpointing="operators")
    found = []
    with alone() as place:
        for layers in (2, 4):
            strategy = low_rank(replace(one, layers=layers), place)
            found.append(left_by(strategy.plain, torch.bfloat16))
    kept = step_of(one).kept
    of_block = recomputed_bytes(shape_of(one), kept, "operators")
    assert found[1] - found[0] == 2 * TOKENS * of_block


@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_over_ranks_are_kept_whole(family: str, by_tokens: bool) -> None:
    found, ranks = [], 2
    for layers in (1, 3):
        work = training(
            "tensor", {"sequence_parallel": by_tokens}, model=family,
            sizes=SIZES | {"layers": layers}, checkpointing="operators",
            degrees=Degrees(tp=ranks), batch_size=SAMPLES)
        with counting_place(work) as place:
            strategy = TensorParallel(work, place)
            found.append(left_by(strategy.plain, None))
            strategy.close()
    kept = step_of(work).kept
    assert found[1] - found[0] == 2 * TOKENS * recomputed_bytes(
        shape_of(work), kept, "operators")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_changes_nothing(library: str, dtype: str) -> None:
    with alone() as place:
        found = parity(training("single", model="mistral-7b", sizes=SIZES | {"layers": 2},
                                checkpointing="operators", library=library, dtype=dtype),
                       place, Single)
    assert found.wrong is None
