"""``hpcbench from-command``: a command line of another benchmark becomes a sweep that is valid."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.load import check_config
from hpcbench.errors import UsageError
from hpcbench.interop.compat.from_command import translate
from hpcbench.interop.compat.options import PROGRAM_NAMES
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan

KIB, MIB, GIB = 2**10, 2**20, 2**30


def run_line(command: str, ranks: int | None = None) -> str:
    """Return the command that the first remark names."""
    return translate(command, ranks).remarks[0].removeprefix("Run it: ")


def ranks_of(command: str) -> int:
    """Return on how many ranks the printed command runs."""
    return ranks_in(run_line(command))


def ranks_in(line: str) -> int:
    """Return the ranks of a printed command: behind its launcher, or torchrun's of all nodes."""
    words = line.removeprefix("Run it: ").replace("=", " ").split()
    if words[0] == "torchrun":
        given = {word.strip("-").replace("_", "-"): at for at, word in enumerate(words)}
        return int(words[given["nproc-per-node"] + 1]) * int(words[given["nnodes"] + 1])
    return int(words[3 if words[0] == "flux" else 2])


def planned(command: str, ranks: int | None = None) -> Plan:
    """Return the plan of the printed sweep on the ranks that it is printed for."""
    content = yaml.safe_load(json.dumps(dict(translate(command, ranks).content)))
    return make_plan(check_config(content, "printed"), ranks or ranks_of(command))


def size_of(case: Case) -> int:
    work: Any = case.workload
    return int(work.message_bytes if case.kind == "hardware" else work.size_bytes)


def sizes(plan: Plan) -> list[int]:
    return sorted({size_of(case) for case in plan.cases})


def facts(case: Case) -> dict[str, Any]:
    """Return what a test may name of a case: its own fields, then those of its workload."""
    work = {name: getattr(case.workload, name) for name in case.workload.__dataclass_fields__}
    return {**work, **{name: getattr(case, name) for name in (
        "kind", "backend", "device", "world_size", "env", "mode", "warmup", "iterations", "batch",
        "validate", "cuda_graph")}}


