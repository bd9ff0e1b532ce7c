"""jobs/k8s/run.sh with a kubectl that records what it is asked and plays a cluster's answers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher import ROOT

SCRIPT = ROOT / "jobs" / "k8s" / "run.sh"
TOOLS = ("bash", "sh", "cat", "date", "dirname", "grep", "gzip", "ln", "ls", "mkdir", "rm",
         "rmdir", "sed", "tar", "touch", "tr", "wc")
"""All that run.sh and the stand-ins need."""
KUBECTL = """#!/bin/bash
# Each answer is a file of shell beside this one, which a test may replace.
play=$(dirname "$0")/../play
echo "${*//$'\\n'/ }" >>"$play/calls"
if [ "$1" = --namespace ]; then shift 2; fi
if [ "$1" = get ] && [[ $* = *$'\n'* ]]; then # as kubectl says of a line break inside braces
    echo "error: error parsing jsonpath, unclosed action" >&2
    exit 1
fi
case "$*" in
    *--raw*) . "$play/raw" ;;
    "get namespace "*) . "$play/namespace" ;;
    "auth can-i "*) . "$play/rights" ;;
    "create --dry-run=server"*) cat >/dev/null; . "$play/job" ;;
    "get nodes "*) . "$play/nodes" ;;
    "get pods --all-namespaces "*) . "$play/pods" ;;
    "get networkpolicies "*) . "$play/policies" ;;
    "get secret "*) . "$play/secret" ;;
    *metadata.name*'|{.status.phase}'*) . "$play/waiting" ;;
    *--all-containers*) echo "printed by $2" ;;
    create*) cat >"$play/created.yaml"; . "$play/create" ;;
    *metadata.name*'{"\\n"}'*) . "$play/troubles" ;;
    *job-role=launcher*metadata.name*) echo job-launcher ;;
    *metadata.name*) echo job-launcher job-worker-0 ;;
    "get pod "*) . "$play/worker" ;;
    *status.phase*) . "$play/phase" ;;
    *exitCode*) . "$play/exit_code" ;;
    *status.reason* | *status.message*) . "$play/reason" ;;
    logs*) . "$play/logs" ;;
    "exec job-launcher"*) . "$play/interrupt" ;;
    exec*) mkdir -p "$play/$2"; files=$play/$2; shift 5; . "$play/fetch" ;;
    delete*) ;;
    *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""
FOUND = ROOT / "tests" / "data" / "kubernetes"
"""Objects as the Kubernetes API gives them."""
ANSWERS = {
    "namespace": "echo namespace/team",
    "rights": "echo yes",
    **{name: f"cat '{FOUND / name}.json'" for name in ("job", "nodes", "pods", "policies")},
    "secret": "echo secret/registry",
    "waiting": 'echo "job-launcher|Running||"; echo "job-worker-0|Running||"',
    "raw": """echo '{"resources":[{"name":"mpijobs"}]}'""",
    "create": "echo created",
    "troubles": "",
    "phase": 'cat "$play/is" 2>/dev/null || { echo Running >"$play/is"; echo Pending; }',
    "logs": 'echo "[1/1] ok"; echo Succeeded >"$play/is"',
    "exit_code": "printf 0",
    "reason": "",
    "interrupt": "",
    "worker": "printf Running",
    "fetch": '"${@//\\/results/$files}"',  # what it is asked to run, with its folder of results
}


@dataclass(frozen=True)
class Ended:
    """How run.sh ended, what it printed, and what kubectl was asked."""

    code: int
    stdout: str
    stderr: str
    calls: list[str]

    def line(self) -> str:
        """Return the only line of a run that was refused."""
        assert self.code == 2, self
        lines = self.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("hpcbench k8s: "), self
        return lines[0].removeprefix("hpcbench k8s: ")

    def asked(self, verb: str) -> list[str]:
        """Return the calls of this verb, without those that ask for rights."""
        calls = [call.removeprefix("--namespace team ") for call in self.calls]
        return [call for call in calls if call.startswith(f"{verb} ")]

    def deleted(self) -> bool:
        """Tell whether the last thing done was to delete what this run had made, nothing else."""
        return re.search(r"delete mpijobs.kubeflow.org,configmaps --selector hpcbench-run=\d+-\d+ ",
                         self.calls[-1]) is not None


