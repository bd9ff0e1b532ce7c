"""Are runs that others published predicted to fit, and trainings that cannot run to be too large?

    python benchmarks/published_fits.py [--loss auto] [--unsynced]

Planned are the 216 runs of llm-foundry's table of throughputs (benchmarks/data), which all ran,
with what a device is said to have: 80 or 40 GB (1e9 B), and GiB. A planned case that is over by
less than the error of the prediction runs. Then come trainings that cannot fit, some by little.

llm-foundry's loss is a fused cross entropy, its default, and Composer exchanges shards of gradients
in each part of an accumulation. Nearest here are `chunked_cross_entropy` and `sync_each_batch`;
the flags show what the table would be without them, and then more runs are rightly too large. fp8,
which hpcbench lacks, is planned as bf16. Goals: at most 5 of the runs are skipped, and all of the
others. A skip without both options says which settings make the run fit with the batch that it
had: so do all of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpcbench.config.load import check_config
from hpcbench.config.schema import Hardware
from hpcbench.kinds.training.plan.planner import settings
from hpcbench.kinds.training.plan.spec import AUTO
from hpcbench.kinds.training.plan.workload import CHUNKED, LOSSES, training_of
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.plan.points import too_large

RUNS = Path(__file__).with_name("data") / "llm_foundry_runs.csv"
VOCABULARY = 50368
MOST_SKIPPED = 5
UNITS = {"GB": 1.0, "GiB": 2**30 / 1e9}
"""What is meant by the gigabytes of a device, in GB of 1e9 B."""
TOO_LARGE: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
    ("llama3-70b with AdamW on one device: 16 B x 70.6e9 are 1129 GB", 1, 80, {
        "model": "llama3-70b", "batch_size": 1, "seq_length": 2048, "strategies": "single"}),
    ("llama3-70b with SGD on one device: 8 B x 70.6e9 are 564 GB", 1, 80, {
        "model": "llama3-70b", "batch_size": 1, "seq_length": 128, "optimizer": "sgd",
        "strategies": "single"}),
    ("llama3-70b, shards of 8: 16 B x 70.6e9 / 8 are 141 GB", 8, 80, {
        "model": "llama3-70b", "batch_size": 1, "seq_length": 2048, "checkpointing": "full",
        "strategies": "fsdp"}),
    ("llama3-70b, 8 tensor parts: as much", 8, 80, {
        "model": "llama3-70b", "batch_size": 1, "seq_length": 2048, "checkpointing": "full",
        "strategies": "tensor"}),
    ("llama3-70b, shards of 12: states alone are 94 GB, 1.18 of the device", 12, 80, {
        "model": "llama3-70b", "batch_size": 1, "seq_length": 128, "checkpointing": "full",
        "strategies": "fsdp"}),
    ("llama3-8b with AdamW on one device: 16 B x 8.03e9 are 128 GB", 1, 80, {
        "model": "llama3-8b", "batch_size": 1, "seq_length": 128, "strategies": "single"}),
    ("mistral-7b, copies: 16 B x 7.24e9 are 116 GB", 8, 80, {
        "model": "mistral-7b", "batch_size": 1, "seq_length": 128, "strategies": "data"}),
    ("mistral-7b, states divided: 8 B x 7.24e9 and 8 B / 8, with buckets 94 GB", 8, 80, {
        "model": "mistral-7b", "batch_size": 1, "seq_length": 128, "strategies": "zero1"}),
    ("mistral-7b, shards of 2: 16 B x 7.24e9 / 2 are 58 GB", 2, 40, {
        "model": "mistral-7b", "batch_size": 1, "seq_length": 128, "strategies": "fsdp"}),
    ("gpt2-xl, copies: 16 B x 1.56e9 and buckets are 31 GB", 2, 24, {
        "model": "gpt2-xl", "batch_size": 1, "seq_length": 128, "strategies": "data"}),
    ("logits alone: 262144 tokens x 128256 words x 4 B are 134 GB", 8, 80, {
        "model": "llama3-8b", "layers": 2, "batch_size": 32, "strategies": "fsdp"}),
    ("inputs of 32 blocks alone: 524288 tokens x 4096 x 2 B x 32 are 137 GB", 64, 80, {
        "model": "llama3-8b", "batch_size": 64, "checkpointing": "full", "loss": CHUNKED,
        "strategies": "fsdp"}),
    ("whole gradients until the last part: 4 B x 70.6e9 are 282 GB", 64, 80, {
        "model": "llama3-70b", "batch_size": 2, "accumulation": 2, "seq_length": 2048,
        "checkpointing": "full", "strategies": "fsdp"}),
)
"""Why a training cannot fit whatever is predicted, its ranks, the GB of a device, and a block."""


def runs() -> list[dict[str, str]]:
    """Return the published runs."""
    with RUNS.open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def planned(ranks: int, memory_gb: float | None, block: Mapping[str, Any]) -> Case:
    """Return the case of a block in bf16 on GPUs of so much memory, in GB of 1e9 B, or of any."""
    whole = {"kind": "training", "dtype": "bf16", "backend": "nccl", **block}
    config = {"benchmarks": [whole], "hardware": {
        "device_type": "cuda", "memory_per_device_gb": memory_gb}}
    (case,) = make_plan(check_config(config, "published"), ranks).cases
    return case


@cache
def _in_any_memory(ranks: int, block: str) -> Case:
    """Return the same without a limit: many runs differ in their devices only."""
    return planned(ranks, None, json.loads(block))


def block_of(run: Mapping[str, str], loss: str, synced: bool) -> dict[str, Any]:
    """Return the block that is a published run."""
    parts = int(run["accumulation"])
    return {"model": "gpt2", "vocab": VOCABULARY, "loss": loss,
            **{name: int(run[name]) for name in ("layers", "hidden", "heads", "seq_length")},
            "batch_size": int(run["microbatch"]) * parts, "accumulation": parts,
            "checkpointing": run["checkpointing"],
            "strategies": {"fsdp": {"reshard": run["sharding"] == "FULL_SHARD",
                                    "sync_each_batch": synced and parts > 1}}}


class Skipped(NamedTuple):
    """A published run that would be skipped, and why; the settings with which it fits.

    ``fitting`` are those that leave its batch and its parts as they were.
    """

    words: str
    fitting: tuple[Mapping[str, Any], ...]


def skipped(unit: float, loss: str = CHUNKED, synced: bool = True) -> Iterator[Skipped]:
    """Yield the published runs that would be skipped."""
    for run in runs():
        case = _in_any_memory(int(run["devices"]), json.dumps(block_of(run, loss, synced)))
        hardware = Hardware(memory_per_device_gb=int(run["memory_gb"]) * unit)
        reason = case.skip or too_large(
            case.memory_bytes, case.host_bytes, "cuda", hardware, case.memory_error)
        if reason:
            found = settings(training_of(case), int(int(run["memory_gb"]) * unit * 1e9))
            yield Skipped(
                f"{run['model']} {run['seq_length']} tokens x {run['microbatch']} on "
                f"{run['devices']} {run['device']} of {run['memory_gb']}: {reason}; fitting: "
                f"{found}",
                tuple(one for one in found if not {"batch_size", "accumulation"} & {*one}))


def fitting() -> Iterator[str]:
    """Yield which trainings that cannot fit would run."""
    for why, ranks, memory_gb, block in TOO_LARGE:
        case = planned(ranks, memory_gb, block)
        if case.skip is None or "memory_per_device_gb" not in case.skip:
            yield f"{why}: predicted {case.memory_bytes / 1e9:.1f} GB, skip {case.skip}"


def main() -> int:
    """Print what is skipped and what is not; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--loss", default=CHUNKED, choices=(AUTO, *LOSSES))
    parser.add_argument("--unsynced", action="store_true", help="whole gradients are added up")
    parser.add_argument("--verbose", action="store_true", help="print each skip")
    chosen = parser.parse_args()
    most = 0
    for name, unit in UNITS.items():
        found = list(skipped(unit, chosen.loss, not chosen.unsynced))
        print(f"devices in {name}: {len(found)} of {len(runs())} published runs are skipped")
        print("".join(f"  {one.words}\n" for one in found * chosen.verbose), end="")
        mute = [one for one in found if not one.fitting]
        print(f"  {len(found) - len(mute)} of them say with which settings they fit in their batch")
        for one in mute:
            print(f"  without: {one.words}")
        most = max(most, len(found))
    wrong = list(fitting())
    print(f"{len(TOO_LARGE) - len(wrong)} of {len(TOO_LARGE)} that cannot fit are skipped")
    print("".join(f"  {line}\n" for line in wrong), end="")
    return int(most > MOST_SKIPPED or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
