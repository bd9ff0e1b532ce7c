"""Judge what a cluster says of nodes and network policies, before run.sh creates a job in it.

    cat MPIJOB ANSWERS OF kubectl get --output json | python3 judge.py nodes NODES SLOTS RESOURCE
    cat MPIJOB ANSWERS OF kubectl get --output json | python3 judge.py policies NAME
    cat MPIJOB | python3 judge.py secrets
    hpcbench plan SWEEP --json | python3 judge.py plan

Each line that it prints begins with ``refuse``, ``unchecked`` or ``secret``; of a plan it prints
two numbers, or ``refuse -`` or two dashes, and why. It needs nothing but Python 3.9: it runs
where kubectl is. Objects are those of the Kubernetes API.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

Object = dict[str, Any]
ENDED = ("Succeeded", "Failed")
BLOCKING = ("NoSchedule", "NoExecute")
ALL_PORTS = 65535
SHOWN_NODES = 4
RANK_GIB = 4
"""Of host memory for each rank: a half for Python, torch and MPI."""
OPERATOR = "training.kubeflow.org"


def objects(text: str) -> Iterator[Object]:
    """Yield every object of JSON documents behind each other, those of lists one by one."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        yield from document.get("items", [document])
        text = text[end:].lstrip()


def of_kind(every: Sequence[Object], kind: str) -> list[Object]:
    """Return the objects of one kind."""
    return [one for one in every if one["kind"] == kind]


def worker_of(every: Sequence[Object]) -> Object:
    """Return the template of the job's worker pods."""
    template: Object = of_kind(every, "MPIJob")[0]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    return template


def secrets(every: Sequence[Object]) -> Iterator[str]:
    """Yield the secrets by which the worker's image is to be pulled."""
    for secret in worker_of(every)["spec"].get("imagePullSecrets") or []:
        yield f"secret {secret['name']}"


def nodes(every: Sequence[Object], needed: int, slots: int, resource: str) -> Iterator[str]:
    """Yield a line if too few nodes can take a worker: one pod a node, ``slots`` GPUs each.

    ``resource`` is "none" where no GPU is asked for. Cores and memory are left to the scheduler.
    """
    template = worker_of(every)["spec"]
    used = requested(of_kind(every, "Pod"), resource)
    reasons: dict[str, list[str]] = {}
    for node in of_kind(every, "Node"):
        name = node["metadata"]["name"]
        reason = unusable(node, template) or lacking(node, used.get(name, 0), slots, resource)
        reasons.setdefault(reason, []).append(name)
    free = len(reasons.pop("", []))
    if free >= needed:
        return
    wanted = "" if resource == "none" else f" with {slots} free {resource}"
    told = "; ".join(f"{listed(names)}: {reason}" for reason, names in reasons.items())
    nodes, are = ("node", "is") if needed == 1 else ("nodes", "are")
    yield (f"refuse {needed} Ready {nodes}{wanted} {are} needed, there are {free}"
           f"{' (' + told + ')' if told else ''}: ask for fewer, or have the job wait for them "
           "with HPCBENCH_UNCHECKED=nodes")


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def unusable(node: Object, template: Object) -> str:
    """Return why the scheduler puts no worker on a node, whatever is free there; or ""."""
    labels, spec = node["metadata"].get("labels") or {}, node.get("spec") or {}
    for name, value in (template.get("nodeSelector") or {}).items():
        if labels.get(name) != value:
            return f"without the label {name}={value}"
    ready = {one["type"]: one["status"] for one in node["status"].get("conditions") or []}
    if ready.get("Ready") != "True":
        return "not Ready"
    tolerated = [one.get("key") for one in template.get("tolerations") or []]
    for taint in spec.get("taints") or []:
        cordon = taint["key"] == "node.kubernetes.io/unschedulable"
        if taint["effect"] in BLOCKING and not cordon and not {None, "", taint["key"]} & {
                *tolerated}:
            return f"taint {taint['key']}, which the manifest does not tolerate"
    return "cordoned" if spec.get("unschedulable") else ""


def lacking(node: Object, used: int, slots: int, resource: str) -> str:
    """Return how many GPUs a node has free if they are too few; or ""."""
    if resource == "none":
        return ""
    there = int((node["status"].get("allocatable") or {}).get(resource, 0))
    if not there:
        return f"no {resource}"
    return f"{max(0, there - used)} of {there} free" if there - used < slots else ""


def requested(pods: Sequence[Object], resource: str) -> dict[str, int]:
    """Return how much of the resource the containers of pods on each node ask for."""
    used: dict[str, int] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in ENDED:
            used[node] = used.get(node, 0) + sum(
                int(((one.get("resources") or {}).get("requests") or {}).get(resource, 0))
                for one in pod["spec"]["containers"])
    return used


