"""Each file of benchmarks/ runs, with parameters as small as can be; what it measures is no matter.

A benchmark may miss its goal here (exit code 1). That all of its parts work is what is seen: what
could not be measured ends with another code.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

import virtual_hosts
from launcher import ROOT, MpiLauncher, TimeoutExpired

FOLDER = ROOT / "benchmarks"
SHARED = {"launching.py", "paired.py", "ratios.py"}
"""What benchmarks import, and what is none."""
ELSEWHERE = {
    "attack.py": "tests/unit/test_bad_input.py",
    "baselines.py": "tests/mpi/test_plugin_trainers.py",
    "error_rates.py": "tests/unit/test_statistics_simulated.py",
    "hunt.py": "tests/unit/test_hunt_judgement.py",
    "hunt_faults.py": "tests/mpi/test_hunt.py",
    "link.py": "tests/mpi/test_limited_link.py",
    "published_fits.py": "tests/unit/test_published_fits.py",
    "published_predictions.py": "tests/unit/test_published_fits.py",
}
"""Benchmarks that a test of their own runs."""
ON_VIRTUAL_HOSTS = {"causes_jobs.py", "overlap.py", "predict.py"}


@pytest.mark.mpi
@pytest.mark.timeout(500)
def test_the_attack_is_held() -> None:
    """The kinds that take longest, for about a minute; the others: tests/unit/test_bad_input.py."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "attack.py"), "--seconds", "40", "--kinds",
         "launches,functions,packed"], capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@dataclass(frozen=True)
class Tiny:
    """The arguments of a benchmark, texts that it prints with them, and one that it does not."""

    words: str
    prints: tuple[str, ...]
    codes: tuple[int, ...] = (0, 1)
    never: str = "Traceback"


TINY = {
    "balance.py": Tiny("--passes 1 --iterations 2", ("as fast as rank 0", "ms a sample longer")),
    "causes.py": Tiny("--jobs 40", (" 100.0%, wrong 0.0%",), codes=(0,)),
    "causes_jobs.py": Tiny("--jobs 1 --causes stream_beside",
                           ("contention ", "goals:")),
    "checking.py": Tiny("--ranks 1 --passes 1 --iterations 20 --sizes 8",
                        ("checks  after a check",), codes=(0,)),
    "clock.py": Tiny("--ranks 2 --syncs 2", ("2 ranks", "between")),
    "compare.py": Tiny("--comparisons 3 --cases 4", ("all 5 % slower",)),
    "conditions.py": Tiny("--runs 2 --cases 4", (
        "clean, common                  0.00%", "waits, 30%                   100.00%")),
    "coverage.py": Tiny("--cases 5 --counts 21 45 --passes 3 --kinds ticks drift",
                        ("4 cells of 5 series", "a decision takes")),
    "coverage.py --stopped": Tiny("--cases 5 --counts 21 45 --passes 3 --kinds ticks drift",
                                  ("cells of 5 series", "a decision takes")),
    "control.py": Tiny("--ranks 1 --cases 3 --iterations 2", ("3 cases", "control and record")),
    "dependent_passes.py": Tiny("--reports 8 --series 8", ("passes, 6 rows", "passes, level ")),
    "diagnose.py": Tiny("--sweeps 2 --rows 1 --ranks 4", (
        "clean: 0.00% name any", "phase +5%: right rank and phase 100.0%"), codes=(0,)),
    "diagnose_machine.py": Tiny("--sweeps 3 --ranks 16", (
        "links clean: 0.00% name any", "one way: exact at a drop of 10%: 100.0%, 20%: 100.0%")),
    "diagnose_runs.py": Tiny("--runs 1 --size 1KiB --passes 3 --iterations 3",
                             ("of 1 faulty runs", "of 1 clean ones")),
    "dry_run.py": Tiny('--models gpt2 --strategies fsdp tensor --ranks 8 --block {"layers":1}',
                       ("| gpt2 | fsdp |", "| met |", "1. skipped: 12 attention heads cannot be")),
    "flags.py": Tiny("--series 2", ("correlation 0.8  n= 400  10%:", "two modes 1 : 4"),
                     codes=(0,)),
    "fidelity.py": Tiny("--launches 1 --passes 2 --sizes 8 --ways primed cold",
                        ("all_reduce", "send_recv")),
    "gemm.py": Tiny("--passes 2 --turn-ms 1 --shapes 64 --dtypes fp32 int8",
                    ("fp32 64", "int8 64", "A/A", "within 2%")),
    "history.py": Tiny("--series 1 --runs 3", ("noise, AR(.5): a step in", "3 runs of 60 cases")),
    "import_speed.py": Tiny("--mb 1 --repeat 1", (
        "tables: 1 MB", "inspector: 1 MB", "flight: 1 MB", "kineto: 1 MB", "execution: 1 MB")),
    "memory.py": Tiny("--dtypes fp32 --shapes weights --strategies single",
                      ("the largest error",)),
    "many_ranks.py": Tiny("--ranks 2", ("2 ranks", "nothing lost")),
    "noise.py": Tiny("--reports 12 --kinds ar~0.6 states~8 --claims recommend~3~x~5 blocks~1~x~9 "
                     "by~1~x~9 ramp~9~x~100 causes launch~1~x~9,~3 ranks~4~x~3", ("",), codes=(0,)),
    "overhead.py": Tiny("--passes 2 --warmup 1 --iterations 3 --sizes 8", ("at most 10 us",)),
    "overlap.py": Tiny("--passes 1 --iterations 2 --orders AG_before", ("x torch", "loopback")),
    "pairs.py": Tiny("--ranks 2 --iterations 2", ("2 links", "goals:")),
    "plan_speed.py": Tiny("--cases 200 --repeat 1", ("192 collective cases", "200 training cases")),
    "predict.py": Tiny("--ranks 2 3 4 --only-collectives --passes 1 --iterations 6 "
                       "--sizes 256KiB 512KiB 1MiB", ("collective: ", "goals: ")),
    "quiet.py": Tiny("--ranks 1 --passes 1 --iterations 5 --sizes 8", ("wake-up", "off by")),
    "reducer.py": Tiny("--ranks 2 4 --cases 100 --iterations 30 --repeat 2 --parts",
                       ("4 ranks", "bare read", "goals:")),
    "report_page.py": Tiny("--sizes 10x9 --traced 2 --no-browser",
                           ("10 cases x 9 ranks", "MB, written")),
    "report_speed.py": Tiny("--cases 10 --ranks 9 --traced 2", (
        "10 cases x 9 ranks", "summary.json and summary.csv", "hpcbench show --json", "goals")),
    "restart.py": Tiny("--ranks 1 --faults 1", ("right rank blamed 1 of 1",)),
    "scaling.py": Tiny("--repeats 20", ("promised beyond what they do",)),
    "shipped_job.py": Tiny("--runs 1 -- --only all_gather --iters 3 --passes 1 "
                           "--set output.plots=false --set output.report=false "
                           "--set measure.canary=false --set measure.noise_check_s=0", ("good",),
                           codes=(0, 1, 3)),
    "start.py": Tiny("--rounds 1 --iterations 2 --sizes 8", ("\nratio ",), codes=(0,),
                     never="none"),
    "stragglers.py": Tiny("--reports 3 --rows 1 --ranks 2 3 --steps 15", (
        "iid 0.0%  ar 0.0%  bimodal 0.0%  passes 0.0%  shared 0.0%", "iid +50%: "), codes=(0,)),
    "stream.py": Tiny("--passes 2 --calls 2 --size-mib 1",
                      ("-fopenmp", "threads: 1, arrays of 1 MiB", "A/A", "within 5%")),
    "telemetry.py": Tiny("--seconds 1 --rounds 1", ("beside a reading", "cost at 2 Hz")),
    "training_overhead.py": Tiny("--passes 1 --steps 2 --strategies single", ("median ratio",)),
    "what_if.py": Tiny("--jobs 100 --seed 1", ("named in 100.0%",), codes=(0,)),
}