ALL_REDUCE = {"kind": "collective", "collective": "all_reduce"}
CASES = [
    ("mpirun -np 16 all_reduce_perf -b 8 -e 4G -f 2 -g 1",
     [8 * 2**power for power in range(30)],
     {**ALL_REDUCE, "backend": "nccl", "dtype": "fp32", "op": "sum", "world_size": 16,
      "mode": "pipelined", "batch": 20, "iterations": 1, "validate": True}),
    ("NCCL_ALGO=Ring mpirun -np 2 -x NCCL_DEBUG=INFO ./build/broadcast_perf -b 1M -e 3M -i 1M "
     "-g 4 -d half -r 1 -c 0",
     [MIB, 2 * MIB, 3 * MIB],
     {"collective": "broadcast", "world_size": 8, "root": 1, "dtype": "fp16", "validate": False,
      "env": (("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "INFO"))}),
    ("mpirun -np 16 -x NCCL_TESTS_SPLIT='DIV 8' all_gather_perf -b 1M -e 1M", [MIB],
     {"collective": "all_gather", "groups": 2}),
    ("srun -N 2 --ntasks-per-node=8 osu_allreduce -m 4:1024 -i 100 -x 10 -f -c -d cuda "
     "-T mpi_int", [4 * 2**power for power in range(9)],
     {**ALL_REDUCE, "backend": "mpi", "device": "cuda", "dtype": "int32", "world_size": 16,
      "mode": "barrier_start", "warmup": 10, "iterations": 100}),
    ("mpiexec -n 4 /opt/osu_bcast -m 128:128 -k fixed:3", [128],
     {"collective": "broadcast", "root": 3, "dtype": "uint8"}),
    ("mpirun -n 4 osu_alltoall --message-size=64:128", [256, 512],
     {"collective": "all_to_all", "world_size": 4}),
    ("mpirun -np 4 osu_reduce_scatter -m 1024: -T mpi_float", [
        KIB * 2**power for power in range(11)], {"collective": "reduce_scatter", "op": "sum"}),
    ("mpirun -np 2 osu_barrier -i 7", [0], {"collective": "barrier", "iterations": 7}),
    ("mpirun -np 2 osu_xccl_allgather -m 16:16", [32], {"backend": "nccl"}),
    ("mpirun -np 2 osu_latency -m 8:8 -i 50 D D", [8],
     {"kind": "hardware", "what": "latency", "world_size": 2, "iterations": 50, "device": "cuda"}),
    ("mpirun -np 2 osu_bibw -m 4M:4M -W 32".replace("4M", str(4 * MIB)), [4 * MIB],
     {"what": "bandwidth", "direction": "both at once", "messages": 32}),
    ("deepspeed --num_gpus 8 --num_nodes 2 ds_bench --scan --all-reduce --trials 20 --warmups 25 "
     "--minsize 3 --maxsize 6 --dtype bfloat16", [16 * 2 * 2**power for power in (3, 4, 5)],
     {**ALL_REDUCE, "dtype": "bf16", "world_size": 16, "mode": "pipelined", "batch": 20,
      "warmup": 2}),
    ("mpirun -np 4 python all_gather.py --scan --maxsize=3 --backend mpi --device cpu",
     [4 * 4 * 4 * 2, 4 * 4 * 4 * 4], {"collective": "all_gather", "backend": "mpi"}),
    ("srun -n4 ds_bench --broadcast", [GIB], {"collective": "broadcast"}),
]


@pytest.mark.parametrize(("command", "expected_sizes", "expected"), CASES,
                         ids=[case[0] for case in CASES])
def test_values_of_the_planned_cases(
    command: str, expected_sizes: list[int], expected: dict[str, Any],
) -> None:
    plan = planned(command)
    assert sizes(plan) == expected_sizes
    for case in plan.cases:
        found = facts(case)
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("program", [*PROGRAM_NAMES, *(f"osu_{name}" for name in (
    "allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier", "bcast", "gather",
    "gatherv", "reduce", "reduce_scatter", "reduce_scatter_block", "scatter", "scatterv",
    "iallreduce", "igather", "ialltoallv", "ibcast", "allreduce_persistent", "latency", "bw",
    "bibw", "multi_lat", "mbw_mr")), "ds_bench", "ds_bench --all --scan"])
def test_each_program_without_options_is_a_sweep(program: str) -> None:
    plan = planned(f"mpirun -np 4 {program}")
    assert plan.cases
    assert [case.skip for case in plan.cases if size_of(case) and case.skip] == []


RUN = "python -m hpcbench run -c FILE"


@pytest.mark.parametrize(("command", "expected"), [
    ("all_reduce_perf -g 8", f"mpirun -np 8 {RUN}"),
    ("mpirun -np 2 --hostfile h all_reduce_perf -t 2 -g 4", f"mpirun -np 16 --hostfile h {RUN}"),
    ("mpirun -np 16 -N 8 --bind-to none numactl -l all_reduce_perf",
     f"mpirun -np 16 -N 8 --bind-to none numactl -l {RUN}"),
    ("mpirun -np 2 -N 1 all_reduce_perf -g 8", f"mpirun -np 16 {RUN}"),
    ("mpiexec -genv NCCL_ALGO Ring -np 4 osu_bcast", f"mpirun -np 4 {RUN}"),
    ("srun --nodes=2 --ntasks-per-node 4 --mpi=pmix --export=ALL,NCCL_ALGO=Ring osu_bcast",
     f"srun -n 8 --nodes 2 --ntasks-per-node 4 --mpi=pmix --export=ALL {RUN}"),
    ("srun -N 2 osu_bcast", f"srun -n 2 -N 2 {RUN}"),
    ("torchrun --nproc-per-node=4 --nnodes 2:2 --rdzv-id 7 run_all.py",
     "torchrun --nproc-per-node 4 --nnodes 2:2 --rdzv-id 7 -m hpcbench run -c FILE"),
    ("python3 -m torch.distributed.run --nproc_per_node 4 run_all.py",
     "torchrun --nproc_per_node 4 -m hpcbench run -c FILE"),
    ("deepspeed --num_gpus 4 ds_bench", f"mpirun -np 4 {RUN}"),
    ("mpirun \\\n -np 4 \\\n osu_bcast > log 2>&1", f"mpirun -np 4 {RUN}"),
])
def test_the_command_that_runs_it(command: str, expected: str) -> None:
    assert run_line(command) == expected


@pytest.mark.parametrize(("command", "ranks"), [
    ("flux run -N2 -n 16 -g 1 all_reduce_perf", 16),
    ("flux submit --nodes=2 --tasks-per-node=4 all_reduce_perf", 8),
    ("jsrun -n6 -a1 -c7 -g1 -r6 -bpacked:7 -EA=1 osu_bcast", 6),
    ("jsrun --nrs 2 --tasks_per_rs 4 osu_bcast", 8), ("jsrun -p 4 osu_bcast", 4),
    ("prun -np 4 osu_bcast", 4), ("aprun -n 8 -N 4 -cc depth -e A=1 osu_bcast", 8),
    ("mpirun_rsh -np 2 -hostfile h A=1 ./osu_bcast", 2), ("ibrun -n 4 -o 0 osu_bcast", 4),
    ("mpiexec -genv A=1 -n 4 -ppn 2 -hosts a,b osu_bcast", 4),
    ("mpiexec.hydra -genv A 1 -genvall -f h -perhost 2 -n 4 -env B=2 osu_bcast", 4),
    ("mpirun -np 16 --mca btl ^openib -x A -x B=2 --host a:8,b:8 -N 8 osu_bcast", 16),
    ("mpirun --map-by ppr:4:node -H a,b osu_bcast", 8), ("mpirun -pernode -host a,b osu_bcast", 2),
    ("mpirun -npernode 4 --host a:4,b:4 --bind-to core osu_bcast", 8),
    ("srun -lN2 --ntasks-per-node=4 --job-name osu_bw osu_bcast", 8),
    ("sbatch -N 2 --ntasks-per-node=8 --wrap 'srun --mpi=pmix osu_bcast'", 16),
    ("sbatch -n 16 --wrap='mpirun osu_bcast'", 16), ("salloc -n 8 srun -n 4 osu_bcast", 4),
    ("sbatch -N 2 --wrap='srun --ntasks-per-node=4 osu_bcast'", 8),
    ("srun -N2 --tasks-per-node 4 osu_bcast", 8),
    ("srun -n 4 bash -lc 'cd x; export A=1 && exec ./osu_bcast -m 8 2>&1 | tee log'", 4),
    ("export NP=8; mpirun -np $NP osu_bcast", 8), ("NP=8; mpirun -np ${NP} osu_bcast", 8),
    ("module load mpi\nmpirun -np 4 osu_bcast # as ever", 4),
    ("env A=1 mpirun -np 4 env B=2 numactl -l ./bind.sh -n 9 osu_bcast", 4),
    ("time mpirun -np 4 timeout 60 all_reduce_perf_mpi", 4), ("numactl -N 0 all_reduce_perf", 1),
    ("mpirun -np 4 osu_bcast && echo done || exit 1", 4),
    ("mpirun --unheard-of 3 -x A=1 ./osu_bcast --ranks", None),
    ("flux run -N 2 osu_bcast", None), ("jsrun -n 6 osu_bcast", None),
    ("mpiexec -ppn 2 -hosts a,b osu_bcast", None), ("mpirun -H node[1-2] -N 2 osu_bcast", None),
    ("mpirun --map-by ppr:1:numa -H a osu_bcast", None), ("srun --nodes=2-4 osu_bcast", None),
    ("srun --nod=2 osu_bcast", None), ("srun --ntasks-per-gpu=1 -N 2 osu_bcast", None),
    ("sbatch -N 2 -n 16 --wrap 'srun -N 1 osu_bcast'", None), ("srun mpirun -np 4 osu_bcast", None),
    ("torchrun --nproc-per-node=4 --nnodes 1:2 run_all.py", None),
    ("deepspeed --num_gpus 2 --hostfile h ds_bench", None),
    ("mpirun -np 4 -np 8 osu_bcast", None), ("mpirun --wild w -np 8 osu_bcast", None),
    ("mpirun -np 1 osu_bcast : -np 3 osu_bcast", None), ("mpirun -np 1 a : -np 3 osu_bcast", None),
    ("somerun -n 16 all_reduce_perf", None), ("yhrun all_reduce_perf", None),
    ("while true; do all_reduce_perf; done", None), ("mpirun -np 16\nall_reduce_perf", None),
    ("all_reduce_perf\n-g 8", None), ("all_reduce_perf; all_gather_perf", None),
    ("docker run --gpus all img all_reduce_perf -g 8", None),
    ("mpirun -np 8 docker run img all_reduce_perf", None),
    ("kubectl exec pod -- mpirun -np 8 all_reduce_perf", None),
])
def test_ranks_are_read_or_the_command_is_refused(command: str, ranks: int | None) -> None:
    if ranks is None:
        with pytest.raises(UsageError):
            translate(command)
    else:
        assert ranks_of(command) == ranks


@pytest.mark.parametrize(("command", "env"), [
    ("mpiexec -genv NCCL_ALGO=Ring -genv UCX_TLS tcp -n 2 osu_bcast",
     {"NCCL_ALGO": "Ring", "UCX_TLS": "tcp"}),
    ("export NCCL_ALGO=Ring; UCX_TLS=tcp mpirun -np 2 env NCCL_DEBUG=INFO osu_bcast",
     {"NCCL_ALGO": "Ring", "UCX_TLS": "tcp", "NCCL_DEBUG": "INFO"}),
    ("aprun -n 2 -e NCCL_ALGO=Ring osu_bcast", {"NCCL_ALGO": "Ring"}),
    ("srun -n 2 --export ALL,NCCL_ALGO=Ring osu_bcast", {"NCCL_ALGO": "Ring"}),
    ("flux run -n 2 --env=NCCL_ALGO=Ring osu_bcast", {"NCCL_ALGO": "Ring"}),
    ("srun -n 2 bash -c 'export NCCL_ALGO=Ring NCCL_DEBUG=$X; osu_bcast'", {"NCCL_ALGO": "Ring"}),
])
def test_variables_of_a_command(command: str, env: dict[str, str]) -> None:
    assert translate(command).content["benchmarks"][0]["env"] == env


def starters(draw: random.Random) -> tuple[str, int | None]:
    """Return a launcher with its options in any order, and the ranks; None: it does not say."""
    n, k, nodes = draw.choice([2, 4, 16]), draw.choice([1, 2, 8]), draw.choice([1, 2, 3])
    name, counts, ranks, noise = draw.choice([
        ("mpirun", [f"-np {n}"], n, ["-x A=1", "-x B", "--mca a b", "--bind-to none", "-host a,b",
                                     "--tag-output", f"-N {k}", f"--map-by ppr:{k}:node", "-v"]),
        ("mpiexec", [f"-n {n}"], n, ["-genv A=1", "-genv A 1", "-env B=2", "-ppn 3", "-l",
                                     "-hosts a,b", "-bind-to core", "-iface ib0", "-genvall"]),
        ("mpirun", [f"--map-by ppr:{k}:node", "--host a,b"], 2 * k, ["-x A=1", "-mca a b", "-v"]),
        ("mpirun", [f"-N {k}"], None, ["--hostfile h", "-x A=1", "--oversubscribe"]),
        ("srun", [f"-n{n}"], n, ["--mpi=pmix", "-p gpu", "--gpus-per-task 1", f"-N {nodes}", "-l",
                                 "--export=ALL,A=1", "--container-image i", "-J osu_bcast"]),
        ("srun", [f"-N {nodes}", f"--ntasks-per-node={k}"], nodes * k, ["--exclusive", "-G 8",
                                                                     "--cpu-bind none"]),
        ("flux run", [f"-n {n}"], n, [f"-N{nodes}", "-g 1", "-o cpu-affinity=off", "--env=A=1"]),
        ("flux run", [f"-N {nodes}", f"--tasks-per-node={k}"], nodes * k, ["-x", "-q pbatch"]),
        ("jsrun", [f"-n {nodes}", f"-a{k}"], nodes * k, ["-c 7", "-g1", "-r 6", "-d packed"]),
        ("jsrun", [f"-n {nodes}"], None, ["-c 7", "-g1"]),
        ("aprun", [f"-n {n}"], n, [f"-N {k}", "-d 2", "-cc cpu", "-e A=1", "-b"]),
        ("torchrun", [f"--nproc_per_node={k}", f"--nnodes {nodes}"], nodes * k, [
            "--rdzv-id 7", "--standalone"]),
        ("deepspeed", [f"--num_gpus {k}", f"--num_nodes={nodes}"], nodes * k, ["--no_ssh"]),
        ("", [], 1, [])])
    options = [*counts, *draw.sample(noise, draw.randrange(len(noise) + 1))]
    if sum("ppr" in one or "-N " in one for one in options) > 1 and name == "mpirun":
        options = counts
    draw.shuffle(options)
    return " ".join([name, *options]).strip(), ranks


def test_generated_commands_have_the_right_ranks_or_none() -> None:
    """Known launchers and options in any order, with words around them, some of them strange."""
    draw, read = random.Random(51), 0
    for _ in range(3000):
        launcher, ranks = starters(draw)
        factor = draw.choice([1, 1, 4])
        program = draw.choice(["all_reduce_perf", "./b/all_reduce_perf_mpi", "/x/alltoall_perf"])
        words = f"{program} -b 8 -e 64" + (f" -g {factor}" if factor > 1 else "")
        inner = draw.choice(["", "", "numactl -l ", "env Q=1 ", "./bind.sh -q 3 ", "timeout 9 "])
        text = f"{launcher} {inner}{words}" if launcher or inner != "./bind.sh -q 3 " else words
        if draw.random() < 0.2:
            text = f"{launcher} bash -c '{draw.choice(['', 'cd x; ', 'export R=1 && '])}{words}'"
        is_strange = draw.random() < 0.3
        if is_strange:
            parts = text.split(" ")
            strange = ["--odd", "odd", "-n", "--odd=1", "$X", ":", "srun", "; ls;", "|", "-N"]
            parts.insert(draw.randrange(len(parts)), draw.choice(strange))
            text = " ".join(parts)
        text = draw.choice(["", "", "V=x ", "cd /y && ", "export W=1; ", "time "]) + text
        text += draw.choice(["", " 2>&1", " | tee log", " > log 2>&1 &", " || exit 1", "\n"])
        try:
            remark = translate(text).remarks[0]
        except UsageError:
            assert is_strange or ranks is None or ("--host" in launcher and "bind" in text), text
            continue
        read += 1
        assert ranks is not None and ranks_in(remark) == ranks * factor, (text, remark)
    assert read > 1500


def test_given_ranks_replace_those_of_the_command() -> None:
    assert run_line("ds_bench --scan", 8) == f"mpirun -np 8 {RUN}"
    assert run_line("torchrun --nproc-per-node 4 run_all.py", 8) == f"mpirun -np 8 {RUN}"
    assert planned("osu_alltoall -m 64:64", 8).cases[0].workload.size_bytes == 512


@pytest.mark.parametrize(("command", "word"), [
    ("mpirun -np 2 osu_bcast -M 1000", "-M 1000:"),
    ("mpirun -np 2 osu_bcast --papi=A:b", "--papi A:b:"),
    ("mpirun -np 2 osu_iallreduce", "osu_iallreduce:"),
    ("mpirun -np 2 osu_alltoall -l", "-l:"),
    ("mpirun -np 2 osu_alltoall -k fixed:1", "-k fixed:1:"),
    ("mpirun -np 2 osu_bw -T mpi_int", "-T mpi_int:"),
    ("mpirun -np 2 osu_bw D H", "D H:"),
    ("mpirun -np 2 osu_bcast -W 4", "-W 4:"),
    ("mpirun -np 2 ds_bench --scan --bw-unit GBps --raw", "--raw:"),
    ("mpirun -np 2 ds_bench --mem-factor 0.2", "--mem-factor 0.2:"),
    ("mpirun -np 2 all_reduce_perf -D 1", "-D 1:"),
    ("mpirun -np 2 all_reduce_perf -J out.json", "-J out.json:"),
    ("mpirun -np 2 -x OMPI_MCA_btl=tcp osu_bcast", "left out: variable OMPI_MCA_btl "),
    ("mpirun -np 2 osu_bcast | tee log", "left out: | tee log"),
    ("deepspeed --num_gpus 2 --num_nodes 1 -H h ds_bench", "left out: -H h"),
    ("mpirun -np 2 -pernode all_reduce_perf -g 8", "left out: -pernode"),
    ("mpirun -np 2 --map-by ppr:1:node all_reduce_perf -t 8", "left out: --map-by ppr:1:node"),
    ("srun -n 2 --gpus-per-task=8 all_reduce_perf -g 8", "left out: --gpus-per-task 8"),
    ("cd /opt/osu && mpirun -np 2 ./osu_bcast", "left out: cd /opt/osu"),
    ("timeout -k 5 60 mpirun -np 2 osu_bcast", "left out: timeout -k 5 60"),
    ("A=1; mpirun -np 2 osu_bcast", "left out: A=1"),
    ("all_reduce_perf -b 8", "one rank, as that command starts"),
    ("mpirun -np 2 -x NCCL_IB_HCA=$HCA osu_bcast", "left out: NCCL_IB_HCA=$HCA"),
    ("srun -n 2 --container-image=i.sqsh osu_bcast", "the container "),
])
def test_a_remark_for_what_has_no_counterpart(command: str, word: str) -> None:
    assert [line for line in translate(command).remarks if line.startswith(word)], (
        translate(command).remarks)


def test_secrets_are_not_printed() -> None:
    found = translate("mpirun -np 2 -x HF_TOKEN=hf_abcdefghijklmnopqrstuv osu_bcast")
    assert "hf_abc" not in repr(found)


@pytest.mark.parametrize("command", [
    "", "foo --bar", "mpirun -np 4", "mpirun -np 4 foo_perf", "mpirun -np 4 osu_get_latency",
    "mpirun -np 4 osu_latency_mt", "mpirun -np four osu_bcast", "mpirun -np $N osu_bcast",
    "mpirun -np 0 osu_bcast", "mpirun -np 9999999 osu_bcast", "mpirun osu_bcast", "osu_bcast",
    "ds_bench", "deepspeed ds_bench", "mpirun -N 8 osu_bcast",
    "mpirun -np 2 all_reduce_perf -b 8 -e 4", "mpirun -np 2 all_reduce_perf -q",
    "mpirun -np 2 all_reduce_perf -d fp4", "mpirun -np 2 all_reduce_perf --help",
    "mpirun -np 2 all_reduce_perf -g 99999999",
    "mpirun -np 2 osu_bcast -q", "mpirun -np 2 osu_bcast -m a", "mpirun -np 2 osu_bcast -m 8:4",
    "mpirun -np 2 osu_bcast -i 0", "mpirun -np 2 osu_bcast -T mpi_double", "osu_bcast -h",
    "mpirun -np 2 osu_bcast -d tpu", "mpirun -np 2 osu_bcast -k x", "mpirun -np 2 osu_bcast -m",
    "mpirun -np 2 ds_bench --trials 0", "mpirun -np 2 ds_bench --dtype fp4",
    "mpirun -np 2 ds_bench --nothing", "mpirun -np 2 ds_bench --backend 7",
    "mpirun -np 2 ds_bench --scan --maxsize 1", "mpirun -np 2 ds_bench -h", "osu_bcast 'a",
    "mpirun -np 8 ds_bench --scan --maxsize 40 --all-gather", "mpirun -np 2 osu_bcast 'a\nb'",
    "mpirun -np 2 ds_bench --local_rank=" + "9" * 9000,
])
def test_what_cannot_be_translated_is_one_line(command: str) -> None:
    done = CliRunner().invoke(app, ["from-command", command])
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2
    assert done.stdout == "" and "\n" not in str(done.exception)
    assert 0 < len(str(done.exception)) < 500


def test_the_printed_yaml_is_a_sweep_with_comments_first() -> None:
    done = CliRunner().invoke(app, ["from-command", "mpirun -np 4 osu_bcast -m 1024 -M 9"])
    assert done.exit_code == 0
    first, second, third, *_ = done.stdout.splitlines()
    assert (first[:2], second) == ("# ", f"# Run it: mpirun -np 4 {RUN}") and "-M 9" in third
    assert yaml.safe_load(done.stdout)["benchmarks"][0]["size"]["to"] == "1KiB"


def test_a_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    words = ["from-command", "mpirun -np 4 osu_bcast", "-o", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    sweep = json.loads(path.read_text("utf-8"))
    assert f"-c {path}" in sweep["notes"][0]
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, UsageError)
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0


WORDS = st.sampled_from([
    "mpirun", "srun", "torchrun", "deepspeed", "python", "-m", "torch.distributed.run", "-np", "-n",
    "-N", "4", "16", "-x", "A=1", "NCCL_ALGO=Ring", "-genv", "--export=ALL,B=2", "--num_gpus", "8",
    "--nproc-per-node=2", "--nnodes", "1:2", "all_reduce_perf", "alltoall_perf", "osu_bcast",
    "osu_allreduce", "osu_bw", "osu_ialltoallv", "ds_bench", "run_all.py", "-b", "-e", "-f", "2",
    "-i", "-g", "1", "1G", "-T", "mpi_int", "-m", "4:64", "-c", "-z", "-k", "rotate", "-d", "cuda",
    "--scan", "--trials", "--dtype", "float", "--maxsize", "6", "|", ">", "log", "'", '"', "\\",
    "NCCL_TESTS_SPLIT=MOD 2", "-r", "-1", "-l", "half", "all", "-o"])


@given(st.one_of(
    st.text(max_size=80),
    st.lists(st.one_of(WORDS, WORDS, WORDS, st.text(max_size=6)), max_size=14).map(" ".join),
    st.lists(WORDS, max_size=8).map(lambda more: " ".join(
        ["mpirun -np 4 osu_allreduce", *more]))))
def test_any_text_is_answered_by_a_sweep_or_one_line(text: str) -> None:
    try:
        found = translate(text)
    except UsageError as error:
        assert str(error) and "\n" not in str(error)
    else:
        check_config(dict(found.content), "printed")
