"""What jobs/k8s/judge.py makes of nodes, pods and network policies of the Kubernetes API."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import ROOT

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


def changed(every: Sequence[Any], **keys: Any) -> list[Any]:
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
    every = changed(objects("job", "nodes"), nodeSelector={f"{GPU}.product": "NVIDIA-H100"})
    assert f"without the label {GPU}.product=NVIDIA-H100" in judged("nodes", every, 1, 1, GPU)[0]
    for toleration in ({"key": "team", "operator": "Exists"}, {"operator": "Exists"}):
        every = changed(objects("job", "nodes"), tolerations=[toleration])
        assert not judged("nodes", every, 6, 8, GPU)


def test_the_secrets_of_the_manifest() -> None:
    assert judged("secrets", objects("job")) == ["secret registry"]
    assert judged("secrets", changed(objects("job"), imagePullSecrets=None)) == []


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
