"""`bash benchmarks/gpu.sh` for real, with steps for the CPU: runs, fails, times out, goes on."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcbench.reduce.results_file import open_results
from launcher import ROOT
from mpi.reading import NOT_DRAWN

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
ONCE = {"passes": 1, "warmup": 1, "iterations": 3, "canary": False, "noise_check_s": 0,
        "order": "planned"}
ON_GPUS = {"device_error": 512, "device_oom": 1024, "device_hang": 1536}
"""Fault that needs a GPU -> the size of the collective that it hits."""
SWEEP = {
    "name": "cpu", "measure": ONCE, "output": NOT_DRAWN, "launch": {"timeout_s": 30},
    "fault": [{"case": "all_reduce* 64B *", "rank": 0, "kind": "kill", "iteration": 1},
              *({"case": f"all_reduce* {size}B *", "rank": 0, "kind": kind, "iteration": 1}
                for kind, size in ON_GPUS.items())],
    "benchmarks": [
        {"kind": "collective", "collective": "all_reduce",
         "size": [64, 128, 512, 768, 1024, 1280, 1536, 1792]},
        {"kind": "collective", "collective": "broadcast", "backend": "nccl", "size": 8}]}
SMALL = {
    "name": "small", "measure": ONCE, "output": NOT_DRAWN, "launch": {"timeout_s": 30},
    "benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": 8}]}
SECRETS = {"HF_TOKEN": "hf_PlantedToken1", "AWS_SECRET_ACCESS_KEY": "Planted+Secret/2",
           "NCCL_NET_PLUGIN": "tcp://ops:Planted3@h", "NCCL_CONFIG_PASSWORD": "Planted-pass4"}
PRODUCT = {
    "name": "peak", "measure": ONCE, "output": NOT_DRAWN, "launch": {"timeout_s": 60},
    "benchmarks": [
        {"kind": "hardware", "test": "gemm", "shape": "256", "dtype": "fp32"},
        {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 32, "heads": 2,
         "seq_length": 8, "vocab": 49, "batch_size": 2, "strategies": "single"}]}
REFUSED = {"OMPI_ALLOW_RUN_AS_ROOT": "0", "HYDRA_LAUNCHER": "no-such-launcher"}
BEGINS = "import os, sys, time; print('begun', os.getpid(), flush=True)"
BEGUN = re.compile(r"^begun (\d+)$", re.MULTILINE)
UNTIL = f"""{BEGINS}
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
"""Waits for a file."""
FLAG = "{session}/../flag"
"""A step is another one when a file is that it names, but for these braces."""


