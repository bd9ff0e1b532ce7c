"""The programs that start ranks: their options, and what these say about the number of ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType


class Role(Enum):
    """What an option says of the ranks; ``SHAPE``: what a rank gets, so nothing of their number.

    ``OTHER`` counts them by parts of a node that the command does not describe."""

    RANKS = 1
    OF_NODE = 2
    NODES = 3
    SETS = 4
    OF_SET = 5
    SHAPE = 6
    OTHER = 7


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks.

    ``roles``: option -> what it says. ``one`` and ``two`` are further options with as many values,
    ``none`` those without. ``settings`` set a variable: ``-x A=1``. ``long`` options begin with
    two dashes, and others have one letter, with which a value or another letter may be joined; else
    any option has one dash or two. ``command`` starts ranks, and the words behind it count them;
    without it mpirun starts them, and options are lost."""

    roles: Mapping[str, Role]
    none: frozenset[str] = frozenset()
    one: frozenset[str] = frozenset()
    two: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()
    long: bool = True
    command: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    flags_of_role: frozenset[str] = field(default_factory=frozenset)

    def name_of(self, word: str) -> str:
        """Return an option as the sets have it; any number of dashes where they do not matter."""
        return word if self.long else f"-{word.lstrip('-')}"

    def n_values(self, name: str) -> int | None:
        """Return how many words follow an option, None: it is not known."""
        if name in self.none or name in self.flags_of_role:
            return 0
        if name in self.two:
            return 2
        return 1 if name in self.one or name in self.roles or name in self.settings else None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _dashed(text: str) -> frozenset[str]:
    return frozenset(f"-{word}" for word in text.split())


_MPI_ROLES = {
    **dict.fromkeys(("-n", "-np", "-c"), Role.RANKS),
    **dict.fromkeys(("-N", "-npernode", "-pernode"), Role.OF_NODE),
    # Hydra and Intel MPI place so many on a node: without -n they start one, or one a core
    **dict.fromkeys(("-npersocket", "-ppn", "-perhost", "-grr", "-rr", "-ranks-per-proc"),
                    Role.OTHER),
    **dict.fromkeys(("-cpus-per-proc", "-cpus-per-rank", "-depth"), Role.SHAPE)}
_MPI = Launcher(
    _MPI_ROLES,
    # Open MPI and PRRTE, then Hydra and Intel MPI, then PALS
    none=_dashed(
        "v q V verbose quiet allow-run-as-root report-bindings display-map display-allocation "
        "display-devel-map nolocal oversubscribe nooversubscribe no-oversubscribe bynode byslot "
        "byboard bysocket bycore bind-to-core bind-to-socket bind-to-none use-hwthread-cpus "
        "use-hwthreads-as-cpus enable-recovery disable-recovery continuous tag-output "
        "timestamp-output merge-stderr-to-stdout xml debug debug-daemons debug-daemons-file "
        "debug-devel leave-session-attached do-not-launch do-not-resolve preload-binary "
        "get-stack-traces report-child-jobs-separately novm show-progress test-suicide tv "
        "l prepend-rank genvall genvnone envall envnone localonly localroot nolocal info "
        "print-rank-map print-all-exitcodes disable-auto-cleanup disable-hostname-propagation "
        "noconf check_mpi trace aps silent-abort line-buffer no-transfer"),
    one=_dashed(
        "host H hostfile machinefile default-hostfile bind-to map-by rank-by am tune wd wdir path "
        "prefix output output-filename output-directory stdin timeout cpu-set cpu-list slot-list "
        "personality rankfile rf max-restarts preload-files report-uri report-pid report-state "
        "ompi-server server-wait-time display runtime-options rtos xterm tmpdir stream-buffering "
        "f hosts rmk launcher launcher-exec bootstrap bootstrap-exec bootstrap-exec-args iface "
        "membind topolib genvlist genvexcl genvuser envlist envexcl umask arch prepend-pattern "
        "outfile-pattern errfile-pattern outfile errfile order-nodes s gtool gtoolfile tune-file "
        "port-range branch-count demux profile hostos port nameserver usize pmi-port errcode "
        "d cpu-bind mem-bind gpu-bind ppl-hosts hosts-file exclude-hosts pmi rlimits umem"),
    two=_dashed("mca gmca omca prtemca pmixmca mpi-param"),
    settings=_dashed("x genv env"), long=False, command=("mpirun", "-np"),
    flags_of_role=_words("-pernode -rr"))
