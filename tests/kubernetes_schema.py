"""Strict schemas of what jobs/k8s makes: a field, name or quantity that is unknown is an error.

They have the fields that are used here, and no others (Kubernetes API v1.33, MPIJob v2beta1), with
the rules that the operator checks when it sees a job (its pkg/apis/kubeflow/validation/
validation.go, v0.8.2) and what it adds to a pod itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from typing_extensions import NotRequired, TypedDict


def _text(pattern: str, most: int = 253) -> Any:
    return Annotated[str, Field(pattern=rf"^(?:{pattern})$", max_length=most)]


def _object(required: Mapping[str, Any], **optional: Any) -> Any:
    """Return the type of a mapping with these fields; one that is not listed is an error."""
    fields = dict(required) | {name: NotRequired[kind] for name, kind in optional.items()}
    kind = cast("Any", TypedDict)("Object", fields)
    kind.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return kind


_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
LABEL, SUBDOMAIN = _text(_LABEL, 63), _text(rf"{_LABEL}(?:\.{_LABEL})*")
WORKER_NAME = TypeAdapter(_text(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", 63))
QUALIFIED = _text(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_WORD}", 317)
LABELS = dict[QUALIFIED, _text(rf"(?:{_WORD})?", 63)]
PATH = _text(r"/[^:]*", 4096)
WHOLE, POSITIVE, PORT = (Annotated[int, Field(ge=least, lt=above)]
                         for least, above in ((0, 2**31), (1, 2**31), (1, 2**16)))
QUANTITY = _text(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGTPE]|[KMGTPE]i)?") | Annotated[int, Field(ge=0)]


def _extended_are_whole(resources: dict[str, Any]) -> dict[str, Any]:
    """Devices cannot be shared; resources without a domain are the few that Kubernetes has."""
    for name, amount in resources.items():
        if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"):
            raise ValueError(f"{name} is no resource")
        if "/" in name and not str(amount).isdecimal():
            raise ValueError(f"{name} takes a whole number")
    return resources


def _one_source(volume: dict[str, Any]) -> dict[str, Any]:
    if len(volume) != 2:
        raise ValueError(f"volume {volume['name']} needs one source")
    if volume["name"] in ("ssh-auth", "mpi-job-config"):
        raise ValueError(f"volume {volume['name']} is the operator's")
    return volume


def _mounts_are_volumes(pod: dict[str, Any]) -> dict[str, Any]:
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    _distinct("volume", volumes)
    _distinct("container", [container["name"] for container in pod["containers"]])
    for container in pod["containers"]:
        mounts = container.get("volumeMounts", ())
        _distinct("env", [variable["name"] for variable in container.get("env", ())])
        _distinct("mountPath", [mount["mountPath"] for mount in mounts])
        for mount in mounts:
            if mount["name"] not in volumes:
                raise ValueError(f"no volume {mount['name']} for {mount['mountPath']}")
    return pod


def _operators_rules(job: dict[str, Any]) -> dict[str, Any]:
    """Names of pods are labels, and two paths are the operator's."""
    replicas, own = job["spec"]["mpiReplicaSpecs"], job["spec"]["sshAuthMountPath"]
    WORKER_NAME.validate_python(
        f"{job['metadata']['name']}-worker-{replicas['Worker']['replicas'] - 1}")
    for replica in replicas.values():
        for mount in replica["template"]["spec"]["containers"][0].get("volumeMounts", ()):
            if mount["mountPath"] in ("/etc/mpi", own):
                raise ValueError(f"mountPath {mount['mountPath']} is the operator's")
    return job


def _fits(config_map: dict[str, Any]) -> dict[str, Any]:
    if sum(map(len, config_map["data"].values())) >= 1 << 20:
        raise ValueError("data: 1 MiB at most")
    return config_map


METADATA = _object({"name": SUBDOMAIN}, labels=LABELS, annotations=dict[QUALIFIED, str])
RESOURCES = Annotated[dict[QUALIFIED, QUANTITY], AfterValidator(_extended_are_whole)]
CONTAINER = _object(
    {"name": LABEL, "image": _text(rf"{_WORD}(?:[:/@]{_WORD})*", 500),
     "command": Annotated[list[str], Field(min_length=1)],
     "resources": _object({}, requests=RESOURCES, limits=RESOURCES),
     "securityContext": _object({
         "allowPrivilegeEscalation": bool,
         "capabilities": _object({"drop": list[Literal["ALL"]]})})},
    args=list[str],
    env=list[_object({"name": _text(r"[A-Za-z_][A-Za-z0-9_]*"), "value": str})],
    readinessProbe=_object({"tcpSocket": _object({"port": PORT})}, initialDelaySeconds=WHOLE,
                           periodSeconds=POSITIVE),
    volumeMounts=list[_object({"name": LABEL, "mountPath": PATH}, readOnly=bool)])