@dataclass(frozen=True)
class Cluster:
    """A folder with the stand-in's program and answers, and the user's current folder."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "user" / "results" / "job"

    def answer(self, **answers: str) -> None:
        for name, text in answers.items():
            (self.folder / "play" / name).write_text(text + "\n")

    def store(self, worker: int, *names: str) -> None:
        """Put files into a worker's /results."""
        for name in names:
            path = self.folder / "play" / f"job-worker-{worker}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"of worker {worker}")

    @contextmanager
    def start(self, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        env = {"PATH": str(self.folder / "bin"), "HPCBENCH_IMAGE": "image", "HPCBENCH_NAME": "job"}
        with subprocess.Popen(
                ["bash", str(SCRIPT), *words], env=env | variables, cwd=self.folder / "user",
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL, start_new_session=True) as popen:
            try:
                yield popen
            finally:
                with suppress(ProcessLookupError):  # kubectl, too, should run.sh have left it
                    os.killpg(popen.pid, signal.SIGKILL)

    def ended(self, popen: subprocess.Popen[str]) -> Ended:
        stdout, stderr = popen.communicate(timeout=60)
        return Ended(popen.returncode, stdout, stderr, self.calls())

    def calls(self) -> list[str]:
        path = self.folder / "play" / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *words: str, **variables: str) -> Ended:
        with self.start(*words, **variables) as popen:
            return self.ended(popen)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    for name in ("bin", "play", "user"):
        (tmp_path / name).mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    for name, text in {"kubectl": KUBECTL, "sleep": "#!/bin/sh\nexec /bin/sleep 0.05\n"}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    cluster = Cluster(tmp_path)
    cluster.answer(**ANSWERS)
    cluster.store(0, "job/results.h5", "job/traces/rank00000.h5")
    return cluster


def test_a_job_from_creation_to_deletion(cluster: Cluster) -> None:
    done = cluster.run("2", HPCBENCH_NAMESPACE="team")
    assert done.code == 0 and not done.stderr, done
    assert "[1/1] ok" in done.stdout and "exit code 0" in done.stdout
    results = cluster.folder / "user" / "results"
    assert (results / "latest" / "traces" / "rank00000.h5").read_text() == "of worker 0"
    assert f"results: {results}/job" in done.stdout
    assert all(call.startswith("--namespace team ") for call in done.calls)
    verbs = [call.split()[2] for call in done.calls
             if "--dry-run" not in call and "--all-containers" not in call]
    assert verbs[0] == "get" and verbs.count("create") == verbs.count("delete") == 1
    assert verbs.count("logs") == verbs.count("exec") == 1
    assert verbs.index("logs") < verbs.index("exec") < verbs.index("delete")
    logs = results / "job" / "logs"
    assert (logs / "job-worker-0.log").read_text() == "printed by job-worker-0\n"
    assert (logs / "job-launcher.log").exists() and f"logs of the pods: {logs}" in done.stdout
    created = (cluster.folder / "play" / "created.yaml").read_text()
    token = re.findall(r"hpcbench-run: \"(\S+)\"", created)
    assert len(token) == 2 and f"hpcbench-run={token[0]} " in done.calls[-1] and done.deleted()


@pytest.mark.parametrize("code", [1, 3, 137])
def test_the_exit_code_of_the_job_is_passed_on(cluster: Cluster, code: int) -> None:
    cluster.answer(logs='echo Failed >"$play/is"', exit_code=f"printf {code}",
                   troubles='echo "job-launcher Failed "; echo "job-worker-1 Pending  no node"')
    done = cluster.run("2")
    assert done.code == code and done.deleted()
    assert done.stderr == "job-worker-1 Pending no node\n"
    assert (cluster.results / "results.h5").exists()