_SLURM = Launcher(
    {**dict.fromkeys(("-n", "--ntasks"), Role.RANKS), "--ntasks-per-node": Role.OF_NODE,
     "--tasks-per-node": Role.OF_NODE,
     **dict.fromkeys(("-N", "--nodes"), Role.NODES),
     **dict.fromkeys(("--ntasks-per-gpu", "--ntasks-per-socket", "--ntasks-per-core"), Role.OTHER),
     **dict.fromkeys(("-c", "--cpus-per-task", "--gpus-per-task", "--tres-per-task"), Role.SHAPE)},
    none=_words(
        "-H -K -O -Q -X -Z -b -k -l -s -u -v --hold --contiguous --disable-status --exact "
        "--exclusive --help --interactive --kill-on-bad-exit --label --no-allocate --no-bell "
        "--no-kill --no-requeue --no-shell --overcommit --overlap --oversubscribe --parsable --pty "
        "--quiet --requeue --reboot --spread-job --test-only --unbuffered --use-min-nodes "
        "--verbose --wait-all-nodes --x11 --container-mount-home --no-container-mount-home "
        "--container-remap-root --no-container-remap-root --container-writable "
        "--container-readonly --container-entrypoint --no-container-entrypoint"),
    one=_words(
        "-A -B -C -D -G -I -J -L -M -P -R -S -T -V -W -a -d -e -i -m -o -p -q -r -t -w -x "
        "--account --acctg-freq --array --batch --bb --bbf --begin --chdir --cluster-constraint "
        "--clusters --comment --constraint --container --container-env --container-image "
        "--container-mounts --container-name --container-save --container-workdir --core-spec "
        "--cores-per-socket --cpu-bind --cpu-freq --cpu_bind --cpus-per-gpu --deadline "
        "--delay-boot --dependency --distribution --epilog --error --exclude --export-file --extra "
        "--extra-node-info --gid --gpu-bind --gpu-freq --gpus --gpus-per-node --gpus-per-socket "
        "--gres --gres-flags --hint --input --job-name --jobid --licenses --mail-type --mail-user "
        "--mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mem_bind --mincpus --mpi "
        "--msg-timeout --network --nodefile --nodelist --open-mode --output --partition --power "
        "--priority --prolog --qos --relative --reservation --signal --slurmd-debug "
        "--sockets-per-node --switches --task-epilog --task-prolog --thread-spec --threads "
        "--threads-per-core --time --time-min --tmp --tres-bind --uid --wait --wckey"),
    settings=_words("--export"), command=("srun", "-n"))
_FLUX = Launcher(
    {**dict.fromkeys(("-n", "--ntasks"), Role.RANKS), "--tasks-per-node": Role.OF_NODE,
     **dict.fromkeys(("-N", "--nodes"), Role.NODES),
     **dict.fromkeys(("--cores", "--tasks-per-core"), Role.OTHER),
     **dict.fromkeys(("-c", "-g", "--cores-per-task", "--gpus-per-task"), Role.SHAPE)},
    none=_words("-v -x -u -l --verbose --exclusive --unbuffered --label-io --dry-run --wait-event "
                "--quiet --watch"),
    one=_words("-t -o -O -q -B --time-limit --setopt --setattr --output --error --input --queue "
               "--bank --urgency --job-name --cwd --gpus-per-node --requires --dependency "
               "--begin-time --signal --flags --env-remove --env-file --rlimit --conf --taskmap "
               "--add-file --log --log-stderr --cc --bcc"),
    settings=_words("--env"), command=("flux", "run", "-n"), verbs=("mini", "run", "submit"))
_JSRUN = Launcher(
    {**dict.fromkeys(("-p", "--np"), Role.RANKS), **dict.fromkeys(("-n", "--nrs"), Role.SETS),
     **dict.fromkeys(("-a", "--tasks_per_rs"), Role.OF_SET),
     **dict.fromkeys(("-c", "-g", "-m", "-r", "--cpu_per_rs", "--gpu_per_rs", "--memory_per_rs",
                      "--rs_per_host"), Role.SHAPE)},
    none=_words("-I -V -v --immediate --version"),
    one=_words("-b -d -e -f -h -i -k -l -o -t -u -D -K -L -M -P -S -T -U -X --bind "
               "--launch_distribution --chdir --exit_on_error --erf_input --erf_output "
               "--latency_priority --rs_per_socket --smpiargs --stdio_input --stdio_stdout "
               "--stdio_stderr --stdio_mode --env_eval --launch_node_task --allocate_only"),
    settings=_words("-E --env"), command=("jsrun", "-p"))
