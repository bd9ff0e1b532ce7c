"""The kubectl of tests/kubernetes_operator.py: what jobs/k8s/run.sh asks of it, and no more.

    python tests/kubectl.py FOLDER ARGUMENTS OF kubectl
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml


def state(folder: Path) -> dict[str, Any]:
    """Return phase and exit code of the launcher; empty before it has started."""
    path = folder / "state.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def tried(text: str) -> int:
    """Print what the cluster would create; where there is one, it fills in defaults, too."""
    for document in yaml.safe_load_all(text):
        print(json.dumps(document))
    return 0


def found(kind: str) -> int:
    """Print the objects of a kind: two nodes that are free, and nothing else."""
    nodes = [{"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}]}} for name in ("vh2", "vh3")]
    print(json.dumps({"kind": "List", "items": nodes if kind == "nodes" else []}))
    return 0


def create(folder: Path, text: str) -> int:
    for document in yaml.safe_load_all(text):
        print(f"{document['kind']}/{document['metadata']['name']} created")
    part = folder / "created.part"
    part.write_text(text)
    part.replace(folder / "created.yaml")
    return 0


def get(folder: Path, words: Sequence[str]) -> int:
    """Print what is asked for of the launcher's pod, or the API's list of kinds."""
    if "--raw" in words:
        print('{"groupVersion":"kubeflow.org/v2beta1","resources":[{"name":"mpijobs"}]}')
        return 0
    if words[-1] == "json":
        return found(words[1])
    asked, known = words[-1], state(folder)
    if known and asked == "jsonpath={.items[*].metadata.name}" and "launcher" not in words[3]:
        print(*(path.parent.name for path in folder.glob("*/log")), end="")
    elif known and "metadata.name" in asked and "range" not in asked:
        print(*(path.name for path in folder.glob("*-launcher")), end="")
    elif known and asked.endswith(".status.phase}"):
        print(known["phase"], end="")
    elif known and "exitCode" in asked and known["exit_code"] is not None:
        print(known["exit_code"], end="")
    return 0


def logs(folder: Path, pod: str) -> int:
    """Print what the launcher prints until it has ended."""
    with (folder / pod / "log").open() as log:
        while True:
            ended = state(folder).get("phase") != "Running"
            if text := log.read():
                print(text, end="", flush=True)
            elif ended:
                return 0
            time.sleep(0.05)


def execute(folder: Path, pod: str, command: Sequence[str]) -> int:
    """Run a command in a pod: its process 1 is the child of what was started for it."""
    outer = psutil.Process(int((folder / pod / "pid").read_text()))
    first = outer.children()[0].pid
    words = ["nsenter", f"--target={first}", "--mount", "--net", "--uts", "--ipc", "--pid",
             "--root", "--wd", "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
    return subprocess.run([*words, *command], check=False).returncode


def main(folder: Path, words: Sequence[str]) -> int:
    if words[0] == "auth":
        print("yes")
        return 0
    if words[0] == "create":
        text = sys.stdin.read()
        return tried(text) if "--dry-run=server" in words else create(folder, text)
    if words[0] == "get":
        return get(folder, words)
    if words[0] == "logs" and "--all-containers" in words:
        print((folder / words[1] / "log").read_text(), end="")
        return 0
    if words[0] == "logs":
        return logs(folder, words[2])
    if words[0] == "exec":
        return execute(folder, words[1], words[words.index("--") + 1:])
    if words[0] == "delete":
        (folder / "deleted").write_text(" ".join(words))
        return 0
    print(f"no such command here: {' '.join(words)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.chdir("/")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