@pytest.mark.parametrize(("words", "variables", "told"), [
    ((), {}, "give NODES"),
    (("4", "8"), {}, "NODES BATCH SEQ STEPS"),
    (("four",), {}, "NODES is 'four'"),
    (("0",), {}, "above 0"),
    (("4", "8", "-1", "1"), {}, "SEQ is '-1'"),
    (("4",), {"HPCBENCH_IMAGE": ""}, "HPCBENCH_IMAGE is ''"),
    (("4",), {"HPCBENCH_IMAGE": "a b"}, "HPCBENCH_IMAGE is 'a b'"),
    (("4",), {"HPCBENCH_MPI": "intel"}, "HPCBENCH_MPI is 'intel': mpich or openmpi"),
    (("4",), {"HPCBENCH_NAME": "My_job"}, "HPCBENCH_NAME is 'My_job'"),
    (("4",), {"HPCBENCH_SLOTS": "2x"}, "HPCBENCH_SLOTS is '2x'"),
    (("4",), {"HPCBENCH_GPU": "a: b"}, "HPCBENCH_GPU is 'a: b'"),
    (("4",), {"HPCBENCH_CLAIM": "A b"}, "HPCBENCH_CLAIM is 'A b'"),
    (("4",), {"HPCBENCH_UNCHECKED": "nodes all"}, "HPCBENCH_UNCHECKED has 'all': some of nodes"),
    (("4",), {"HPCBENCH_TIME_LIMIT": "1h"}, "HPCBENCH_TIME_LIMIT is '1h'"),
    (("4",), {"HPCBENCH_CONFIG": "/nowhere.json"}, "cannot read /nowhere.json"),
    (("4",), {"HPCBENCH_CONFIG": __file__}, "Python code does not travel"),
    (("4",), {"HPCBENCH_MANIFEST": "/nowhere.yaml"}, "cannot read /nowhere.yaml"),
    (("4",), {"HPCBENCH_ARGUMENTS": "--iters 2\n--only x"}, "HPCBENCH_ARGUMENTS has a line break"),
    (("4", "1", "1", "1"), {"HPCBENCH_CONFIG": "x.json"}, "HPCBENCH_ARGUMENTS instead"),
    (("1",), {"HPCBENCH_CONFIG": "large.json"}, "a ConfigMap takes"), (("4",), {}, "no kubectl on"),
])
def test_bad_usage_is_one_line_and_asks_no_cluster(
    cluster: Cluster, words: tuple[str, ...], variables: dict[str, str], told: str,
) -> None:
    (cluster.folder / "user" / "large.json").write_text(" " * 900_000)
    if told.startswith("no kubectl"):
        (cluster.folder / "bin" / "kubectl").unlink()
    done = cluster.run(*words, **variables)
    assert told in done.line() and not done.calls


@pytest.mark.parametrize(("phase", "told"), [
    ("printf ''", "is the operator running? kubectl describe mpijob job"),
    ("printf Pending", "did not start in 1 s"),
    ("echo refused >&2; exit 1", "is the operator running?"),
])
def test_a_job_that_does_not_start(cluster: Cluster, phase: str, told: str) -> None:
    cluster.answer(phase=phase, troubles='echo "job-launcher Pending ImagePullBackOff"')
    done = cluster.run("4", HPCBENCH_START_LIMIT="1")
    assert done.code == 2 and told in done.stderr.splitlines()[-1] and done.deleted()
    assert "job-launcher Pending ImagePullBackOff" in done.stderr


@pytest.mark.parametrize(("answers", "told"), [
    ({"create": "printf 'configmap created\\nmpijobs forbidden\\n' >&2; exit 1"},  # part of it is
     "refuses the job: configmap created mpijobs forbidden"),
    ({"logs": 'echo Failed >"$play/is"', "exit_code": "", "reason": "printf 'Evicted: disk'"},
     "left no exit code: Evicted: disk")])
