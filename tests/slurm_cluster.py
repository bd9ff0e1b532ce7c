"""A real Slurm on this machine, for as long as a block lasts: munge, one slurmctld, many slurmd.

    with SlurmCluster(tmp_path, [Nodes("v100", 2, gpus="v100:4", features="v100,nvlink")]) as slurm:
        done = slurm.run("sbatch", "--wait", "job.sbatch")

Any user can have one; the jobs then run as that user. Nodes are processes with ports of their own
on one host, so hpcbench sees one machine. With ``hosts`` each node is a host of virtual_hosts.sh,
with a network and a name of its own, inside whose ``run`` this then has to be called::

    virtual_hosts.sh run 3 python tests/slurm_cluster.py FOLDER PARTITION COUNT GPUS COMMAND...
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from launcher import free_ports

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "sinfo")
VIRTUAL_HOST = Path(__file__).with_name("virtual_hosts.sh")
GUARD = Path(__file__).with_name("slurm_guard.py")
_PATH = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
_NODE = "HPCBENCH_TEST_NODE"
_UP_S, _DOWN_S = 120.0, 10.0
_CONF = """\
ClusterName=test
SlurmctldHost={control}
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# how long a credential holds is also how long a job that was requeued is held back
AuthInfo=socket={sockets}/munge,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
# nodes of one host would use the same folder for PMIx
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# more cores than this machine has
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
KillWait=30
MessageTimeout=20
JobRequeue=1
GresTypes=gpu
"""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A partition of equal nodes; ``gpus`` as in ``v100:4``, ``features`` as in ``v100,nvlink``."""

    partition: str
    count: int
    gpus: str = ""
    features: str = ""
    cpus: int = 112

    def names(self, hosts: bool) -> list[str]:
        """Return the nodes' names: those of the virtual hosts, or made from the partition's."""
        stem = "vh" if hosts else f"{self.partition}-"
        return [f"{stem}{number}" for number in range(1, self.count + 1)]


