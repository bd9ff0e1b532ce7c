"""Manifests of jobs/k8s against strict schemas, and what judge.py makes of a cluster."""

from __future__ import annotations

import configparser
import copy
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcbench.config.load import load_config, parse_assignment
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from kubernetes_operator import HOME, image_copies
from kubernetes_schema import check, load
from launcher import ROOT

FOLDER = ROOT / "jobs" / "k8s"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Without hpcbench."""


def run_render(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HPCBENCH_")}
    env |= {"HPCBENCH_IMAGE": "registry.local:5000/team/hpcbench:mpich", "PATH": SYSTEM_PATH,
            **variables}
    return subprocess.run(["bash", str(FOLDER / "run.sh"), "--render", *arguments], env=env,
                          check=True, capture_output=True, text=True, timeout=60)


def render(*arguments: str, **variables: str) -> str:
    return run_render(*arguments, **variables).stdout


def rendered(*arguments: str, **variables: str) -> tuple[Any, Any]:
    """Return ConfigMap and MPIJob, checked."""
    documents = load(render(*arguments, **variables))
    check(documents)
    sweep, job = documents
    return sweep, job


def pod(job: Any, role: str) -> Any:
    return job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]


@pytest.mark.parametrize(("arguments", "variables"), [
    (("4",), {}),
    (("16", "4", "1024", "50"), {"HPCBENCH_MPI": "openmpi", "HPCBENCH_SLOTS": "8"}),
    (("1",), {"HPCBENCH_GPU": "none", "HPCBENCH_CLAIM": "my.results"}),
    (("2",), {"HPCBENCH_CONFIG": str(ROOT / "config.json"), "HPCBENCH_NAME": "a" * 45,
              "HPCBENCH_GPU": "amd.com/gpu", "HPCBENCH_ARGUMENTS": "--only '*' \\ --iters 2"}),
])
def test_manifests_are_valid(arguments: tuple[str, ...], variables: dict[str, str]) -> None:
    sweep, job = rendered(*arguments, **variables)
    nodes, slots = int(arguments[0]), int(variables.get("HPCBENCH_SLOTS", "1"))
    openmpi = variables.get("HPCBENCH_MPI") == "openmpi"
    assert job["spec"]["mpiImplementation"] == ("OpenMPI" if openmpi else "MPICH")
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == nodes
    assert job["spec"]["slotsPerWorker"] == slots
    launcher, = pod(job, "Launcher")["containers"]
    assert launcher["command"][1:] == [
        str(nodes * slots), f"/sweep/{next(iter(sweep['data']))}", "--resume",
        f"/results/{job['metadata']['name']}"]
    given = variables.get("HPCBENCH_ARGUMENTS", "").split()
    assert launcher["args"][-len(given):] == given or not given
    gpu = variables.get("HPCBENCH_GPU", "nvidia.com/gpu")
    worker, = pod(job, "Worker")["containers"]
    assert worker["resources"]["limits"] == ({} if gpu == "none" else {gpu: str(slots)})


@pytest.mark.parametrize(("variables", "cores"), [
    ({}, "2"), ({"HPCBENCH_SLOTS": "8"}, "16"),
    ({"HPCBENCH_SLOTS": "8", "HPCBENCH_CPUS": "11"}, "88")])
def test_each_rank_has_its_cores(tmp_path: Path, variables: dict[str, str], cores: str) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    _, job = rendered("2", HPCBENCH_CONFIG=str(tmp_path / "sweep.json"), **variables)
    worker, = pod(job, "Worker")["containers"]
    assert worker["resources"]["requests"]["cpu"] == cores


def test_where_hpcbench_is_the_plan_is_held_against_the_limit_and_gives_the_memory(
    tmp_path: Path,
) -> None:
    """A collective of 1 GiB takes 3 GiB of a rank on the CPU, beside 2 GiB of its process."""
    (command := tmp_path / "hpcbench").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m hpcbench "$@"\n')
    command.chmod(0o755)
    (tmp_path / "sweep.json").write_text(json.dumps({
        "measure": {"iterations": 5}, "benchmarks": [{
            "kind": "collective", "collective": "all_reduce", "size": "1GiB", "backend": "gloo"}]}))
    here = {"HPCBENCH_CONFIG": str(tmp_path / "sweep.json"), "HPCBENCH_SLOTS": "4"}

    def memory_of(done: subprocess.CompletedProcess[str]) -> str:
        worker, = pod(load(done.stdout)[1], "Worker")["containers"]
        return str(worker["resources"]["requests"]["memory"])

    assert memory_of(run_render("1", **here)) == "16Gi"
    here |= {"PATH": f"{tmp_path}:{SYSTEM_PATH}", "PYTHONPATH": str(ROOT)}
    plenty, few = (run_render("1", HPCBENCH_TIME_LIMIT=limit, **here) for limit in ("90000", "5"))
    assert memory_of(plenty) == memory_of(few) == "20Gi"
    assert not plenty.stderr and "HPCBENCH_TIME_LIMIT is 5:" in few.stderr
    odd = run_render("1", HPCBENCH_ARGUMENTS="--fail-below x:median_s=1s", **here)
    assert memory_of(odd) == "16Gi" and "--fail-below" in odd.stderr
    (tmp_path / "sweep.json").write_text('{"benchmarks": [{"kind": "collectiv"}]}')
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_render("1", **here)
    wrong = refused.value
    assert (wrong.returncode, wrong.stdout) == (2, "") and '"collectiv" is not' in wrong.stderr
    plugin = run_render("1", HPCBENCH_UNCHECKED="plan", **here)
    assert memory_of(plugin) == "16Gi" and wrong.stderr.count("\n") == 1
    (tmp_path / "sweep.json").write_text(
        '{"benchmarks": [{"kind": "function", "file": "/only/in/the/image.py"}]}')
    elsewhere = run_render("1", **here)
    assert memory_of(elsewhere) == "16Gi" and "image.py" in elsewhere.stderr
    assert "Traceback" not in odd.stderr + wrong.stderr + elsewhere.stderr


def test_pods_outlive_every_limit_and_leave_time_to_copy() -> None:
    """Launcher, then workers start; the sweep; a quarter more to end it; half an hour to copy."""
    _, job = rendered("2", HPCBENCH_START_LIMIT="100", HPCBENCH_TIME_LIMIT="400")
    expected = 100 + 100 + 400 + (600 + 100) + 1800
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == expected
    assert pod(job, "Worker")["activeDeadlineSeconds"] == expected


@pytest.mark.parametrize("arguments", ["1", "4", "16", "2 4 1024 50"])
def test_the_limit_of_the_qlora_job_is_well_above_its_estimate(
    tmp_path: Path, arguments: str,
) -> None:
    nodes = int(arguments.split()[0])
    sweep, job = rendered(*arguments.split())
    (tmp_path / "sweep.yaml").write_text(sweep["data"]["sweep.yaml"])
    launcher, = pod(job, "Launcher")["containers"]
    plan = make_plan(load_config(tmp_path / "sweep.yaml", [
        parse_assignment(word) for word in launcher["args"] if "=" in word]), nodes)
    limit_s, = (int(one["value"]) for one in launcher["env"]
                if one["name"] == "HPCBENCH_TIME_LIMIT")
    assert plan_estimate_s(plan) < 0.7 * limit_s


@pytest.mark.parametrize("name", ["text.json", "odd.yaml", "odd.yml"])
def test_the_sweep_arrives_as_it_is(tmp_path: Path, name: str) -> None:
    text = '  leading: "${NAME} & \\\\1 /"\n\n\ttab: \'%s\' $HOME `id`\n# - end\n---\n'
    (tmp_path / name).write_text(text)
    sweep, _ = rendered("1", HPCBENCH_CONFIG=str(tmp_path / name))
    assert sweep["data"] == {f"sweep.{'json' if name.endswith('json') else 'yaml'}": text}


@pytest.mark.parametrize(("nodes", "worlds"), [
    (1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (4, {1, 2, 4}), (8, {1, 2, 4, 8})])
def test_nodes_batch_sequence_and_steps_change_the_qlora_sweep(
    tmp_path: Path, nodes: int, worlds: set[int],
) -> None:
    sweep, job = rendered(str(nodes), "2", "256", "7")
    (tmp_path / "sweep.yaml").write_text(sweep["data"]["sweep.yaml"])
    words = pod(job, "Launcher")["containers"][0]["args"]
    assert set(words[::2]) == {"--set"}
    plan = make_plan(load_config(tmp_path / "sweep.yaml", [
        parse_assignment(word) for word in words[1::2]]), nodes)
    able = [case for case in plan.cases if not case.skip]
    assert {case.world_size for case in able} == worlds
    for case in able:
        assert (case.workload.batch_size, case.workload.seq_length) == (2, 256)
        assert case.iterations == 7


def test_the_a10_manifest_is_the_generic_one_but_for_its_nodes() -> None:
    """So neither goes stale when the other is changed."""
    generic = rendered("4", HPCBENCH_NAME="x", HPCBENCH_MANIFEST=str(FOLDER / "mpijob.yaml"))
    a10 = rendered("4", HPCBENCH_NAME="x")
    worker = pod(a10[1], "Worker")
    assert worker.pop("nodeSelector") == {"nvidia.com/gpu.product": "NVIDIA-A10"}
    requests = worker["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "8", "memory": "32Gi"}
    requests["memory"] = "4Gi"
    for documents in (generic, a10):  # the time of day
        for document in documents:
            document["metadata"].pop("labels")
    assert generic == a10


def test_the_qlora_job_by_the_name_of_its_sweep_on_nodes_of_several_gpus() -> None:
    """Two nodes of 4 GPUs: the plan is of such nodes, and every limit, core and byte of a rank's.
    """
    of_nodes = {"HPCBENCH_NAME": "x", "HPCBENCH_SLOTS": "4"}
    jobs = [rendered("2", **of_nodes)[1], rendered(
        "2", **of_nodes, HPCBENCH_CONFIG=str(FOLDER / ".." / "mistral7b_qlora.yaml"))[1]]
    for job in jobs:  # the time of day
        job["metadata"].pop("labels")
    assert jobs[0] == jobs[1]
    launcher, = pod(jobs[0], "Launcher")["containers"]
    assert {"hardware.num_devices=4", "benchmarks.1.world_size=[2,4,8]"} <= {*launcher["args"]}
    assert {"name": "HPCBENCH_TIME_LIMIT", "value": str(3 * 3 * 3600)} in launcher["env"]
    worker, = pod(jobs[0], "Worker")["containers"]
    assert worker["resources"]["requests"] == {"cpu": "32", "memory": "128Gi"}


def changed(documents: Any, *path: str | int, value: Any) -> Any:
    """Return a copy with a value at a path; ... as the value deletes."""
    place = result = copy.deepcopy(documents)
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


REPLICAS = (1, "spec", "mpiReplicaSpecs")
WORKER = (*REPLICAS, "Worker", "template", "spec")
LAUNCHER = (*REPLICAS, "Launcher", "template", "spec")
BROKEN = {
    "another API": (1, "apiVersion", "kubeflow.org/v1"),
    "a name that is no label": (1, "metadata", "name", "Hpcbench"),
    "a name too long for its workers": (1, "metadata", "name", "a" * 55),
    "a misspelt field": (1, "spec", "slotsPerWoker", 1),
    "restartPolicy in the template": (*WORKER, "restartPolicy", "Never"),
    "no slots": (1, "spec", "slotsPerWorker", 0),
    "an unknown MPI": (1, "spec", "mpiImplementation", "OpenMPII"),
    "no launcher": (*REPLICAS, "Launcher", ...),
    "no workers": (*REPLICAS, "Worker", "replicas", 0),
    "an unknown replica": (*REPLICAS, "Master", {}),
    "Always": (*REPLICAS, "Worker", "restartPolicy", "Always"),
    "no container": (*WORKER, "containers", []),
    "a misspelt command": (*WORKER, "containers", 0, "comand", ["sshd"]),
    "a variable that is no text": (*LAUNCHER, "containers", 0, "env", 0, "value", True),
    "a variable twice": (*LAUNCHER, "containers", 0, "env",
                         [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    "a port": (*WORKER, "containers", 0, "readinessProbe", "tcpSocket", "port", 70000),
    "a quantity": (*WORKER, "containers", 0, "resources", "requests", "memory", "4 GB"),
    "half a GPU": (*WORKER, "containers", 0, "resources", "limits", "nvidia.com/gpu", "500m"),
    "an image with a blank": (*WORKER, "containers", 0, "image", "a b"),
    "root": (*WORKER, "securityContext", "runAsUser", 0),
    "a mount without volume": (*WORKER, "volumes", 0, "name", "other"),
    "two mounts in one place": (*WORKER, "containers", 0, "volumeMounts", 1, "mountPath", "/sweep"),
    "a mount where the operator's is": (*WORKER, "containers", 0, "volumeMounts", 1, "mountPath",
                                        "/etc/mpi"),
    "a volume of the operator's name": (*WORKER, "volumes", 2, "name", "ssh-auth"),
    "a volume of two sources": (*WORKER, "volumes", 0, "emptyDir", {}),
    "a label's value": (*WORKER, "nodeSelector", {"gpu": "A 10"}),
    "a ConfigMap that is not there": (0, "metadata", "name", "other"),
    "the operator's ConfigMap": (0, "metadata", "name", "x-config"),
    "a file's name": (0, "data", {"a/b": ""}),
    "a file of 1 MiB": (0, "data", "sweep.yaml", "x" * (1 << 20)),
}
MESSAGES = {
    "a name too long for its workers": "at most 63 characters",
    "a mount without volume": "no volume sweep",
    "a volume of two sources": "volume sweep needs one source",
}
"""What is said of those that are found out in what the changed field is part of."""


@pytest.fixture(scope="module")
def documents() -> list[Any]:
    return load(render("4", HPCBENCH_NAME="x"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_rejected(documents: list[Any], name: str) -> None:
    path = BROKEN[name]
    check(documents)
    with pytest.raises(ValueError) as told:
        check(changed(documents, *path[:-1], value=path[-1]))
    problems = told.value.errors() if isinstance(told.value, ValidationError) else [told.value]
    field = [word for word in path[:-1] if isinstance(word, str)][-1]
    words = (MESSAGES[name],) if name in MESSAGES else (field, str(path[-1]), "ConfigMap")
    assert any(word in problem for problem in map(_where_and_what, problems) for word in words)


def _where_and_what(problem: Any) -> str:
    return f"{problem['loc']} {problem['msg']}" if isinstance(problem, dict) else str(problem)


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "name: ${NAME}\n"])
def test_a_key_given_twice_and_what_was_not_filled_in_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        load(text)


def test_image_and_manifests_agree() -> None:
    """Programs are where the manifests call them, run as the image's user, at one port."""
    _, job = rendered("4")
    copies = image_copies(DOCKERFILE)
    assert all((ROOT / source).exists() for source in copies.values())
    assert pod(job, "Launcher")["containers"][0]["command"][0] in copies
    assert os.access(FOLDER / "launcher.sh", os.X_OK)
    worker, = pod(job, "Worker")["containers"]
    assert worker["command"][0] == "/usr/sbin/sshd" and worker["command"][-1] in copies
    user = pod(job, "Worker")["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in DOCKERFILE
    assert f"useradd --uid {user['runAsUser']} --create-home" in DOCKERFILE
    assert job["spec"]["sshAuthMountPath"] == f"{HOME}/.ssh"
    port = worker["readinessProbe"]["tcpSocket"]["port"]
    for name in ("sshd_config", "ssh_config"):
        assert re.search(rf"^ *Port {port}$", (FOLDER / name).read_text(), re.MULTILINE)


def test_the_image_is_built_from_files_and_extras_that_are_there() -> None:
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / source).exists() for source in shlex.split(line)[:-1]), line
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras, = re.findall(r"source\[(.*)\]", DOCKERFILE)
    for mpi in ("mpich", "openmpi"):
        assert set(extras.replace("$MPI", mpi).split(",")) <= set(setup["options.extras_require"])


