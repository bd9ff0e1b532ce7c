"""Low-rank adapters over frozen weights, which are copied or sharded as other strategies do it.

peft has the adapters. It takes seconds to import, so it is imported when a model is made.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from hpcbench.kinds.training.plan.adapters import TARGETS, is_narrow
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.registry import adapters_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import Held, local, local_bytes
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import Model, Part
from hpcbench.kinds.training.run.precision import make_optimizer
from hpcbench.kinds.training.run.strategies.base import Strategy
from hpcbench.kinds.training.run.strategies.data import Data
from hpcbench.kinds.training.run.strategies.fsdp import Fsdp
from hpcbench.kinds.training.run.strategies.replica import Replica, whole
from hpcbench.operations.data import DTYPES
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.operations.place import Place

# It warns of a kernel for inference that it cannot load, which nobody here needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
_INSERTED = re.compile(r"\.(base_layer|default)(?=\.)")
"""What peft adds to names: of the product, and of the one adapter that there is."""


def low_rank(spec: Training, place: Place) -> Strategy:
    kinds: dict[str, type[LowRank]] = {"single": LowRank, "data": Copies, "fsdp": Shards}
    return kinds[str(spec.option("over"))](spec, place)


class LowRank(Replica):
    """One rank has them: gradients and optimizer are those of the adapters."""

    def draft(self) -> Model:
        return draft(self.spec)

    def fill(self, model: Model, part: Part) -> None:
        fill(model, part, self.spec, self.place.device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.spec.optimizer, [
            parameter for parameter in self.plain.parameters() if parameter.requires_grad])

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((plain(name), one) for name, one in super().trained())

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return every gradient whole; of frozen weights there is to be none."""
        return {plain(name): item for name, item in super().full_gradients().items()}

    def full_weights(self) -> dict[str, torch.Tensor]:
        return {plain(name): whole(parameter) for name, parameter in self.plain.named_parameters()
                if is_adapter(name)}

    def frozen(self) -> dict[str, torch.Tensor]:
        return {plain(name): local(parameter.detach()).clone()
                for name, parameter in self.plain.named_parameters() if not is_adapter(name)}

    def held(self) -> Held:
        """Return the bytes that this rank holds; scales of packed weights count as parameters."""
        held = super().held()
        return replace(held, parameters=held.parameters + sum(
            map(local_bytes, scales_of(self.plain))))

    def weights(self) -> Iterator[torch.Tensor]:
        yield from super().weights()
        yield from scales_of(self.plain)


class Copies(LowRank, Data):
    """Every rank has them; gradients of adapters are averaged (DistributedDataParallel)."""


class Shards(LowRank, Fsdp):
    """Every rank has a part of each weight and of each adapter (fully_shard)."""


def draft(spec: Training) -> Model:
    """Return the model with its adapters, of which nothing has memory yet (meta)."""
    from peft import LoraConfig, inject_adapter_in_model

    adapters = adapters_of(spec)
    assert adapters is not None  # noqa: S101  (the strategy has a rank)
    if adapters.packed:  # before the model is made, for which its operators are looked up
        from hpcbench.kinds.training.run.models.nf4 import make_packed
    with torch.device("meta"):
        model = make_model(spec)
    if adapters.packed:
        make_packed(model, DTYPES[spec.dtype])
    names = "|".join(map(re.escape, TARGETS[adapters.targets]))
    transposed = spec.library != OWN_LIBRARY and spec.family == "gpt"
    inject_adapter_in_model(LoraConfig(
        r=adapters.rank, lora_alpha=int(spec.option("alpha")), lora_dropout=0.0, bias="none",
        fan_in_fan_out=transposed, target_modules=rf".+\.({names})"), model,
        low_cpu_mem_usage=True)
    return model


def plain(name: str) -> str:
    """Return what a parameter is called in the plain model; of adapters: ``...q.lora_A.weight``."""
    return _INSERTED.sub("", name)


def is_adapter(name: str) -> bool:
    return ".lora_" in name


def scales_of(model: Model) -> list[torch.Tensor]:
    """Return what belongs to weights in 4 bits and is no parameter."""
    if not getattr(model, "is_loaded_in_4bit", False):
        return []
    from hpcbench.kinds.training.run.models.nf4 import scales

    return list(scales(model))


def fill(model: Model, part: Part, spec: Training, device: torch.device) -> None:
    """Give a part of a draft its weights of the seed.

    B is random as A is. peft's is 0, with which no gradient of A could be compared with anything.
    """
    shape = shape_of(spec)
    for path, module in part.module.named_modules():
        for kind, parameter in list(module.named_parameters(recurse=False)):
            name = plain(part.prefix + f"{path}.{kind}".removeprefix("."))
            narrow = not parameter.requires_grad and is_narrow(shape, name)
            value = model.initial(name, tuple(parameter.shape), SEED, device).to(
                device, DTYPES[spec.dtype] if narrow else torch.float32)
            if hasattr(parameter, "quant_state"):
                from hpcbench.kinds.training.run.models.nf4 import pack

                pack(module, value)
            else:
                setattr(module, kind, nn.Parameter(value, parameter.requires_grad))