def test_each_benchmark_is_run_by_a_test() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - SHARED
    run = {name.split()[0] for name in TINY}
    assert files == {*run, *ELSEWHERE} and not run & ELSEWHERE.keys()
    for name, test in ELSEWHERE.items():
        assert name.removesuffix(".py") in (ROOT / test).read_text(encoding="utf-8"), name


def test_a_text_as_exit_code_would_pass_for_a_missed_goal() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit":
                is_text = any(isinstance(word, ast.JoinedStr) or (
                    isinstance(word, ast.Constant) and isinstance(word.value, str))
                    for word in ast.walk(node))
                assert not is_text, f"{path.name}:{node.lineno}: use fail() of launching.py"


@pytest.mark.mpi
@pytest.mark.parametrize("name", TINY)
def test_it_runs(mpirun: MpiLauncher, name: str) -> None:
    run_tiny(mpirun, name, TINY[name])


def run_tiny(mpirun: MpiLauncher, name: str, tiny: Tiny) -> None:
    """Run a benchmark, unless it needs virtual hosts that cannot be had here."""
    if name in ON_VIRTUAL_HOSTS and (why := virtual_hosts.why_not("1gbit")):
        pytest.skip(f"no limited link: {why}")
    words = [word.replace("~", " ") for word in tiny.words.split()]
    done = mpirun.run(0, *words, command=program(name), timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode in tiny.codes and not {"Traceback", tiny.never} & {*said.split()}, done
    assert all(text in done.stdout for text in tiny.prints), done


@pytest.mark.mpi
def test_a_rank_that_fails_is_no_missed_goal(mpirun: MpiLauncher) -> None:
    ranks = "from launching import mpirun; mpirun(2, ['-c', 'raise SystemExit(1)'])"
    done = mpirun.run(0, command=[sys.executable, "-c", ranks],
                      env={"PYTHONPATH": str(FOLDER)}).check(2)
    assert "exit code 1: " in done.stderr, done


@pytest.mark.mpi
def test_nothing_outlives_a_benchmark_that_takes_too_long(mpirun: MpiLauncher) -> None:
    with mpirun.start(0, "--cases", "1000", command=program("control.py")) as job:
        deadline = time.monotonic() + 60
        while len(job.processes()) < 5:  # it, mpirun, MPICH's proxy and two ranks
            assert time.monotonic() < deadline, job.describe()
            time.sleep(0.05)
        with pytest.raises(TimeoutExpired):
            job.wait(timeout=0.1)
    mpirun.assert_no_orphans(0)


def program(name: str) -> list[str]:
    """Return the words that start a benchmark."""
    file, *words = name.split()
    return [sys.executable, str(FOLDER / file), *words]