VOLUME = Annotated[_object(
    {"name": LABEL}, configMap=_object({"name": SUBDOMAIN}),
    emptyDir=_object({}, medium=Literal["", "Memory"], sizeLimit=QUANTITY),
    persistentVolumeClaim=_object({"claimName": SUBDOMAIN}, readOnly=bool),
), AfterValidator(_one_source)]
AFFINITY = _object({"podAntiAffinity": _object({
    "requiredDuringSchedulingIgnoredDuringExecution": list[_object({
        "topologyKey": QUALIFIED, "labelSelector": _object({
            "matchLabels": Annotated[LABELS, Field(min_length=1)]})})]})})
POD = Annotated[_object(  # without restartPolicy, which the operator takes from the replica
    {"containers": Annotated[list[CONTAINER], Field(min_length=1)],
     "securityContext": _object({
         "runAsNonRoot": bool, "runAsUser": POSITIVE, "runAsGroup": POSITIVE, "fsGroup": POSITIVE,
         "seccompProfile": _object({"type": Literal["RuntimeDefault", "Unconfined"]})})},
    automountServiceAccountToken=bool, activeDeadlineSeconds=POSITIVE,
    terminationGracePeriodSeconds=WHOLE, nodeSelector=LABELS, affinity=AFFINITY,
    volumes=list[VOLUME],
), AfterValidator(_mounts_are_volumes)]


def _replica(count: Any) -> Any:
    return _object({"replicas": count, "restartPolicy": Literal["Never", "OnFailure"],
                    "template": _object({"spec": POD}, metadata=_object(
                        {}, labels=LABELS, annotations=dict[QUALIFIED, str]))})


CONFIG_MAP = Annotated[_object({
    "apiVersion": Literal["v1"], "kind": Literal["ConfigMap"], "metadata": METADATA,
    "data": dict[_text(r"[A-Za-z0-9_-][A-Za-z0-9._-]*"), str]}), AfterValidator(_fits)]
MPI_JOB = Annotated[_object({
    "apiVersion": Literal["kubeflow.org/v2beta1"], "kind": Literal["MPIJob"],
    "metadata": METADATA, "spec": _object({
        "slotsPerWorker": POSITIVE, "sshAuthMountPath": PATH,
        "mpiImplementation": Literal["OpenMPI", "Intel", "MPICH"],
        "runPolicy": _object({"cleanPodPolicy": Literal["None", "Running", "All"]},
                             activeDeadlineSeconds=POSITIVE, backoffLimit=WHOLE),
        "mpiReplicaSpecs": _object({"Launcher": _replica(Literal[1]),
                                    "Worker": _replica(POSITIVE)}),
    }, launcherCreationPolicy=Literal["AtStartup", "WaitForWorkersReady"])}),
    AfterValidator(_operators_rules)]
_KINDS = TypeAdapter(Annotated[CONFIG_MAP | MPI_JOB, Field(discriminator="kind")])


def check(documents: Sequence[Any]) -> None:
    """Raise pydantic's ValidationError or ValueError unless these can be created together."""
    checked = [_KINDS.validate_python(document) for document in documents]
    maps = {item["metadata"]["name"] for item in checked if item["kind"] == "ConfigMap"}
    for job in (item for item in checked if item["kind"] == "MPIJob"):
        if f"{job['metadata']['name']}-config" in maps:
            raise ValueError(f"ConfigMap {job['metadata']['name']}-config is the operator's")
        for replica in job["spec"]["mpiReplicaSpecs"].values():
            for volume in replica["template"]["spec"].get("volumes", ()):
                if volume.get("configMap", {"name": next(iter(maps))})["name"] not in maps:
                    raise ValueError(f"volume {volume['name']}: no such ConfigMap")


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: a key that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        _distinct("key", keys)
        return super().construct_mapping(node, deep)


def load(text: str) -> list[Any]:
    """Return the documents of a manifest. Raises ValueError for what was not filled in."""
    documents = list(yaml.load_all(text, Loader=_Loader))
    for document in documents:
        ours = {key: value for key, value in document.items() if key != "data"}
        if left := re.findall(r"\$\{[A-Z_]+\}", str(ours)):
            raise ValueError(f"not filled in: {', '.join(left)}")
    return documents


def _distinct(what: str, names: Sequence[Any]) -> None:
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise ValueError(f"{what} {', '.join(twice)} is there twice")
