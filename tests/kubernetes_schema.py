"""Strict schemas of what jobs/k8s makes: a field, name or quantity that is unknown is an error.

Of the built-in kinds they have the fields that are used here (Kubernetes API v1.33), and of MPIJob
v2beta1 all of its own, with the rules that the operator checks when it sees a job (its
pkg/apis/kubeflow/validation/validation.go, v0.8.2) and what it adds to a pod itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator


def _text(pattern: str, most: int = 253) -> Any:
    return Annotated[str, Field(pattern=rf"^(?:{pattern})$", max_length=most)]


_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
Label = _text(_LABEL, 63)
Subdomain = _text(rf"{_LABEL}(?:\.{_LABEL})*")
Dns1035 = _text(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", 63)
Qualified = _text(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_WORD}", 317)
LabelValue = _text(rf"(?:{_WORD})?", 63)
FileName = _text(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
Variable = _text(r"[A-Za-z_][A-Za-z0-9_]*")
Path = _text(r"/[^:]*", 4096)
Image = _text(rf"{_WORD}(?:[:/@]{_WORD})*", 500)
QuantityText = _text(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGTPE]|[KMGTPE]i)?")
Quantity = QuantityText | Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(gt=0, lt=2**31)]
Port = Annotated[int, Field(gt=0, lt=2**16)]


def _extended_are_whole(resources: dict[str, Any]) -> dict[str, Any]:
    """Devices cannot be shared; resources without a domain are the few that Kubernetes has."""
    for name, amount in resources.items():
        if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"):
            raise ValueError(f"{name} is no resource")
        if "/" in name and not str(amount).isdecimal():
            raise ValueError(f"{name} takes a whole number")
    return resources


Resources = Annotated[dict[Qualified, Quantity], AfterValidator(_extended_are_whole)]


class Strict(BaseModel):
    """Fields that are not listed are errors, and so is text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Strict):
    name: Subdomain
    labels: dict[Qualified, LabelValue] = {}
    annotations: dict[Qualified, str] = {}


class TemplateMetadata(Strict):
    labels: dict[Qualified, LabelValue] = {}
    annotations: dict[Qualified, str] = {}