_APRUN = Launcher(
    {**dict.fromkeys(("-n", "--pes"), Role.RANKS), **dict.fromkeys(("-N", "--pes-per-node"),
                                                                  Role.OF_NODE),
     **dict.fromkeys(("-S", "-B"), Role.OTHER), **dict.fromkeys(("-d", "-m"), Role.SHAPE)},
    none=_words("-b -q -R -v"),
    one=_words("-D -F -L -M -P -T -a -j -l -p -r -sl -sn -t -cc -cp --cc --cpu-binding"),
    settings=_words("-e"), command=("aprun", "-n"), flags_of_role=_words("-B"))
_IBRUN = Launcher({**dict.fromkeys(("-n", "-np"), Role.RANKS)}, one=_dashed("o"), long=False,
                  command=("ibrun", "-n"))
_RSH = Launcher({**dict.fromkeys(("-n", "-np"), Role.RANKS)}, long=False,
                none=_dashed("v rsh ssh debug xterm show legacy use-xlauncher export export-all"),
                one=_dashed("hostfile config env param sg"))
_TORCHRUN = Launcher(
    {**dict.fromkeys(("--nproc-per-node", "--nproc_per_node"), Role.OF_NODE),
     "--nnodes": Role.NODES},
    none=_words("--standalone --no-python --no_python --module -m --run-path --run_path --use-env "
                "--use_env"),
    one=_words("-r -t --signals-to-handle --signals_to_handle "
               "--rdzv-backend --rdzv_backend --rdzv-endpoint --rdzv_endpoint --rdzv-id "
               "--rdzv_id --rdzv-conf --rdzv_conf --max-restarts --max_restarts "
               "--monitor-interval --monitor_interval --start-method --start_method --role "
               "--log-dir --log_dir --redirects --tee --local-ranks-filter --local_ranks_filter "
               "--node-rank --node_rank --master-addr --master_addr --master-port --master_port "
               "--local-addr --local_addr --logs-specs --logs_specs"),
    command=("torchrun",))
_DEEPSPEED = Launcher(
    {**dict.fromkeys(("--num_gpus", "--num-gpus"), Role.OF_NODE),
     **dict.fromkeys(("--num_nodes", "--num-nodes"), Role.NODES)},
    none=_words("--force_multi --module --no_python --no_local_rank --save_pid "
                "--elastic_training --bind_cores_to_rank --no_ssh"),
    one=_words("-H -i -e --hostfile --include --exclude --master_port --master_addr --launcher "
               "--launcher_args --node_rank --autotuning --ssh_port --venv_script"))

LAUNCHERS: Mapping[str, Launcher] = MappingProxyType({
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.openmpi", "mpirun.openmpi",
                     "mpiexec.mpich", "mpirun.mpich", "orterun", "prterun"), _MPI),
    "prun": replace(_MPI, command=("prun", "-n")), "srun": _SLURM, "flux": _FLUX,
    "jsrun": _JSRUN, "aprun": _APRUN, "ibrun": _IBRUN, "mpirun_rsh": _RSH,
    "torchrun": _TORCHRUN, "deepspeed": _DEEPSPEED,
    "torch.distributed.run": _TORCHRUN, "torch.distributed.launch": _TORCHRUN})
"""Program, or module of Python -> the launcher whose options it has."""
ALLOCATIONS: Mapping[str, Launcher] = MappingProxyType({"sbatch": _SLURM, "salloc": _SLURM})
"""Program that reserves nodes for a launcher."""
MPI, SLURM, TORCHRUN, DEEPSPEED = _MPI, _SLURM, _TORCHRUN, _DEEPSPEED
PPR = re.compile(r"ppr:(\d+):(\w+)(?::.*)?", re.IGNORECASE)
"""A mapping of Open MPI: so many ranks of each node, or of each of another part."""
