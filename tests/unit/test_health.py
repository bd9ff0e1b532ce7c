"""The pieces of jobs/health: exit codes of health systems, and no wait for Slurm in a prolog."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from hpcbench.answers.check import (
    CANNOT_TELL,
    CRASHED,
    GOOD,
    MISSING,
    SLOW,
    STYLES,
    UNREADABLE,
    WRONG,
)
from launcher import ROOT

HEALTH = ROOT / "jobs" / "health"
LINE = "HPCBENCH_CHECK RESULT SLOW: 1 limit, 1 case, 1 reason"


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def started(script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEALTH / script, *words], env={"PATH": os.environ["PATH"], **env}, text=True,
        capture_output=True, timeout=60, check=False)


def test_styles_accuse_by_evidence_only() -> None:
    """As node-problem-detector has it, 1 is a problem and more is unknown; to gpud and Slurm any
    other code than 0 is a problem."""
    for style in ("slurm", "npd", "gpud"):
        codes = STYLES[style]
        assert [codes[one] for one in (GOOD, SLOW, WRONG, CRASHED)] == [0, 1, 1, 1]
        unknown = 2 if style == "npd" else 0
        assert {codes[MISSING], codes[CANNOT_TELL], UNREADABLE[style]} == {unknown}
    assert STYLES.keys() == UNREADABLE.keys()


@pytest.mark.parametrize(("style", "unknown"), [
    ("slurm", 0), ("gpud", 0), ("npd", 2), ("nagios", 3)])
def test_stored_results_are_checked_and_what_does_not_answer_is_unknown(
    style: str, unknown: int, tmp_path: Path,
) -> None:
    check = program(tmp_path, "hpcbench", f'echo "$*" >>{tmp_path}/words\n'
                    f"echo HPCBENCH_CHECK SLOW a\necho {LINE}\nexit 1")
    done = started("check_stored.sh", style, HPCBENCH=str(check), HPCBENCH_HEALTH="/var/h")
    assert done.returncode == 1 and done.stdout.splitlines() == [LINE, "HPCBENCH_CHECK SLOW a"]
    assert (tmp_path / "words").read_text().strip() == (
        f"check /var/h/results.h5 --limits /var/h/limits.yaml --exit-style {style}")
    for missing in ("/nowhere/hpcbench", str(program(tmp_path, "killed", "kill -9 $$"))):
        done = started("check_stored.sh", style, HPCBENCH=missing)
        assert done.returncode == unknown and "UNREADABLE" in done.stdout


def test_the_prolog_accuses_without_scontrol_and_the_health_check_drains_once(
    tmp_path: Path,
) -> None:
    check = program(tmp_path, "hpcbench", f"echo {LINE}\nexit 1")
    program(tmp_path, "scontrol", f'echo "$*" >>{tmp_path}/drained')
    program(tmp_path, "sinfo", f"cat {tmp_path}/reason")
    env = {"HPCBENCH": str(check), "HPCBENCH_HEALTH_SCRIPTS": str(HEALTH), "SLURMD_NODENAME": "n7",
           "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert started("prolog.sh", **env).returncode == 1 and not (tmp_path / "drained").exists()
    (tmp_path / "reason").write_text("cooling\n")
    started("healthcheck.sh", **env)
    assert not (tmp_path / "drained").exists(), "another reason stays"
    (tmp_path / "reason").write_text("none\n")
    started("healthcheck.sh", **env)
    assert (tmp_path / "drained").read_text().strip() == (
        f"update nodename=n7 state=drain reason={LINE}")
    program(tmp_path, "hpcbench", "exit 0")
    assert started("healthcheck.sh", **env).returncode == 0
    commands = re.sub(r"#.*", "", (HEALTH / "prolog.sh").read_text())
    assert "scontrol" not in commands and "hpcbench run" not in commands


def test_files_for_others_keep_their_rules() -> None:
    """custom_plugin_monitor.md of node-problem-detector, PLUGIN.md of gpud, crontab(5)."""
    npd = json.loads((HEALTH / "node_problem_detector.json").read_text())
    conditions = {one["type"] for one in npd["conditions"]}
    [rule] = npd["rules"]
    assert npd["plugin"] == "custom" and rule["type"] == "permanent" and rule["args"] == ["npd"]
    assert rule["condition"] in conditions and rule["reason"] != npd["conditions"][0]["reason"]
    [spec] = yaml.safe_load((HEALTH / "gpud.yaml").read_text())
    assert len(spec["plugin_name"]) <= 128 and spec["plugin_type"] == "component"
    assert [spec["timeout"], spec["interval"]] == ["55s", "10m"]
    [step] = spec["health_state_plugin"]["steps"]
    assert step["name"] and step["run_bash_script"]["content_type"] == "plaintext"
    paths = {rule["path"], step["run_bash_script"]["script"].split()[0],
             (HEALTH / "nhc.conf").read_text().splitlines()[-1].split()[-2]}
    assert {Path(path).name for path in paths} == {"check_stored.sh"} and len(paths) == 1
    [line] = [one for one in (HEALTH / "prometheus.cron").read_text().splitlines()
              if not one.startswith("#")]
    assert len(line.split()[:5]) == 5 and line.split()[5] == "root"
    compile((HEALTH / "reframe_test.py").read_text(), "reframe_test.py", "exec")
