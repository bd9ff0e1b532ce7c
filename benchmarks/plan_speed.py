"""How long does it take to plan 10,000 cases?

    python benchmarks/plan_speed.py [--cases 10000] [--repeat 3]

Each plan is made in a process of its own from a sweep in memory. It is of collectives (sizes, data
types and environments), or of trainings: models, batches, depths, and every strategy that divides
them. Printed are seconds of the processor in `make_plan`, which are what other load disturbs least,
and the wall time of the fastest. Goals for 10,000 cases: 1 s of collectives, 20 s of trainings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

RANKS = 8
CASES = 10_000
GOALS_S = {"collective": 1.0, "training": 20.0}
"""Of `CASES` cases; fewer have less in proportion."""


def main() -> None:
    """Plan both sweeps several times; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", choices=GOALS_S, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(plan_once(SWEEPS[given.one](given.cases))))
        return
    sys.exit(int(not all([compare(kind, given) for kind in GOALS_S])))


def collectives(cases: int) -> dict[str, Any]:
    """Return a sweep of as many collectives: four of them, in as many sizes as it takes."""
    return {"kind": "collective", "backend": "nccl", "dtype": ["fp32", "bf16"],
            "collective": ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"],
            "env": {"NCCL_ALGO": ["Ring", "Tree"]},
            "size": [str(4096 * (number + 1)) for number in range(max(cases // 16, 1))]}


def trainings(cases: int) -> dict[str, Any]:
    """Return a sweep of as many trainings: 10 strategies of 5 models, in as many batches."""
    return {"kind": "training", "backend": "nccl", "dtype": ["fp32", "bf16"],
            "model": ["gpt2", "gpt2-xl", "llama3-8b", "bert-large", "resnet50"],
            "optimizer": ["sgd", "adamw"],
            "batch_size": [8 * (number + 1) for number in range(max(cases // 200, 1))],
            "strategies": {"single": {}, "data": {}, "zero1": {}, "fsdp": {}, "hsdp": {},
                           "tensor": {}, "pipeline": {"microbatches": 8},
                           "model": {}, "lora": {},
                           "hybrid": {"tp": 2, "pp": 2, "microbatches": 8}}}


SWEEPS = {"collective": collectives, "training": trainings}


def plan_once(block: dict[str, Any]) -> dict[str, float]:
    """Plan one block for many ranks; return how long it took, and how many cases can run."""
    from hpcbench.config.load import check_config
    from hpcbench.plan.expand import make_plan

    config = check_config({"benchmarks": [block]}, "benchmark")
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    plan = make_plan(config, RANKS)
    return {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_began_s,
            "cases": len(plan.cases), "skips": sum(case.skip is not None for case in plan.cases)}


def compare(kind: str, given: argparse.Namespace) -> bool:
    """Plan one sweep several times and print the times; return whether its goal is met."""
    found = []
    for _ in range(given.repeat):
        done = subprocess.run([sys.executable, __file__, "--one", kind, "--cases",
                               str(given.cases)], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    best = min(found, key=lambda one: one["cpu_s"])
    goal_s = GOALS_S[kind] * best["cases"] / CASES
    met = best["cpu_s"] <= goal_s
    print(f"{best['cases']} {kind} cases ({best['skips']} skips): CPU {best['cpu_s']:.2f} s (all: "
          + ", ".join(f"{one['cpu_s']:.2f}" for one in found)
          + f"), wall {min(one['wall_s'] for one in found):.2f} s; goal {goal_s:.2f} s "
          + ("met" if met else "missed"), flush=True)
    return met


if __name__ == "__main__":
    main()
