"""A transformer with peft's low-rank adapters beside frozen weights.

peft takes seconds to import, so it is imported when a model is made.
"""

from __future__ import annotations

import logging
import re

import torch
from torch import nn

from hpcbench.kinds.training.plan.adapters import TARGETS, is_narrow
from hpcbench.kinds.training.plan.lookup import adapters_of
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import Model, Part
from hpcbench.operations.dtypes import DTYPES
from hpcbench.operations.models import OWN_LIBRARY

# It warns of a kernel for inference that it cannot load, which nobody here needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
_INSERTED = re.compile(r"\.(base_layer|default)(?=\.)")
"""What peft adds to names: of the product, and of the one adapter that there is."""


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
    """Return whether a parameter is of an adapter, and so to be trained."""
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
            value = model.initial(name, tuple(parameter.shape), SEED).to(
                device, DTYPES[spec.dtype] if narrow else torch.float32)
            if hasattr(parameter, "quant_state"):
                from hpcbench.kinds.training.run.models.nf4 import pack

                pack(module, value)
            else:
                setattr(module, kind, nn.Parameter(value, parameter.requires_grad))