def test_a_job_that_is_refused_or_evicted_is_deleted(
    cluster: Cluster, answers: dict[str, str], told: str,
) -> None:
    cluster.answer(**answers)
    done = cluster.run("4")
    assert told in done.line() and done.deleted()


def test_a_launcher_that_is_gone(cluster: Cluster) -> None:
    """What the workers have is copied all the same."""
    cluster.store(1, "job.on-job-worker-1/traces/rank00001.journal")
    cluster.answer(logs='echo >"$play/is"', exit_code="")
    done = cluster.run("2")
    assert "the launcher's pod is gone" in done.line() and done.deleted()
    assert (cluster.results / "traces" / "rank00000.h5").exists()
    assert (cluster.results / "traces" / "rank00001.journal").exists()


def test_streams_that_break_off_are_taken_up_again(cluster: Cluster) -> None:
    """That of the log, and that of the results."""
    cluster.answer(fetch='if mkdir "$play/broke" 2>/dev/null; then printf x; exit 1; fi\n'
                   + ANSWERS["fetch"])
    cluster.answer(logs='test -e "$play/once" || { touch "$play/once"; echo a; exit 1; }; '
                        'echo b; echo Succeeded >"$play/is"')
    done = cluster.run("1")
    assert done.code == 0 and "a\nb\n" in done.stdout and "attempt 1 of 3" in done.stderr
    assert (cluster.results / "results.h5").exists()
    first, second = (call for call in done.asked("logs") if "--follow" in call)
    assert "--since" not in first and "--since=12s" in second


@pytest.mark.parametrize(("place", "told"), [
    ("results", "cannot write"), ("results/job/results.h5", "has another run")])
def test_a_folder_that_cannot_take_the_results_starts_nothing(
    cluster: Cluster, place: str, told: str,
) -> None:
    path = cluster.folder / "user" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    done = cluster.run("1")
    assert told in done.line() and not created(cluster)


@pytest.mark.parametrize(("code", "ends"), [(0, 3), (1, 1)])
@pytest.mark.parametrize("fetch", ["exit 1", ANSWERS["fetch"] + "; exit 1"])
def test_what_is_not_copied_is_not_deleted(
    cluster: Cluster, fetch: str, code: int, ends: int,
) -> None:
    """Nothing arrives; or the stream breaks after results.h5. What is printed then helps."""
    cluster.answer(fetch=fetch, exit_code=f"printf {code}")
    done = cluster.run("1", HPCBENCH_NAMESPACE="team")
    assert done.code == ends and "attempt 3 of 3" in done.stderr
    assert "results: " not in done.stdout and not done.asked("delete")
    copy, delete = re.findall("^    (kubectl .*)", done.stderr, re.MULTILINE)
    assert re.fullmatch(r"kubectl --namespace team delete mpijobs.kubeflow.org,configmaps "
                        r"--selector hpcbench-run=\d+-\d+", delete)
    shutil.rmtree(cluster.results)
    cluster.results.mkdir()
    cluster.answer(fetch=ANSWERS["fetch"])
    subprocess.run(["bash", "-c", copy], check=True, timeout=30,
                   env={"PATH": str(cluster.folder / "bin")})
    assert (cluster.results / "traces" / "rank00000.h5").read_text() == "of worker 0"


def test_the_others_are_asked_where_not_all_is_well(cluster: Cluster) -> None:
    """One has what did not get to rank 0; one has never started, which is no failure."""
    cluster.store(1, "job.on-job-worker-1/traces/rank00001.journal")
    cluster.answer(exit_code="printf 1", worker="printf Pending", fetch='case $files in *-2) exit 1'
                   f' ;; *) {ANSWERS["fetch"]} ;; esac')
    done = cluster.run("3")
    assert done.code == 1 and done.deleted() and "results: " in done.stdout
    assert (cluster.results / "traces" / "rank00001.journal").exists()