def test_arguments_with_quotes_and_backslashes_survive() -> None:
    _, job = rendered("1", HPCBENCH_ARGUMENTS='--set name="a\\b" --only all_*')
    assert json.dumps(pod(job, "Launcher")["containers"][0]["args"][-4:]) == json.dumps(
        ["--set", 'name="a\\b"', "--only", "all_*"])


JUDGE = runpy.run_path(str(ROOT / "jobs" / "k8s" / "judge.py"))
FOUND = ROOT / "tests" / "data" / "kubernetes"
GPU = "nvidia.com/gpu"
JOB_NAME = "training.kubeflow.org/job-name"
Judging = Callable[..., Iterator[str]]


def objects(*names: str) -> list[Any]:
    """Return all objects of these files, one JSON document after another."""
    text = "".join((FOUND / f"{name}.json").read_text() for name in names)
    return list(cast("Judging", JUDGE["objects"])(text))


def judged(subject: str, every: Sequence[Any], *words: Any) -> list[str]:
    return list(cast("Judging", JUDGE[subject])(every, *words))


def with_keys(every: Sequence[Any], **keys: Any) -> list[Any]:
    """Return the objects with these keys in the job's template of workers."""
    copies: list[Any] = json.loads(json.dumps(every))
    for one in copies:
        if one["kind"] == "MPIJob":
            one["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"].update(keys)
    return copies


