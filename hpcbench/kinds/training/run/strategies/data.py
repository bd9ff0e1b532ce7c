"""Every rank has the whole model (DDP, ZeRO stage 1), and adapters over frozen weights (peft, which
takes seconds to import and is imported when a model is made)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hpcbench.backends.counting_backend import is_counted
from hpcbench.kinds.training.plan.models import Tensor, is_narrow, shape_of
from hpcbench.kinds.training.plan.spec import adapters_of, buckets
from hpcbench.kinds.training.plan.step import EVERY, divide, is_dynamic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import Model, Part
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Replica, evenly_spaced, whole
from hpcbench.kinds.training.run.strategies.tensor import TensorParallel
from hpcbench.operations.data import DTYPES, all_gather_tensor
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.operations.place import Place
from hpcbench.trace.schema import ARRIVAL

_EXCHANGES = {
    "none": base.GradientExchange(),
    "bf16": base.GradientExchange(unit=2.0**-8),
    # half of the smallest subnormal number
    "fp16": base.GradientExchange(unit=2.0**-11, floor=2.0**-25),
    "powersgd": base.GradientExchange(projects=True),
}
_OWN_BUFFERS = {next(name for name in ("forward_sync_buffers", "broadcast_buffers")
                     if name in signature(DistributedDataParallel).parameters): False}
"""Running statistics are each replica's own, as in other strategies. torch 2.13 has a new name."""
_STABLE_CALLS = 2
"""Calls until DDP has ordered its buckets by the first backward (1), and PowerSGD may begin."""


class Data(Replica):
    """torch's DistributedDataParallel, which averages gradients while backward still runs."""

    warmup_calls = _STABLE_CALLS
    ddp: DistributedDataParallel

    def __init__(self, spec: Training, place: Place) -> None:
        super().__init__(spec, place)
        self._balancer = Balancer(spec, place, self.plain) if is_dynamic(spec) else None

    @property
    def share(self) -> tuple[int, int]:
        return self._balancer.share if self._balancer else super().share

    def divide(self, shares: Sequence[int]) -> None:
        assert self._balancer is not None  # noqa: S101
        self._balancer.shares = tuple(shares)

    def rebalance(self, phases: base.PhaseClock) -> None:
        if self._balancer:
            self._balancer.exchange()
            phases.end("balance")

    def close(self) -> None:
        """Wait until the exchange of sample times is complete. All ranks call it."""
        if self._balancer:
            self._balancer.finish()

    def wrap(self, model: Model) -> nn.Module:
        options = dict(self.spec.options)
        device = self.place.device
        self.ddp = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.place.group, bucket_cap_mb=options["bucket_mb"],
            **_OWN_BUFFERS,
            gradient_as_bucket_view=bool(options.get("bucket_view", False)))
        self.register(str(options.get("comm_hook", "none")))
        self.watch = BucketWatch(model.parameters(), int(options["bucket_mb"]))
        if is_counted(self.place.group) and not self.exchange.projects:
            self._count_second_step(model)
        return self.ddp

    def _count_second_step(self, model: Model) -> None:
        """Have a dry run count the second step, in which ranks agree on the order of buckets."""
        self.warmup_calls = 1
        model.register_forward_pre_hook(lambda *_: self.place.group.call_log.tally.clear())

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        if self._balancer:
            self._balancer.begin(len(batch[0]))
        loss = super().forward_backward(batch, phases)
        self.watch.watch_buckets()
        return loss

    def register(self, hook: str) -> None:
        group = self.place.group
        self.exchange = _EXCHANGES[hook]
        if hook == "powersgd":
            self.uncounted = "PowerSGD calls from threads of the group, whose calls torch hides"
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=1, start_powerSGD_iter=_STABLE_CALLS)
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook != "none":
            compress = {"bf16": default_hooks.bf16_compress_hook,
                        "fp16": default_hooks.fp16_compress_hook}[hook]
            # DDP refuses torch's bf16 hook, by its name, where there is no NCCL; gloo adds bf16.
            self.ddp.register_comm_hook(group, lambda where, bucket: compress(where, bucket))

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.ddp.no_sync()