def test_no_results_at_all(cluster: Cluster) -> None:
    """Bad usage, which the launcher has told."""
    shutil.rmtree(cluster.folder / "play" / "job-worker-0")
    cluster.answer(exit_code="printf 2")
    done = cluster.run("1")
    assert done.code == 2 and done.deleted()
    assert done.stderr == "hpcbench k8s: there are no results\n"
    assert [path.name for path in cluster.results.iterdir()] == ["logs"]


def created(cluster: Cluster) -> bool:
    return (cluster.folder / "play" / "created.yaml").exists()


FORBIDDEN = "echo 'Error from server (Forbidden): not for you' >&2; exit 1"
NOT_FOUND = "echo 'Error from server (NotFound): not found' >&2; exit 1"


@pytest.mark.parametrize(("answers", "variables", "told"), [
    ({"rights": 'case "$*" in *"create mpijobs"* | *exec) echo no; exit 1 ;; *) echo yes ;; esac'},
     {}, "you may not create mpijobs.kubeflow.org, create pods/exec in namespace of the context"),
    ({"raw": NOT_FOUND}, {}, "no MPIJob of kubeflow.org/v2beta1"),
    ({"raw": """echo '{"resources":[{"name":"tfjobs"}]}'"""}, {}, "no MPIJob of kubeflow.org"),
    ({"raw": "echo 'E1 memcache' >&2; echo 'dial tcp: refused' >&2; exit 1"}, {},
     "cannot reach the cluster: dial tcp: refused"),
    ({"namespace": NOT_FOUND}, {"HPCBENCH_NAMESPACE": "team"}, "there is no namespace team"),
    ({"job": "echo 'admission webhook denied the request' >&2; exit 1"}, {},
     "the cluster refuses the job: admission webhook denied"),
    ({"secret": NOT_FOUND}, {}, "imagePullSecrets names registry, and there is no such secret"),
    ({}, {"HPCBENCH_SLOTS": "8"}, "5 Ready nodes with 8 free nvidia.com/gpu are needed, there are 4"
     " (gpu-b: 6 of 8 free; gpu-c: not Ready; gpu-d: cordoned; gpu-e: taint team, which the"
     " manifest does not tolerate; small-a: no nvidia.com/gpu)"),
    ({"policies": f"cat '{FOUND / 'policies-denying.json'}'"}, {},
     "network policy default-deny restricts ingress"),
])
def test_what_the_cluster_lacks_is_one_line_and_nothing_is_created(
    cluster: Cluster, answers: dict[str, str], variables: dict[str, str], told: str,
) -> None:
    cluster.answer(**answers)
    done = cluster.run("5", **variables)
    assert told in done.line() and not created(cluster)
    assert not (cluster.folder / "user" / "results").exists()


def test_all_that_is_wrong_is_reported_together(cluster: Cluster) -> None:
    cluster.answer(secret=NOT_FOUND, policies=f"cat '{FOUND / 'policies-denying.json'}'")
    done = cluster.run("9")
    assert done.code == 2 and len(done.stderr.splitlines()) == 3 and not created(cluster)


@pytest.mark.parametrize(("answers", "told"), [
    ({"nodes": FORBIDDEN}, "nodes and their GPUs: Error from server (Forbidden): not for you"),
    ({"pods": FORBIDDEN}, "which nvidia.com/gpu other pods have: Error from server (Forbidden)"),
    ({"policies": FORBIDDEN}, "network policies: Error from server (Forbidden)"),
    ({"secret": FORBIDDEN}, "whether there is a secret registry: Error from server (Forbidden)"),
    ({"nodes": "echo nonsense"}, "nodes: judge.py failed"),
    ({}, "nodes, network policies and secrets: no python3"),
    ({"job": "echo 'webhook does not support dry run' >&2; exit 1"}, "not support dry run"),
])
def test_what_may_not_be_seen_is_reported_and_is_no_problem(
    cluster: Cluster, answers: dict[str, str], told: str,
) -> None:
    cluster.answer(**answers)
    if not answers:
        (cluster.folder / "bin" / "python3").unlink()
    done = cluster.run("2")
    assert done.code == 0 and f"not checked: {told}".split(":")[0] in done.stdout, done
    assert told in done.stdout


