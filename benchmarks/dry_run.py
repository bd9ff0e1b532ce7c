"""What does a dry run of a model take: time of the processor, time in all, memory?

    python benchmarks/dry_run.py [--models gpt2 llama3-70b] [--ranks 8 64 512] [--strategies data]

Each case is tried in a process of its own, as rank 0, with 1 sample a replica and the options that
a strategy has by default (as many samples as it has micro-batches, hybrid with tp 2 and pp 2). The
memory is the largest resident set, of which Python with torch takes about 350 MiB. Goals of a case:
20 s of the processor and 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

MODELS = ("transformer-large", "bert-large", "mistral-7b", "llama3-8b", "llama3-70b", "resnet50")
STRATEGIES = ("data", "zero1", "fsdp", "hsdp", "tensor", "pipeline", "hybrid", "lora", "qlora")
RANKS = (8, 64, 512)
GOAL_S, GOAL_MIB = 20, 1024
MICROBATCHES = 4
TIMEOUT_S = 300


def main() -> None:
    """Try every case, print a table; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--layers", type=int, help="instead of the model's own")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(**json.loads(given.one))))
        return
    print(f"{'model':<18}{'strategy':<10}{'ranks':>6}{'cpu s':>8}{'wall s':>8}{'MiB':>7}  calls")
    met = [report(model, strategy, ranks, given.layers) for model in given.models
           for strategy in given.strategies for ranks in given.ranks]
    sys.exit(int(not all(met)))


def report(model: str, strategy: str, ranks: int, layers: int | None) -> bool:
    """Try a case in a process of its own and print its line; return whether goals are met."""
    case = json.dumps({"model": model, "strategy": strategy, "ranks": ranks, "layers": layers})
    try:
        done = subprocess.run([sys.executable, __file__, "--one", case], text=True,
                              capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"{model:<18}{strategy:<10}{ranks:>6}  no end in {TIMEOUT_S} s", flush=True)
        return False
    head = f"{model:<18}{strategy:<10}{ranks:>6}"
    if done.returncode:
        print(f"{head}  refused: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return False
    found = json.loads(done.stdout.splitlines()[-1])
    if found.get("skip"):
        print(f"{head}  skipped: {found['skip']}", flush=True)
        return True
    print(f"{head}{found['cpu_s']:>8.1f}{found['wall_s']:>8.1f}{found['mib']:>7.0f}  "
          f"{found['calls']}", flush=True)
    return bool(found["cpu_s"] <= GOAL_S and found["mib"] <= GOAL_MIB)


def one(model: str, strategy: str, ranks: int, layers: int | None) -> dict[str, Any]:
    """Try a case in this process; return what it took, or why it is skipped."""
    from hpcbench.backends.dry_step import dry_step
    from hpcbench.config.load import check_config
    from hpcbench.kinds.training.run.runner import TrainingRunner
    from hpcbench.plan.expand import make_plan

    began = time.monotonic()
    options = {"tp": 2, "pp": 2} if strategy == "hybrid" else {}
    staged = strategy in ("pipeline", "model", "hybrid")
    block = {"kind": "training", "model": model, "backend": "nccl",
             "batch_size": MICROBATCHES if staged else 1, "strategies": {strategy: options},
             **({"layers": layers} if layers else {})}
    case, = make_plan(check_config({"benchmarks": [block]}, "benchmark"), ranks).cases
    if case.skip:
        return {"skip": case.skip}
    step = dry_step(case, lambda place: TrainingRunner().open(case.workload, place,
                                                              validate=False))
    calls = ", ".join(f"{count} {name}" for name, (count, _) in step.calls.items())
    return {"cpu_s": time.process_time(), "wall_s": time.monotonic() - began, "calls": calls,
            "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()