def policies(every: Sequence[Object], name: str) -> Iterator[str]:
    """Yield a line for each direction in which network policies keep the job's pods apart.

    What several policies allow adds up. A pod that none selects may do everything.
    """
    labels = {**((worker_of(every).get("metadata") or {}).get("labels") or {}),
              f"{OPERATOR}/job-name": name, f"{OPERATOR}/job-role": "worker",
              f"{OPERATOR}/operator-name": "mpi-operator"}
    for direction, peers in (("Ingress", "from"), ("Egress", "to")):
        found = [(one["metadata"]["name"], selects(one["spec"].get("podSelector") or {}, labels),
                  allows(one["spec"], direction.lower(), peers, labels))
                 for one in of_kind(every, "NetworkPolicy") if restricts(one, direction)]
        yield from verdict(direction.lower(), [one for one in found if one[1] != "no"])


def verdict(direction: str, found: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what (name, selects, allows) of the policies that may select the pods come to."""
    certain = [name for name, selected, _ in found if selected == "yes"]
    if any(allowed == "yes" and selected == "yes" for _, selected, allowed in found):
        return
    names = ", ".join(name for name, *_ in found)
    if certain and all(allowed == "no" for *_, allowed in found):
        yield (f"refuse network policy {', '.join(certain)} restricts {direction} and does not "
               "allow pods of the job every port of each other: ssh has 2222, launch.port is "
               "for the meeting, MPI, gloo and NCCL choose theirs; have the pods of the job "
               "allowed, or take another HPCBENCH_NAMESPACE")
    elif found:
        yield (f"unchecked whether network policy {names} lets pods of the job reach each other "
               f"({direction})")


def restricts(policy: Object, direction: str) -> bool:
    """Return whether a policy isolates the pods that it selects; without types by its keys."""
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return direction in types


def selects(selector: Object, labels: dict[str, str]) -> str:
    """Return whether a label selector selects the pods; expressions are not judged."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return "no"
    return "unknown" if selector.get("matchExpressions") else "yes"


def allows(spec: Object, direction: str, peers: str, labels: dict[str, str]) -> str:
    """Return whether a rule lets the pods reach each other on all ports."""
    found = {reaches(rule.get(peers) or [], labels) for rule in spec.get(direction) or []
             if all_ports(rule.get("ports") or [])}
    return "yes" if "yes" in found else "unknown" if "unknown" in found else "no"


def reaches(peers: Sequence[Object], labels: dict[str, str]) -> str:
    """Return whether the pods are among the peers of a rule; no peers are everyone."""
    found = {"unknown" if "ipBlock" in peer or peer.get("namespaceSelector")
             else selects(peer.get("podSelector") or {}, labels) for peer in peers}
    return "yes" if not peers or "yes" in found else "unknown" if "unknown" in found else "no"


def all_ports(ports: Sequence[Object]) -> bool:
    """Return whether a rule allows every port of TCP that an ordinary user can have."""
    return not ports or any(
        port.get("protocol", "TCP") == "TCP" and ("port" not in port or (
            isinstance(port["port"], int) and port["port"] <= 1024  # noqa: PLR2004
            and port.get("endPort") == ALL_PORTS)) for port in ports)


def of_plan(every: Sequence[Object]) -> Iterator[str]:
    """Yield the seconds that a plan takes, and the GiB of host memory that each rank needs; or the
    problem: ``refuse`` of a sweep that is wrong, not only unplannable here."""
    for plan in every:
        if "cases" not in plan:
            what = "refuse" if plan.get("error") == "ConfigError" else "-"
            yield f"{what} - " + "; ".join(plan.get("problems", ["hpcbench plan prints no cases"]))
            continue
        most = max((case["host_bytes"] + case["memory_bytes"] * (case["device"] != "cuda")
                    for case in plan["cases"] if not case["skip"]), default=0)
        need = max(RANK_GIB, -(-most // 2**30) + RANK_GIB // 2)
        yield f"{plan['totals']['estimate_s']:.0f} {need}"


def main(words: Sequence[str]) -> None:
    """Print what the subject comes to."""
    every = list(objects(sys.stdin.read()))
    lines = {"plan": lambda: of_plan(every), "secrets": lambda: secrets(every),
             "policies": lambda: policies(every, words[1]),
             "nodes": lambda: nodes(every, int(words[1]), int(words[2]), words[3])}[words[0]]()
    for line in lines:
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