def policy(direction: str = "Ingress", **spec: Any) -> dict[str, Any]:
    return {"kind": "NetworkPolicy", "metadata": {"name": "mine"},
            "spec": {"podSelector": {}, "policyTypes": [direction], **spec}}


@pytest.mark.parametrize(("needed", "slots", "is_enough"), [
    (4, 8, True), (5, 8, False), (5, 6, True), (6, 1, False), (1, 9, False)])
def test_gpus_that_no_living_pod_has_asked_for_are_counted(
    needed: int, slots: int, is_enough: bool,
) -> None:
    """Ended pods hold nothing, and one that is not placed yet holds nothing of a node."""
    lines = judged("nodes", objects("job", "nodes", "pods"), needed, slots, GPU)
    assert bool(lines) is not is_enough
    plural = "s" * (needed > 1)
    assert is_enough or lines[0].startswith(
        f"refuse {needed} Ready node{plural} with {slots} free {GPU}")


def test_without_gpus_every_node_that_takes_pods_counts() -> None:
    every = objects("job", "nodes")
    assert not judged("nodes", every, 6, 1, "none")
    assert "there are 6 (gpu-c: not Ready; gpu-d: cordoned" in judged(
        "nodes", every, 7, 1, "none")[0]


def test_the_node_selector_and_tolerations_of_the_manifest_count() -> None:
    every = with_keys(objects("job", "nodes"), nodeSelector={f"{GPU}.product": "NVIDIA-H100"})
    assert f"without the label {GPU}.product=NVIDIA-H100" in judged("nodes", every, 1, 1, GPU)[0]
    for toleration in ({"key": "team", "operator": "Exists"}, {"operator": "Exists"}):
        every = with_keys(objects("job", "nodes"), tolerations=[toleration])
        assert not judged("nodes", every, 6, 8, GPU)