@dataclass
class SlurmCluster:
    """A context manager: the cluster is up when it is entered, and gone when it is left."""

    folder: Path
    partitions: Sequence[Nodes]
    env: Mapping[str, str] = field(default_factory=dict)
    hosts: bool = False
    _sockets: Path = Path()
    """Where sockets are: a short path, since Linux takes 107 bytes of one."""
    _daemons: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> SlurmCluster:
        for name in ("state", "log", "munge"):
            (self.folder / name).mkdir(parents=True)
        self._sockets = Path(self._daemons.enter_context(
            TemporaryDirectory(prefix="slurm", dir="/tmp", ignore_cleanup_errors=True)))
        for folder in (self.folder, self._sockets):
            folder.chmod(0o755)
        self.env = {**(self.env or os.environ), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._start_guard()
        try:
            self._start_munge()
            self._configure()
            self._spawn("slurmctld", "-D")
            for nodes in self.partitions:
                for name in nodes.names(self.hosts):
                    self._start_node(name)
            self._wait_for_nodes()
        except BaseException:
            self._daemons.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.run("scancel", "--me", timeout=5)
            deadline = time.monotonic() + _DOWN_S
            while self.run("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.1)
        self._daemons.close()

    def run(
        self, *command: str, timeout: float = 120, **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster, stderr with stdout if it goes nowhere else."""
        env = {**self.env, "PATH": self.env.get("PATH", _PATH), **options.pop("env", {})}
        options = {"stderr": subprocess.STDOUT, **options}
        return subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=timeout, check=False, **options)

    def submit(self, *words: str, **options: Any) -> str:
        """Run sbatch with these words; return the job's number."""
        done = self.run("sbatch", "--parsable", *words, stderr=subprocess.PIPE, **options)
        assert done.stdout.strip().isdigit(), done.stdout + done.stderr
        return done.stdout.strip()

    def exit_code(self, job: str, timeout: float = 240) -> int:
        """Wait for a job's end and return its exit code.

        ``sbatch --wait`` would look at growing intervals, of half a minute in the end.
        """
        deadline = time.monotonic() + timeout
        while not (state := (told := self.run("scontrol", "show", "job", job).stdout).partition(
                "JobState=")[2].split()) or state[0] in (  # none: a busy controller gave no answer
                    "PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        return int(told.partition("ExitCode=")[2].partition(":")[0])

    def freeze(self, node: str) -> None:
        """Have a node fall silent, connections open: what is left of one that has lost power."""
        for process in self._on(node):
            process.suspend()

    def take_down(self, node: str) -> None:
        """Tell Slurm that a node is down, as it finds out itself after SlurmdTimeout."""
        self._update(node, "down", "reason=test")

    def restart(self, node: str) -> None:
        """Start a node again, on which nothing is left of what ran before."""
        left = self._on(node)
        for process in left:
            process.kill()
        psutil.wait_procs(left, _DOWN_S)
        self._start_node(node)
        self._update(node, "resume")

    def _update(self, node: str, state: str, *more: str) -> None:
        done = self.run("scontrol", "update", f"nodename={node}", f"state={state}", *more)
        assert done.returncode == 0, done.stdout

    def _on(self, node: str) -> list[psutil.Process]:
        """Return a node's processes: slurmd, what it started for job steps, and these steps."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                env = process.environ()
                if env.get("SLURM_CONF") == self.env["SLURM_CONF"] and node in (
                        env.get(_NODE), env.get("SLURMD_NODENAME")):
                    found |= {each.pid: each for each in (
                        process, *process.children(recursive=True))}
        return list(found.values())

    def _start_guard(self) -> None:
        """Have all of the cluster end if this process is killed; see slurm_guard.py."""
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), self.env["SLURM_CONF"], str(self._sockets)],
            stdin=subprocess.PIPE, start_new_session=True)
        self._daemons.callback(guard.communicate, b"all is down", _DOWN_S)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.chmod(0o755)
        key, door = folder / "key", self._sockets / "munge"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self._spawn("munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={door}", f"--pid-file={folder}/pid",
                    f"--log-file={folder}/log", f"--seed-file={folder}/seed")
        deadline = time.monotonic() + _UP_S
        while not door.exists():
            assert time.monotonic() < deadline, self._logs()
            time.sleep(0.01)

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        address = "10.77.0.1" if self.hosts else "127.0.0.1"
        ports = iter(free_ports(1 + sum(nodes.count for nodes in self.partitions)))
        conf = _CONF.format(control=f"{host}({address})", port=next(ports), folder=self.folder,
                            sockets=self._sockets, user=pwd.getpwuid(os.getuid()).pw_name)
        gres = ""
        for nodes in self.partitions:
            names = nodes.names(self.hosts)
            for place, name in enumerate(names, 1):
                where = (f"NodeAddr=10.77.0.{place} NodeHostname={name}" if self.hosts else
                         f"NodeAddr=127.0.0.1 NodeHostname={host}")
                conf += (f"NodeName={name} {where} Port={next(ports)} CPUs={nodes.cpus} "
                         f"CoresPerSocket={nodes.cpus} RealMemory=4000"
                         + (f" Gres=gpu:{nodes.gpus}" if nodes.gpus else "")
                         + (f" Feature={nodes.features}" if nodes.features else "") + "\n")
                for folder in (self._sockets / name, self.folder / f"tmp.{name}"):
                    folder.mkdir(mode=0o755)
            conf += (f"PartitionName={nodes.partition} Nodes={','.join(names)} "
                     "MaxTime=INFINITE State=UP\n")
            gres += self._gpus(nodes, names)
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(gres)

    def _gpus(self, nodes: Nodes, names: Sequence[str]) -> str:
        """Return the lines of gres.conf. A GPU is a device whose file's number Slurm tells jobs."""
        if not nodes.gpus:
            return ""
        kind, count = nodes.gpus.split(":")
        for number in range(int(count)):
            with suppress(FileExistsError):
                (self.folder / f"gpu{number}").symlink_to(os.devnull)
        return (f"NodeName={','.join(names)} Name=gpu Type={kind} "
                f"File={self.folder}/gpu[0-{int(count) - 1}]\n")

    def _start_node(self, name: str) -> None:
        on_host = [str(VIRTUAL_HOST), name, "exec"] if self.hosts else []
        self._spawn(*on_host, "slurmd", "-D", "-N", name, node=name)

    def _spawn(self, *command: str, node: str = "") -> None:
        """Start a daemon in the foreground, so that it can be ended and waited for."""
        log = self._daemons.enter_context((self.folder / "log" / "daemons").open("ab"))
        env = {**self.env, "PATH": _PATH, _NODE: node}
        daemon = subprocess.Popen(command, env=env, stdout=log, stderr=log,
                                  stdin=subprocess.DEVNULL, start_new_session=True)
        self._daemons.callback(_end, daemon)

    def _wait_for_nodes(self) -> None:
        wanted = sum(nodes.count for nodes in self.partitions)
        deadline = time.monotonic() + _UP_S
        while len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N",
                               stderr=subprocess.DEVNULL).stdout.split())) < wanted:
            assert time.monotonic() < deadline, self._logs()
            time.sleep(0.05)

    def _logs(self) -> str:
        logs = sorted((self.folder / "log").iterdir())
        return "Slurm does not come up\n" + "\n".join(
            f"-- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def missing_programs() -> list[str]:
    """Return which of Slurm's programs this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(_DOWN_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def main() -> int:
    """Run a command in a cluster of virtual hosts: FOLDER PARTITION COUNT GPUS COMMAND..."""
    folder, partition, count, gpus, *command = sys.argv[1:]
    nodes = Nodes(partition, int(count), gpus=gpus, features=f"{partition},nvlink")
    with SlurmCluster(Path(folder), [nodes], hosts=True) as slurm:
        done = slurm.run(*command, timeout=300)
    print(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