def step(name: str, *goals: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return a step; one goal of its exit code if none is given."""
    return {"name": name, "goals": list(goals) or [{"id": f"{name}_ends", "text": "it ends"}],
            **keys}


def written(folder: Path, *steps: dict[str, Any], device: str = "cpu") -> Path:
    """Write a file of steps and their sweeps."""
    for name, sweep in (("sweep.json", SWEEP), ("product.json", PRODUCT), ("small.json", SMALL)):
        (folder / name).write_text(json.dumps(sweep))
    path = folder / "steps.json"
    path.write_text(json.dumps({"device": device, "steps": steps}))
    return path


def session(
    folder: Path, *words: str, code: int, without: tuple[str, ...] = (), **env: str,
) -> tuple[str, dict[str, Any]]:
    """Run the script; return what it printed, and the verdicts by goal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    done = subprocess.run(
        ["bash", str(SCRIPT), "--no-setup", "-o", str(folder / "session"), *words], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False,
        env={**kept, "HPCBENCH_PYTHON": sys.executable, **env})
    assert done.returncode == code, done.stdout
    path = folder / "session" / "verdicts.json"
    told = json.loads(path.read_text()) if path.exists() else {"verdicts": [], "steps": []}
    return done.stdout, {item["goal"]: item for item in told["verdicts"]} | {
        "steps": {item["name"]: item for item in told["steps"]}}


@dataclass(frozen=True)
class Session:
    """What the script left in ``folder`` and printed, and the verdicts by goal."""

    folder: Path
    printed: str
    verdicts: dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Return a session of steps that are done and of one whose launcher refuses to start."""
    folder = tmp_path_factory.mktemp("whole")
    prints = "import os, platform; print(dict(os.environ), platform.node(), os.getcwd())"
    steps = written(
        folder, step("prints", command=["{python}", "-c", prints]),
        step("faults", {"id": "all", "text": "all are ok", "judge": "all_ok"},
             {"id": "first", "text": "first calls", "judge": "told", "what": "first_call_s"},
             {"id": "kill", "text": "kill", "judge": "survived", "fault": "all_reduce* 64B *",
              "statuses": ["failed"], "reason": "rank 0"},
             *({"id": kind, "text": "no GPU", "judge": "survived",
                "fault": f"all_reduce* {size}B *", "statuses": ["failed"],
                "reason": f"{kind} needs a GPU"} for kind, size in ON_GPUS.items()),
             {"id": "events", "text": "no events", "judge": "events"},
             sweep="sweep.json", ranks=2),
        step("peak", {"id": "peak", "text": "rate", "judge": "peak", "share": 1e-9},
             {"id": "mfu", "text": "MFU", "judge": "mfu", "least": 1e-9},
             {"id": "memory", "text": "memory", "judge": "memory", "within": 1e9},
             {"id": "read", "text": "no GPU", "judge": "gpu_read"},
             sweep="product.json", ranks=1,
             set={"hardware": {"peak_flops": {"fp32": 1e12}, "device_type": "cpu"}}),
        step("refused", {"id": "no", "text": "none runs", "judge": "all_ok"}, sweep="small.json",
             ranks=2, env=REFUSED))
    return Session(folder, *session(folder, "5", f"--steps={steps}", code=1, **SECRETS))


@pytest.mark.mpi
def test_sweeps_are_run_and_judged(whole: Session) -> None:
    verdicts = whole.verdicts
    words = {goal: item["verdict"] for goal, item in verdicts.items() if goal != "steps"}
    assert words == {"prints_ends": "met", "all": "missed", "first": "met", "kill": "met",
                     "events": "missed", "peak": "met", "mfu": "met", "memory": "met",
                     "read": "missed", "no": "failed", **dict.fromkeys(ON_GPUS, "met")}, verdicts
    assert "of declared" in verdicts["mfu"]["detail"] and "of measured" in verdicts["mfu"]["detail"]
    assert "3 missed" in whole.printed and "verdicts.md" in whole.printed
    assert verdicts["steps"]["refused"]["state"] == "failed"
    assert "bootstrap" in verdicts["steps"]["refused"]["reason"]


def names_host(text: str) -> bool:
    """Tell whether this host's name is a word of a text."""
    name = re.escape(platform.node().partition(".")[0])
    return re.search(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", text) is not None


def planted(folder: Path, verdict: str) -> dict[str, str]:
    """Return the texts of a session's archive by name, after looking for what must not be there."""
    found = {}
    with tarfile.open(folder / "session/to-send.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(folder / "unpacked")
        names = archive.getnames()
    assert not [*(folder / "session").glob(".to-send*")]
    for name in names:
        data = (folder / "unpacked" / name).read_bytes()
        for secret in (*SECRETS.values(), "Planted3", str(folder), str(ROOT)):
            assert secret.encode() not in data, (name, secret)
        assert not names_host(data.decode("latin-1")) or name.endswith(".h5"), name
        found[name.removeprefix("gpu-session/")] = data.decode("utf-8", "replace")
    assert f"**{verdict}**" in found["verdicts.md"]
    return found


@pytest.mark.mpi
def test_what_is_sent_back_has_the_results_and_no_secret(whole: Session) -> None:
    assert f"to send back: {whole.folder / 'session/to-send.tar.gz'} (" in whole.printed
    found = planted(whole.folder, "met")
    assert "HF_TOKEN" in found["steps/prints/output.log"], "the test prints its environment"
    assert "steps/peak/results/summary.json" in found
    with open_results(whole.folder / "unpacked/gpu-session/steps/peak/results") as file:
        assert [item.status for item in file.results.cases] == ["ok", "ok"]
        texts = json.dumps(file.results.run.environment)
    assert not names_host(texts) and str(ROOT) not in texts


def test_failures_cost_their_own_step_and_a_second_run_goes_on(tmp_path: Path) -> None:
    broken = "print('it broke'); raise SystemExit(3)"
    flag = tmp_path / "repaired"
    repaired = f"import os, sys; print('now'); sys.exit(not os.path.exists({str(flag)!r}))"
    steps = written(
        tmp_path, step("broken", command=["{python}", "-c", broken]),
        step("slow", command=["{python}", "-c", UNTIL, "{folder}/never"], limit_s=1),
        step("missing", command=["no-such-program-here"]),
        step("repaired", command=["{python}", "-c", repaired]),
        step("last", command=["{python}", "-c", BEGINS]))
    _, verdicts = session(tmp_path, "5", "--steps", str(steps), code=1)
    found = {name: (item["state"], item["reason"]) for name, item in verdicts["steps"].items()}
    assert found["broken"] == ("failed", "exit code 3: it broke")
    assert found["slow"] == ("timeout", "not done in its 1 s")
    assert found["missing"] == ("failed", "it cannot be started: no program no-such-program-here")
    assert found["repaired"][0] == "failed" and found["last"] == ("done", "")
    assert verdicts["last_ends"]["verdict"] == "met"
    flag.touch()
    printed, verdicts = session(tmp_path, "--steps", str(steps), "--again", "repaired", code=1)
    assert printed.count("earlier") == 4
    assert verdicts["steps"]["repaired"]["state"] == "done"
    assert (tmp_path / "session/steps/repaired.old1/output.log").exists()
    assert "| it ends | **met** |" in (tmp_path / "session/verdicts.md").read_text()


def begun(folder: Path, steps: Path, *words: str) -> tuple[subprocess.Popen[str], int]:
    """Start a session whose second step waits; return it and that step's process, once it runs."""
    log = folder / "session/steps/second/output.log"
    running = started(folder, steps, *words)
    wait_for(lambda: log.exists() and BEGUN.search(log.read_text()) is not None)
    (pid,) = BEGUN.findall(log.read_text())
    return running, int(pid)


def started(
    folder: Path, steps: Path, *words: str, stdout: Any = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start a session."""
    return subprocess.Popen(
        ["bash", str(SCRIPT), "--no-setup", "--steps", str(steps), "-o", str(folder / "session"),
         *words],
        env={**os.environ, "HPCBENCH_PYTHON": sys.executable}, text=True,
        stdout=stdout, stderr=subprocess.STDOUT)


def wait_for(seen: Callable[[], bool]) -> None:
    """Wait until something is seen, for a minute at most."""
    deadline = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline, "not seen in 60 s"
        time.sleep(0.05)


def verdicts_in(folder: Path) -> dict[str, str]:
    """Return the verdicts that a session has written so far, by goal."""
    told = json.loads((folder / "session/verdicts.json").read_text())["verdicts"]
    return {item["goal"]: item["verdict"] for item in told}


def test_an_interrupted_step_is_run_again_and_leaves_no_process(tmp_path: Path) -> None:
    """A session that is killed leaves its step running, and the next one awaits that."""
    flag = tmp_path / "flag"
    notes = "open(sys.argv[2], 'a').write(f'{began} {time.monotonic()}\\n')"
    program = f"import time\nbegan = time.monotonic()\n{UNTIL}\n{notes}"
    steps = written(
        tmp_path, step("first", command=["{python}", "-c", BEGINS]),
        step("second", command=["{python}", "-c", program, FLAG, "{folder}/times"]))
    running, waiting = begun(tmp_path, steps)
    running.send_signal(signal.SIGTERM)
    printed, _ = running.communicate(timeout=100)
    assert running.returncode == 3 and "interrupted; run it again" in printed
    assert not Path(f"/proc/{waiting}").exists()
    assert verdicts_in(tmp_path) == {"first_ends": "met", "second_ends": "not run"}
    assert "steps/second/output.log" in planted(tmp_path, "not run")
    (tmp_path / "session/steps/second/output.log").unlink()
    running, _ = begun(tmp_path, steps)
    running.kill()
    running.communicate()
    assert verdicts_in(tmp_path)["first_ends"] == "met"
    with (tmp_path / "printed").open("w+b") as log:
        again = started(tmp_path, steps, stdout=log)
        wait_for(lambda: b"waiting for what still runs in" in (tmp_path / "printed").read_bytes())
        flag.touch()
        assert again.wait(100) == 0
    assert (tmp_path / "printed").read_text().count("earlier") == 1
    assert verdicts_in(tmp_path) == {"first_ends": "met", "second_ends": "met"}
    assert not list((tmp_path / "session/steps").glob("*.old*"))
    first, second = (list(map(float, line.split())) for line in (
        tmp_path / "session/steps/second/times").read_text().splitlines())
    assert first[1] <= second[0], "two of the same step ran at once"


def test_without_time_nothing_is_begun_and_what_was_done_is_left(tmp_path: Path) -> None:
    steps = written(tmp_path, step("first", command=["{python}", "-c", BEGINS]))
    _, verdicts = session(tmp_path, "0.001", "--steps", str(steps), code=3)
    assert verdicts["first_ends"]["verdict"] == "not run"
    session(tmp_path, "5", "--steps", str(steps), code=0)
    printed, _ = session(
        tmp_path, "0.0001", "--steps", str(steps), "--again", "first", code=3)
    assert "the time of the session was over" in printed
    assert not list((tmp_path / "session/steps").glob("*.old*"))
    printed, _ = session(tmp_path, "--steps", str(steps), code=0)
    assert "earlier" in printed


def test_without_a_gpu_there_is_one_line_and_a_code_of_its_own(tmp_path: Path) -> None:
    steps = written(tmp_path, step("one", command=["{python}", "-c", "pass"]), device="cuda")
    printed, _ = session(tmp_path, "--steps", str(steps), code=5, CUDA_VISIBLE_DEVICES="")
    assert printed.startswith("benchmarks/gpu.sh: no GPU: ") and printed.count("\n") == 1
    assert not (tmp_path / "session").exists()


def test_bad_usage_is_one_line(tmp_path: Path) -> None:
    printed, _ = session(tmp_path, "--steps", str(tmp_path / "none.yaml"), code=2)
    assert "none.yaml cannot be read" in printed and printed.count("\n") == 1
    steps = written(tmp_path, step("one", command=["{python}"]))
    printed, _ = session(tmp_path, "--steps", str(steps), "--again", "two", code=2)
    assert printed == "benchmarks/gpu.sh: --again: there is no step two\n"