def test_the_secrets_of_the_manifest() -> None:
    assert judged("secrets", objects("job")) == ["secret registry"]
    assert judged("secrets", with_keys(objects("job"), imagePullSecrets=None)) == []


@pytest.mark.parametrize(("policies", "outcome"), [
    ([], ""),
    ([policy()], "refuse"),
    ([policy(policyTypes=None)], "refuse"),
    ([policy(ingress=[{}])], ""),
    ([policy(ingress=[{"from": [{"podSelector": {}}]}])], ""),
    ([policy(ingress=[{"from": [{"namespaceSelector": {}}]}])], ""),
    ([policy(ingress=[{"from": [{"podSelector": {"matchLabels": {JOB_NAME: "job"}}}]}])], ""),
    ([policy(ingress=[{"from": [{"podSelector": {"matchLabels": {JOB_NAME: "x"}}}]}])], "refuse"),
    ([policy(ingress=[{"ports": [{"port": 29500}]}])], "refuse"),
    ([policy(ingress=[{"ports": [{"protocol": "UDP"}]}])], "refuse"),
    ([policy(ingress=[{"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]}])], ""),
    ([policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])], "unchecked"),
    ([policy(ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}])],
     "unchecked"),
    ([policy(podSelector={"matchLabels": {"app": "web"}})], ""),
    ([policy(podSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}]})],
     "unchecked"),
    ([policy(), policy(ingress=[{}])], ""),
    ([policy(), policy(podSelector={"matchLabels": {"app": "web"}}, ingress=[{}])], "refuse"),
    ([policy("Egress")], "refuse"),
    ([policy("Egress", egress=[{"to": [{"podSelector": {}}]}])], ""),
])
def test_policies_that_keep_the_pods_of_a_job_apart(
    policies: Sequence[Mapping[str, Any]], outcome: str,
) -> None:
    lines = judged("policies", [*objects("job"), *policies], "job")
    assert [line.split()[0] for line in lines] == ([outcome] if outcome else [])
    assert all("mine" in line for line in lines)


RULES = st.sampled_from([
    {}, {"from": [{"podSelector": {}}]}, {"ports": [{"port": 29500}]},
    {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}])


@given(st.lists(st.lists(RULES, max_size=3), min_size=1, max_size=3), RULES)
def test_a_further_rule_never_takes_anything_away(rules: list[list[Any]], more: Any) -> None:
    """What policies allow adds up, so a rule more can only better the verdict."""
    order = ["", "unchecked", "refuse"]

    def outcome(policies: list[list[Any]]) -> int:
        lines = judged("policies", [*objects("job"), *(policy(ingress=one) for one in policies)],
                       "job")
        return order.index(lines[0].split()[0] if lines else "")

    assert outcome([[*rules[0], more], *rules[1:]]) <= outcome(rules)
