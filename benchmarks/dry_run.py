"""What does a dry run of a model take: time of the processor, and memory?

    python benchmarks/dry_run.py [--models gpt2 llama3-70b] [--ranks 8 64 512] [--strategies data]

Each case is tried in a process of its own, as rank 0, with 1 sample a replica and the options that
a strategy has by default. Pipelines have 8 samples in 8 micro-batches, hybrid has tp 2 and pp 2 (of
images pp 2 alone). ``--block`` gives other keys of the block as JSON, ``--tp`` and
``--microbatches`` other numbers: each micro-batch calls all blocks of the rank again. Printed are
seconds of the processor, from the start of Python on, and the largest resident set of a row, of
which Python with torch takes about 350 MiB. Goals of a case: 20 s of the processor and 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

MODELS = ("transformer-tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "transformer-large",
          "bert-large", "mistral-7b", "llama3-8b", "llama3-70b", "resnet50")
"""All; transformer-small and transformer-medium are other names of two."""
STRATEGIES = ("single", "data", "zero1", "fsdp", "hsdp", "tensor", "model", "pipeline", "hybrid",
              "lora", "qlora")
RANKS = (8, 64, 512)
GOAL_S, GOAL_MIB = 20, 1024
MICROBATCHES = 8
TIMEOUT_S = 300


def main() -> None:
    """Try every case, print a table; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--block", type=json.loads, default={}, help="more keys, as JSON")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(**json.loads(given.one))))
        return
    print("| model | strategy |", *(f"{ranks} |" for ranks in given.ranks), "MiB | goals |")
    print("|---" * (len(given.ranks) + 4) + "|", flush=True)
    reasons: list[str] = []
    how = {"block": given.block, "tp": given.tp, "microbatches": given.microbatches}
    met = [row(model, strategy, given.ranks, how, reasons)
           for model in given.models for strategy in given.strategies]
    print(*(f"\n{number}. {reason}" for number, reason in enumerate(reasons, start=1)), sep="")
    sys.exit(int(not all(met)))


def row(
    model: str, strategy: str, ranks: list[int], how: dict[str, Any], reasons: list[str],
) -> bool:
    """Print the row of a model and a strategy; return whether goals are met.

    A case without figures has the number of its reason in brackets.
    """
    found = [case(model=model, strategy=strategy, ranks=each, **how) for each in ranks]
    cells, timed = [], [one for one in found if "cpu_s" in one]
    for one in found:
        if reason := one.get("reason"):
            if reason not in reasons:
                reasons.append(reason)
            cells.append(f"({reasons.index(reason) + 1})")
        else:
            cells.append(f"{one['cpu_s']:.1f}")
    met = (all(one["cpu_s"] <= GOAL_S and one["mib"] <= GOAL_MIB for one in timed)
           and not any(one.get("failed") for one in found))
    memory = f"{max(one['mib'] for one in timed):.0f}" if timed else "-"
    told = "**missed**" if not met else "met" if timed else "-"
    print(f"| {model} | {strategy} |", *(f"{cell} |" for cell in cells),
          f"{memory} | {told} |", flush=True)
    return met


def case(**given: Any) -> dict[str, Any]:
    """Try a case in a process of its own; return what it took, or the reason of none."""
    try:
        done = subprocess.run([sys.executable, __file__, "--one", json.dumps(given)], text=True,
                              capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": True, "reason": f"no end in {TIMEOUT_S} s"}
    if done.returncode:
        return {"failed": True, "reason": f"failed: {done.stderr.strip().splitlines()[-1]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(
    model: str, strategy: str, ranks: int, block: dict[str, Any], tp: int, microbatches: int,
) -> dict[str, Any]:
    """Try a case in this process; return what it took, or why it is skipped."""
    from hpcbench.config.load import check_config
    from hpcbench.plan.expand import make_plan

    degrees = {"pp": 2} if model.startswith("resnet") else {"tp": tp, "pp": 2}
    options = {"hybrid": {**degrees, "microbatches": microbatches},
               "pipeline": {"microbatches": microbatches}}.get(strategy, {})
    whole = {"kind": "training", "model": model, "backend": "nccl",
             "batch_size": microbatches if options else 1, "strategies": {strategy: options},
             **block}
    planned, = make_plan(check_config({"benchmarks": [whole]}, "benchmark"), ranks).cases
    if planned.skip:
        return {"reason": f"skipped: {planned.skip}"}
    # Both load torch, which a case that is skipped does without.
    from hpcbench.backends.dry_step import dry_step
    from hpcbench.kinds.training.run.runner import TrainingRunner
    from hpcbench.measurement.runner import opened

    step = dry_step(planned, lambda place: opened(TrainingRunner(), planned.workload, place,
                                                  validate=False))
    if step.needed:
        return {"failed": True, "reason": f"took memory for values: {step.needed}"}
    return {"cpu_s": time.process_time(),
            "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()