class ConfigMap(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: dict[FileName, str]

    @model_validator(mode="after")
    def _fits(self) -> ConfigMap:
        if sum(map(len, self.data.values())) >= 1 << 20:
            raise ValueError("data: 1 MiB at most")
        return self


class Seccomp(Strict):
    type: Literal["RuntimeDefault", "Unconfined"]


class PodSecurity(Strict):
    runAsNonRoot: bool
    runAsUser: Positive
    runAsGroup: Positive
    fsGroup: Positive
    seccompProfile: Seccomp


class Capabilities(Strict):
    drop: list[Literal["ALL"]]


class Security(Strict):
    allowPrivilegeEscalation: bool
    capabilities: Capabilities


class TcpSocket(Strict):
    port: Port


class Probe(Strict):
    tcpSocket: TcpSocket
    initialDelaySeconds: Whole = 0
    periodSeconds: Positive = 10


class Env(Strict):
    name: Variable
    value: str


class Mount(Strict):
    name: Label
    mountPath: Path
    readOnly: bool = False


class Requirements(Strict):
    requests: Resources = {}
    limits: Resources = {}


class Container(Strict):
    name: Label
    image: Image
    command: list[str] = Field(min_length=1)
    args: list[str] = []
    env: list[Env] = []
    readinessProbe: Probe | None = None
    securityContext: Security
    resources: Requirements
    volumeMounts: list[Mount] = []

    @model_validator(mode="after")
    def _once(self) -> Container:
        _distinct("env", [env.name for env in self.env])
        _distinct("mountPath", [mount.mountPath for mount in self.volumeMounts])
        return self


class ConfigMapSource(Strict):
    name: Subdomain


class EmptyDir(Strict):
    medium: Literal["", "Memory"] = ""
    sizeLimit: Quantity | None = None


class ClaimSource(Strict):
    claimName: Subdomain
    readOnly: bool = False


class Volume(Strict):
    name: Label
    configMap: ConfigMapSource | None = None
    emptyDir: EmptyDir | None = None
    persistentVolumeClaim: ClaimSource | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Volume:
        if len(self.model_fields_set) != 2:
            raise ValueError(f"volume {self.name} needs one source")
        if self.name in ("ssh-auth", "mpi-job-config"):
            raise ValueError(f"volume {self.name} is the operator's")
        return self


class Selector(Strict):
    matchLabels: dict[Qualified, LabelValue] = Field(min_length=1)


class AffinityTerm(Strict):
    topologyKey: Qualified
    labelSelector: Selector


class PodAntiAffinity(Strict):
    requiredDuringSchedulingIgnoredDuringExecution: list[AffinityTerm]


class Affinity(Strict):
    podAntiAffinity: PodAntiAffinity


class PodSpec(Strict):
    """Without restartPolicy, which the operator takes from the replica."""

    automountServiceAccountToken: bool = True
    activeDeadlineSeconds: Positive | None = None
    terminationGracePeriodSeconds: Whole = 30
    securityContext: PodSecurity
    nodeSelector: dict[Qualified, LabelValue] = {}
    affinity: Affinity | None = None
    containers: list[Container] = Field(min_length=1)
    volumes: list[Volume] = []

    @model_validator(mode="after")
    def _mounts_are_volumes(self) -> PodSpec:
        volumes = [volume.name for volume in self.volumes]
        _distinct("volume", volumes)
        _distinct("container", [container.name for container in self.containers])
        for container in self.containers:
            for mount in container.volumeMounts:
                if mount.name not in volumes:
                    raise ValueError(f"no volume {mount.name} for {mount.mountPath}")
        return self


class Template(Strict):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec


class Replica(Strict):
    replicas: Positive
    restartPolicy: Literal["Never", "OnFailure"]
    template: Template


class Launcher(Replica):
    replicas: Literal[1]


class Replicas(Strict):
    Launcher: Launcher
    Worker: Replica


class SchedulingPolicy(Strict):
    minAvailable: Positive | None = None
    queue: str = ""
    minResources: Resources = {}
    priorityClass: str = ""
    scheduleTimeoutSeconds: Whole | None = None


class RunPolicy(Strict):
    cleanPodPolicy: Literal["None", "Running", "All"]
    ttlSecondsAfterFinished: Whole | None = None
    activeDeadlineSeconds: Positive | None = None
    backoffLimit: Whole | None = None
    schedulingPolicy: SchedulingPolicy | None = None
    suspend: bool = False
    managedBy: Literal["kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"] | None = None


class MpiJobSpec(Strict):
    slotsPerWorker: Positive
    runLauncherAsWorker: bool = False
    runPolicy: RunPolicy
    mpiReplicaSpecs: Replicas
    sshAuthMountPath: Path
    launcherCreationPolicy: Literal["AtStartup", "WaitForWorkersReady"] = "AtStartup"
    mpiImplementation: Literal["OpenMPI", "Intel", "MPICH"]

    @model_validator(mode="after")
    def _leave_room_for_the_operator(self) -> MpiJobSpec:
        for replica in (self.mpiReplicaSpecs.Launcher, self.mpiReplicaSpecs.Worker):
            for mount in replica.template.spec.containers[0].volumeMounts:
                if mount.mountPath in ("/etc/mpi", self.sshAuthMountPath):
                    raise ValueError(f"{mount.mountPath} is mounted by the operator")
        return self


class MpiJob(Strict):
    apiVersion: Literal["kubeflow.org/v2beta1"]
    kind: Literal["MPIJob"]
    metadata: Metadata
    spec: MpiJobSpec

    @model_validator(mode="after")
    def _names_are_labels(self) -> MpiJob:
        last = self.spec.mpiReplicaSpecs.Worker.replicas - 1
        TypeAdapter(Dns1035).validate_python(f"{self.metadata.name}-worker-{last}")
        return self


_KINDS = TypeAdapter(Annotated[ConfigMap | MpiJob, Field(discriminator="kind")])


def check(documents: Sequence[Any]) -> None:
    """Raise pydantic's ValidationError or ValueError unless these can be created together."""
    checked = [_KINDS.validate_python(document) for document in documents]
    maps = {item.metadata.name for item in checked if isinstance(item, ConfigMap)}
    for job in (item for item in checked if isinstance(item, MpiJob)):
        if f"{job.metadata.name}-config" in maps:
            raise ValueError(f"ConfigMap {job.metadata.name}-config is the operator's")
        replicas = job.spec.mpiReplicaSpecs
        for volume in (*replicas.Launcher.template.spec.volumes,
                       *replicas.Worker.template.spec.volumes):
            if volume.configMap and volume.configMap.name not in maps:
                raise ValueError(f"volume {volume.name}: no ConfigMap {volume.configMap.name}")


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