def test_checks_can_be_left_out(cluster: Cluster) -> None:
    cluster.answer(policies=f"cat '{FOUND / 'policies-denying.json'}'")
    done = cluster.run("9", HPCBENCH_UNCHECKED="nodes policies")
    assert done.code == 0 and "not checked: nodes (HPCBENCH_UNCHECKED)" in done.stdout
    assert not any("get nodes" in call or "networkpolicies" in call for call in done.calls)


@pytest.mark.parametrize("pod", ["job-launcher", "job-worker-1"])
def test_an_image_that_cannot_be_pulled_ends_it_at_once(cluster: Cluster, pod: str) -> None:
    """A worker's, too, while the launcher waits for it."""
    phase = "Pending" if pod == "job-launcher" else "Running"
    cluster.answer(phase=f"printf {phase}", waiting='echo "job-worker-0|Running||"; echo "'
                   f'{pod}|Pending|ImagePullBackOff|Back-off pulling image"')
    done = cluster.run("2")
    assert f"pod {pod} cannot have the image image (ImagePullBackOff): Back-off" in done.line()
    assert done.deleted() and (cluster.results / "logs" / "job-launcher.log").exists()


RUNS_ON = 'touch "$play/runs"; while [ ! -e "$play/stopped" ]; do /bin/sleep 0.05; done'


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_job_is_sealed_copied_and_deleted(
    cluster: Cluster, number: signal.Signals,
) -> None:
    """A terminal signals the whole group: kubectl goes on showing what the launcher prints."""
    cluster.answer(logs=f'{RUNS_ON}; echo sealed; echo Failed >"$play/is"',
                   interrupt='touch "$play/stopped"', exit_code="printf 3")
    with cluster.start("2") as popen:
        wait_for(cluster.folder / "play" / "runs")
        if number is signal.SIGINT:
            os.killpg(popen.pid, number)
        else:
            popen.send_signal(number)
        done = cluster.ended(popen)
    assert done.code == 3 and "sealed" in done.stdout and done.deleted()
    assert any("exec job-launcher --container launcher -- sh -c kill -TERM 1" in call
               for call in done.calls)
    assert (cluster.results / "results.h5").exists()


@pytest.mark.parametrize(("answers", "marks"), [
    ({"logs": RUNS_ON, "interrupt": 'touch "$play/asked"'}, ("runs", "asked")),
    ({"phase": ': >"$play/polled"; printf Pending'}, ("polled",))], ids=["twice", "not started"])
def test_interrupted_the_job_is_deleted_at_once(
    cluster: Cluster, answers: dict[str, str], marks: tuple[str, ...],
) -> None:
    cluster.answer(**answers)
    with cluster.start("2") as popen:
        for mark in marks:
            wait_for(cluster.folder / "play" / mark)
            popen.send_signal(signal.SIGTERM)
        done = cluster.ended(popen)  # kubectl, too, which has the same stdout
    assert done.code == 130 and done.deleted()


def test_help_has_every_setting(cluster: Cluster) -> None:
    (cluster.folder / "bin" / "kubectl").unlink()
    done = cluster.run("--help")
    assert done.code == 0
    code = "".join(path.read_text().partition("\nset -u\n")[2] or path.read_text()
                   for path in (SCRIPT, *map(SCRIPT.with_name, ("checks.sh", "results.sh"))))
    used = set(re.findall(r"\$\{(HPCBENCH_\w+)", code))
    assert used == set(re.findall(r"^(HPCBENCH_\w+)", done.stdout, re.MULTILINE))