class BucketWatch:
    """Calls a callback with the name of each bucket that has its last gradient on this rank.

    Backward lasts as long on every rank, because all wait for the slowest rank; a rank's own
    gradients show whether it is late. torch fills buckets in the order of the first backward, which
    is known at `watch_buckets`."""

    on_bucket: Callable[[str], None]

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_mb: int) -> None:
        self._bucket_mb = bucket_mb
        self._parameters = [one for one in parameters if one.requires_grad]
        self._order: list[nn.Parameter] = []
        self._handles = [one.register_post_accumulate_grad_hook(self._order.append)
                         for one in self._parameters]

    def watch_buckets(self) -> None:
        """Watch buckets, now that the first backward has been."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        order = self._order[:len(self._parameters)]  # an accumulation begins again
        given = [Tensor(str(at), tuple(one.shape), one.element_size())
                 for at, one in enumerate(order)]
        contents = buckets(given[::-1], self._bucket_mb)
        for number in evenly_spaced(len(contents)):
            last = order[int(contents[number][-1].name)]
            last.register_post_accumulate_grad_hook(
                lambda _, name=f"{ARRIVAL}{number + 1}": self.on_bucket(name))


class Balancer:
    """Dynamic load balancing: the shares of replicas by measured speed, alike on all ranks.

    In every step each rank sends its time for one sample, under the next step: nobody waits for it.
    From the medians of `EVERY` of them the samples are divided anew. A rank's time lasts until its
    own last gradient is there, the embedding's: waiting for others' gradients is not in it."""

    def __init__(self, spec: Training, place: Place, model: Model) -> None:
        self.shares = (spec.batch_size,) * spec.dp
        self._spec, self._place = spec, place
        self._clock = base.phase_clock(place.device)
        self._since = self._until = self._clock.now()
        for parameter in next(model.parts()).module.parameters():
            parameter.register_post_accumulate_grad_hook(self._ready)
        self._samples = 0
        self._costs: list[list[float]] = []
        self._own = torch.zeros(1, dtype=torch.float64, device=place.device)
        self._all = torch.zeros(spec.dp, dtype=torch.float64, device=place.device)
        self._under_way: Any = None

    def _ready(self, _parameter: torch.Tensor) -> None:
        self._until = self._clock.now()

    @property
    def share(self) -> tuple[int, int]:
        rank = self._place.rank
        return sum(self.shares[:rank]), self.shares[rank]

    def begin(self, samples: int) -> None:
        self._samples, self._since = samples, self._clock.now()

    def exchange(self) -> None:
        if self._under_way is not None:
            self.finish()
            self._costs.append(self._all.tolist())
        if len(self._costs) == EVERY:
            self.shares = divide(self._spec, [median(each) for each in zip(
                *self._costs, strict=True)])
            self._costs.clear()
        own_s = self._clock.between_ns(self._since, self._until) / 1e9
        self._own.fill_(own_s / self._samples)
        self._under_way = all_gather_tensor(
            self._all, self._own, group=self._place.group, async_op=True)

    def finish(self) -> None:
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None


class Zero1(Data):
    """torch's ZeroRedundancyOptimizer: each rank updates some parameters, and broadcasts them."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # it compiles at its import

        self._sharded = ZeroRedundancyOptimizer(
            self.plain.parameters(), process_group=self.place.group,
            optimizer_class=lambda groups: base.optimizer_of(
                self.spec, groups[0]["params"], self.place.device))
        return self._sharded

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        return self._sharded.optim


# It warns of a kernel for inference that it cannot load, which nobody here needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
_INSERTED = re.compile(r"\.(base_layer|default)(?=\.)")
"""Parts that peft adds to names: of the product, and of its only adapter."""


def low_rank(spec: Training, place: Place) -> base.Strategy:
    kinds: dict[str, type[LowRank]] = {
        "single": LowRank, "data": Copies, "fsdp": Shards, "tensor": Divided}
    return kinds[str(spec.option("over"))](spec, place)


class LowRank(Replica):
    """One rank has all weights: gradients and optimizer are those of the adapters."""

    def draft(self) -> Model:
        return draft(self.spec)

    def fill(self, model: Model, part: Part) -> None:
        fill(model, part, self.spec, self.place.device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return base.optimizer_of(self.spec, (
            parameter for parameter in self.plain.parameters() if parameter.requires_grad),
            self.place.device)

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((plain(name), one) for name, one in super().trained())

    def full_gradients(self) -> dict[str, torch.Tensor]:
        return {plain(name): item for name, item in super().full_gradients().items()}

    def full_weights(self) -> dict[str, torch.Tensor]:
        return {plain(name): whole(parameter) for name, parameter in self.plain.named_parameters()
                if is_adapter(name)}

    def frozen(self) -> dict[str, torch.Tensor]:
        return {plain(name): local(parameter.detach()).clone()
                for name, parameter in self.plain.named_parameters() if not is_adapter(name)}

    def weights(self) -> Iterator[torch.Tensor]:
        yield from super().weights()
        yield from scales_of(self.plain)


class Copies(LowRank, Data):
    """Every rank has all weights; gradients of adapters are averaged (DistributedDataParallel)."""


class Shards(LowRank, Fsdp):
    """Every rank has a part of each weight and of each adapter (fully_shard)."""


class Divided(LowRank, TensorParallel):
    """Every rank has a part of each layer and of its adapters (parallelize_module)."""


def draft(spec: Training) -> Model:
    from peft import LoraConfig, inject_adapter_in_model

    adapters = adapters_of(spec)
    assert adapters is not None  # noqa: S101  (the strategy has a rank)
    if adapters.packed:  # before the model is made, for which its operators are looked up
        from hpcbench.kinds.training.run.models.nf4 import make_packed
    with torch.device("meta"):
        model = make_model(spec)
    if adapters.packed:
        make_packed(model, DTYPES[spec.dtype])
    names = [name for name, _ in model.named_modules() if adapters.has(f"{name}.weight")]
    transposed = spec.library != OWN_LIBRARY and spec.family == "gpt"
    inject_adapter_in_model(LoraConfig(
        r=adapters.rank, lora_alpha=int(spec.option("alpha")), lora_dropout=0.0, bias="none",
        fan_in_fan_out=transposed, use_dora=adapters.dora, target_modules=names), model,
        low_cpu_mem_usage=True)
    return model


def plain(name: str) -> str:
    """Return the name of a parameter in the plain model; of an adapter: ``...q.lora_A.weight``."""
    return _INSERTED.sub("", name)


def is_adapter(name: str) -> bool:
    return ".lora_" in name


def scales_of(model: Model) -> list[torch.Tensor]:
    if not getattr(model, "is_loaded_in_4bit", False):
        return []
    from hpcbench.kinds.training.run.models.nf4 import scales

    return list(scales(model))


def fill(model: Model, part: Part, spec: Training, device: torch.device) -> None:
    """Give a part of a draft weights of the seed; B, too: peft's 0 leaves A without a gradient."""
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
