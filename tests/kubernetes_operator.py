"""What Kubernetes and the MPI operator make of an MPIJob, acted out on virtual hosts, for root.

    virtual_hosts.sh run 3 python tests/kubernetes_operator.py FOLDER VENV COMMAND...

runs COMMAND, on whose PATH is a kubectl. A job that it creates is run as the operator would: a key
for ssh, a hostfile, variables; each pod is a host and a root folder of its own, in which the image
is what jobs/k8s/Dockerfile copies and VENV. There is no scheduler, no image, no GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
HOME = "/home/hpcbench"
NAMESPACE = "default"
INSTALLED = "lib/python3*/site-packages/__editable__.hpcbench-*.pth"
Job = Mapping[str, Any]


def operator_variables(spec: Job) -> dict[str, str]:
    """Return what the operator (0.8) adds to a launcher's environment."""
    variables = {"K_MPI_JOB_ROLE": "launcher", "NVIDIA_VISIBLE_DEVICES": "",
                 "NVIDIA_DRIVER_CAPABILITIES": ""}
    if spec["mpiImplementation"] == "MPICH":
        return variables | {"HYDRA_HOST_FILE": "/etc/mpi/hostfile",
                            "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"}
    return variables | {"OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                        "OMPI_MCA_orte_set_default_slots": str(spec["slotsPerWorker"])}


def hostfile(name: str, spec: Job) -> str:
    """Return the operator's hostfile: full names, and slots as this MPI writes them."""
    form = "{}:{}\n" if spec["mpiImplementation"] == "MPICH" else "{} slots={}\n"
    workers = range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    return "".join(form.format(f"{name}-worker-{worker}.{name}.{NAMESPACE}.svc",
                               spec["slotsPerWorker"]) for worker in workers)


def image_copies(dockerfile: str) -> dict[str, str]:
    """Return target -> file or folder of the checkout, of what is not installed by pip."""
    found = {}
    for words in re.findall(r"^COPY (.*)$", dockerfile, re.MULTILINE):
        *sources, target = words.split()
        for source in sources:
            if source.startswith("jobs/") or source == "hpcbench":
                whole = target + Path(source).name if target.endswith("/") else target
                found[whole] = source
    return found


@dataclass(frozen=True)
class Pod:
    """A pod of a job: its name, role (Launcher or Worker) and host, and where it is prepared."""

    name: str
    role: str
    host: str
    folder: Path

    @property
    def container(self) -> str:
        return self.role.lower()


@dataclass(frozen=True)
class Operator:
    """Runs one job in ``folder``, with the programs of ``venv``."""

    folder: Path
    venv: Path

    def start(self, documents: Sequence[Job], running: ExitStack) -> subprocess.Popen[bytes]:
        """Start all pods of a job, which end with ``running``; return the launcher."""
        maps = {doc["metadata"]["name"]: doc["data"] for doc in documents
                if doc["kind"] == "ConfigMap"}
        job = next(doc for doc in documents if doc["kind"] == "MPIJob")
        name, spec = job["metadata"]["name"], job["spec"]
        maps[f"{name}-config"] = {"hostfile": hostfile(name, spec)}
        secret = self._secret(self.folder / "secret")
        pods = [Pod(f"{name}-worker-{index}", "Worker", f"vh{index + 2}",
                    self.folder / f"{name}-worker-{index}")
                for index in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])]
        pods.append(Pod(f"{name}-launcher", "Launcher", "vh1", self.folder / f"{name}-launcher"))
        for pod in pods:
            template = spec["mpiReplicaSpecs"][pod.role]["template"]["spec"]
            self._prepare(pod, [other for other in pods if other is not pod], template, maps,
                          {secret: spec["sshAuthMountPath"]}, name)
        return [self._run(pod, spec, running) for pod in pods][-1]

    def _secret(self, folder: Path) -> Path:
        """Make a key as the operator does; the kubelet's files belong to root and are 0644."""
        folder.mkdir()
        key = folder / "id_rsa"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "",
                        "-f", key], check=True)
        shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
        for path in folder.iterdir():
            path.chmod(0o644)
        return folder

    def _prepare(
        self, pod: Pod, others: Sequence[Pod], template: Job, maps: Mapping[str, Job],
        mounts: Mapping[Path, str], job: str,
    ) -> None:
        files = pod.folder / "files"
        home, etc = files / HOME.lstrip("/"), files / "etc"
        home.mkdir(parents=True)
        etc.mkdir()
        os.chown(home, 1000, 1000)
        (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n"
                                    f"hpcbench:x:1000:1000::{HOME}:/bin/bash\n")
        (etc / "group").write_text("root:x:0:\nhpcbench:x:1000:\n")
        (etc / "hosts").write_text(_hosts(pod, others, job))
        # what a /tmp of its own may hide, then what the operator and the image bring
        targets = {Path(path): str(path) for path in (sys.base_prefix, sys.prefix, self.venv)}
        targets |= mounts
        volumes = {volume["name"]: self._volume(pod, volume, maps)
                   for volume in template.get("volumes", [])}
        for mount in template["containers"][0].get("volumeMounts", []):
            targets[volumes[mount["name"]]] = mount["mountPath"]
        if pod.role == "Launcher":
            targets[_written(pod.folder / "mpi", maps[f"{job}-config"])] = "/etc/mpi"
        targets |= {ROOT / source: target for target, source in
                    image_copies((ROOT / "jobs" / "k8s" / "Dockerfile").read_text()).items()}
        targets[self._path_file(pod.folder)] = str(next(self.venv.glob(INSTALLED)))
        (pod.folder / "mounts").write_text(
            "".join(f"{source} {target}\n" for source, target in targets.items()))

    def _path_file(self, folder: Path) -> Path:
        """Return what makes the environment take hpcbench from where the image has it."""
        path = folder / "hpcbench.pth"
        path.write_text("/opt/hpcbench/source\n")
        return path

    def _volume(self, pod: Pod, volume: Job, maps: Mapping[str, Job]) -> Path:
        """Return the folder of a volume, which a claim's pods share."""
        if "configMap" in volume:
            return _written(pod.folder / "volumes" / volume["name"],
                            maps[volume["configMap"]["name"]])
        claim = volume.get("persistentVolumeClaim")
        path = (self.folder / "claims" / claim["claimName"] if claim else
                pod.folder / "volumes" / volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def _run(self, pod: Pod, spec: Job, running: ExitStack) -> subprocess.Popen[bytes]:
        template = spec["mpiReplicaSpecs"][pod.role]["template"]["spec"]
        container, user = template["containers"][0], template["securityContext"]
        variables = {"HOME": HOME, "HOSTNAME": pod.name, "K_MPI_JOB_ROLE": pod.container,
                     "PATH": f"{self.venv}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        variables |= {item["name"]: item["value"] for item in container.get("env", [])}
        variables |= operator_variables(spec) if pod.role == "Launcher" else {}
        words = [str(TESTS / "virtual_hosts.sh"), pod.host, "exec", "sh", "-c",
                 'hostname "$0" && exec "$@"', pod.name, str(TESTS / "virtual_pod.sh"),
                 str(pod.folder), "setpriv", f"--reuid={user['runAsUser']}",
                 f"--regid={user['runAsGroup']}", "--clear-groups", "--no-new-privs",
                 "--bounding-set=-all", "--pdeathsig=KILL", "env", "-i", f"--chdir={HOME}",
                 *(f"{key}={value}" for key, value in variables.items()),
                 *container["command"], *container.get("args", [])]
        with (pod.folder / "log").open("wb") as log:
            popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=subprocess.STDOUT)
        running.callback(_end, popen)
        (pod.folder / "pid").write_text(str(popen.pid))
        return popen


def _hosts(pod: Pod, others: Sequence[Pod], job: str) -> str:
    """Return /etc/hosts: workers know short names, too, from the operator's dnsConfig."""
    lines = ["127.0.0.1 localhost"]
    for other in (pod, *others):
        full = f"{other.name}.{job}.{NAMESPACE}.svc"
        short = f" {other.name}" if pod.role == "Worker" or other is pod else ""
        lines.append(f"10.77.0.{other.host.removeprefix('vh')} {full}{short}")
    return "\n".join(lines) + "\n"


def _written(folder: Path, data: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in data.items():
        (folder / name).write_text(text)
    return folder


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()  # a pod ends with its parent
    popen.wait()


def main(folder: Path, venv: Path, command: Sequence[str]) -> int:
    """Run the command, and a job as soon as it has created one."""
    with ExitStack() as running:
        shell, launcher = subprocess.Popen(command), None
        running.callback(_end, shell)
        while shell.poll() is None:
            created = folder / "created.yaml"
            if launcher is None and created.exists():
                launcher = Operator(folder, venv).start(
                    list(yaml.safe_load_all(created.read_text())), running)
            if launcher is not None:
                code = launcher.poll()
                _save(folder / "state.json", {"exit_code": code, "phase": "Running" if code is None
                                              else "Failed" if code else "Succeeded"})
            time.sleep(0.05)
        return shell.wait()


def _save(path: Path, state: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state))
    part.replace(path)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
