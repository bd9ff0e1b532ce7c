"""Is hpcbench's training step as fast as those of libraries that people train with?

    pip install ./plugins/hpcbench-trainers    # its README: what it needs
    python benchmarks/baselines.py [--passes 40] [--steps 4]

Steps of a GPT-2 and a Llama of a few layers, on one rank and on two gloo ranks: hpcbench's, that of
Hugging Face Accelerate on the model of library transformers and, of the Llama, that of torchtitan,
each compared with one process first. Weights, samples and AdamW are the same. In every pass the
other library's step, hpcbench's, and hpcbench's once more take turns in the same processes, a few
steps each; who goes first rotates. Ratios are made pass by pass, of medians: shown are geometric
means and their 95 % intervals of the time, which is the most of a rank, and of the CPU time of all
ranks, which others on the machine disturb less. Equal steps say what a ratio can tell.
Goal: ours / theirs at most 1.03 in time. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.backends.groups import open_groups
from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan
from launching import fail
from ratios import Ratio, ratio
from training_overhead import through_hpcbench

GOAL = 1.03
EXTENTS = {"layers": 2, "hidden": 128, "heads": 4, "vocab": 1024, "seq_length": 128,
           "batch_size": 4}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": EXTENTS, "llama3-8b": {**EXTENTS, "kv_heads": 2}}
LIBRARIES = {"gpt2": ("accelerate",), "llama3-8b": ("accelerate", "torchtitan")}
RANKS = {"single": 1, "data": 2, "fsdp": 2}
TURNS = 3  # of theirs, ours, and ours again


def main() -> None:
    """Run the ranks of each comparison and print its row; or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--over", nargs="+", default=list(RANKS), choices=list(RANKS))
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        one_rank(given)
        return
    print(f"load before: {os.getloadavg()[0]:.1f}; times in ms, ours / theirs, ours / ours again\n"
          f"{'model':<10} {'over':<7} {'theirs':<11}{'time':>6}{'ours':>7}")
    verdicts = [compared(model, over, library, given) for model in given.models
                for library in LIBRARIES[model] if find_spec(library) for over in given.over]
    if not verdicts:
        fail("no library is installed: see plugins/hpcbench-trainers/README.md")
    is_missed = "missed" in verdicts
    sys.exit(int(is_missed))


def compared(model: str, over: str, library: str, given: argparse.Namespace) -> str:
    """Run the ranks of one comparison, print its row and return its verdict."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(
            [sys.executable, __file__, "--passes", str(given.passes), "--steps", str(given.steps),
             "--models", model, "--over", over, "--library", library, "--folder", folder,
             "--rank", str(rank)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(RANKS[over])]
        if any([rank.wait() for rank in ranks]):
            fail("a rank failed")
        times = np.array([np.load(Path(folder) / f"{rank}.npy") for rank in range(len(ranks))])
    time_ms, used_ms = (np.median(one, axis=2) / 1e6 for one in (
        times[:, 0].max(axis=0), times[:, 1].sum(axis=0)))
    found = ratio(time_ms[1], time_ms[0])
    print(f"{model:<10} {over:<7} {library:<11}{np.median(time_ms[0]):>6.1f}"
          f"{np.median(time_ms[1]):>7.1f}  {found.text}, {ratio(time_ms[1], time_ms[2]).text}; CPU "
          f"{ratio(used_ms[1], used_ms[0]).text}, {ratio(used_ms[1], used_ms[2]).text}: "
          f"{judged(found)}", flush=True)
    return judged(found)


def judged(found: Ratio) -> str:
    """Return whether the ratio is at most the goal, or more, or nothing can be told."""
    low, high = found.interval.ends
    return "met" if high <= GOAL else "missed" if low > GOAL else "cannot tell"


def one_rank(given: argparse.Namespace) -> None:
    """Take turns; keep this rank's times and CPU times, (which, turn, pass, step), in ns."""
    (model,), (over,), timeout = given.models, given.over, timedelta(seconds=600)
    size = RANKS[over]
    dist.init_process_group("gloo", init_method=f"file://{given.folder}/store", rank=given.rank,
                            world_size=size, timeout=timeout)
    torch.set_num_threads(1)
    loops = []
    for work in (training(model, over, given.library), *2 * [training(model, over, None)]):
        place = Place(given.rank, size, open_groups("gloo", timeout, [range(size)], given.rank),
                      torch.device("cpu"))
        loops.append(through_hpcbench(work, place, 1 + given.steps, validate=len(loops) < 2))
    gc.collect()
    gc.freeze()  # as the template process does before it forks workers
    for loop in loops:
        loop(2)
    times = np.empty((2, TURNS, given.passes, given.steps))
    for number in range(given.passes):
        for turn in range(TURNS):
            which = (number + turn) % TURNS
            times[:, which, number] = loops[which](1 + given.steps)[:, 1:]
    np.save(given.folder / f"{given.rank}.npy", times)
    dist.barrier()
    dist.destroy_process_group()


def training(model: str, over: str, library: str | None) -> Training:
    """Return our training, or that of a library."""
    strategies: dict[str, Any] = {over: {}} if library is None else {library: {"over": over}}
    block = {"kind": "training", "model": model, **MODELS[model], "strategies": strategies,
             "library": "transformers" if library == "accelerate" else "hpcbench"}
    (case,) = make_plan(check_config({"benchmarks": [block]}, "here"), RANKS[over]).cases
    if case.skip:
        fail(f"{case.label}: {case.skip}")
    return training_of(case)


if __name__ == "__main__":
    main()
