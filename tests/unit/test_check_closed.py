"""`hpcbench check` fails closed, for health systems and Slurm, too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from golden import RESULTS
from hpcbench import load
from hpcbench.answers.baseline import check_baseline
from hpcbench.answers.check import (
    CANNOT_TELL,
    CRASHED,
    GOOD,
    MISSING,
    SLOW,
    STYLES,
    UNREADABLE,
    WRONG,
    check_file,
    check_limits,
)
from hpcbench.answers.compare_inputs import Side, read_side
from hpcbench.answers.learned_limits import learned
from hpcbench.config.section import Limit, read_limits
from hpcbench.errors import ConfigError, FileError, UsageError
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.answer_lines import opened
from launcher import ROOT
from results_factory import in_launches, make_case, make_results
from synthetic import make_plan, write_synthetic_run

FILE = RESULTS["collective"]


def stored(path: Path = FILE) -> Results:
    with open_results(path) as file:
        return file.results


def changed(results: Results, change: Callable[[CaseResult], CaseResult]) -> Results:
    return replace(results, cases=tuple(map(change, results.cases)))


def beside_baseline(
    monkeypatch: pytest.MonkeyPatch, baseline: Results, results: Results,
) -> tuple[str, list[str]]:
    """Return outcome and reasons of results beside a baseline that are not in files."""
    known = {name: Side(name, (replace(one, run=replace(one.run, run_id=name)),), (name,))
             for name, one in (("baseline", baseline), ("results", results))}
    monkeypatch.setattr("hpcbench.answers.baseline.side_of", lambda paths: known[str(paths[0])])
    found = check_baseline([Path("results")], [Path("baseline")], 0.03)
    return found.outcome, [reason.text for reason in found.reasons]


def only_ok(results: Results) -> Results:
    return replace(results, cases=tuple(item for item in results.cases if item.status == "ok"))


def test_a_number_that_is_not_known_holds_no_limit() -> None:
    """Whole numbers of a kind that are not there are -1 in their column."""
    results = stored(RESULTS["training"])
    item = next(item for item in results.cases if item.status == "ok" and not item.memory)
    limit = Limit.model_validate({
        "metric": "peak_bytes", "select": {"case_id": item.case.case_id}, "max": 1e15})
    found = check_limits(results, [limit])
    assert found.outcome == "missing" and found.reasons[0].text == "has no peak_bytes"


def test_a_baseline_without_times_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    results = only_ok(stored())
    untimed = changed(results, lambda item: replace(
        item, status="skipped", statistics=None, timing=None))
    outcome, texts = beside_baseline(monkeypatch, untimed, results)
    assert outcome == "missing" and "no case has times on both sides" in texts


def test_beside_a_baseline_ranks_and_checks_may_not_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    """What a lost trace leaves is read from the folder of a run (tests/mpi/test_check_folders)."""
    results = only_ok(stored())
    write_synthetic_run(tmp_path, make_plan(n_cases=2))
    whole = reduce_folder(tmp_path)
    (tmp_path / "traces" / "rank00001.h5").unlink()
    assert beside_baseline(monkeypatch, whole, reduce_folder(tmp_path))[0] == "missing"
    unchecked = changed(results, lambda item: replace(item, n_wrong=None))
    assert "results were not checked" in beside_baseline(monkeypatch, results, unchecked)[1]


def test_a_case_slower_than_the_baseline_has_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_results((in_launches(make_case(), *[[by * (1 + at / 500)] * 3 for at in range(6)]
                                      ),)) for by in (1.0, 15.0)]
    outcome, texts = beside_baseline(monkeypatch, *jobs)
    assert outcome == "slow" and texts[0].startswith("15x (14.9..15.1) against"), texts


def test_the_same_file_twice_is_not_two_launches(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(FILE)
    with pytest.raises(UsageError, match="is given twice"):
        read_side(f"{FILE},{tmp_path / 'again'}")
    copy = tmp_path / "copy.h5"
    copy.write_bytes(FILE.read_bytes())
    for refuses in (lambda: read_side(f"{FILE},{copy}"), lambda: load([FILE, copy]),
                    lambda: opened([FILE, copy]).__enter__()):
        with pytest.raises(UsageError, match="again"):
            refuses()


def test_an_unknown_column_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("limits: [{metric: median_us, max: 1}]")
    with pytest.raises(ConfigError, match=rf'^{limits}: limits\[0\].metric: "median_us" is not'):
        check_file([FILE], limits)


def test_a_link_that_leads_to_itself_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileError, match="loop: no such file"):
        read_side(str(tmp_path / "loop"))


def test_a_comma_in_a_path_is_one_of_its_letters(tmp_path: Path) -> None:
    path = tmp_path / "a,b.h5"
    path.write_bytes(FILE.read_bytes())
    limits = tmp_path / "limits.yaml"
    limits.write_text("limits: [{metric: median_s, max: 1000}]")
    assert check_file([path], limits).n_cases
    assert read_side(str(path)).results
    other = tmp_path / "b.h5"
    other.symlink_to(path)
    (tmp_path / "a").symlink_to(path)
    joined = hpcbench(f"{tmp_path / 'a'},{other}", "--limits", str(limits))
    assert "is given twice" in joined.stderr, "the parts were read, each of them the same file"


def test_runs_with_injected_faults_teach_nothing_and_pass_no_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = [[1.0 + at / 500] * 3 for at in range(6)]
    results = make_results((in_launches(make_case(), *launches),))
    faulty = replace(results, run=replace(results.run, faults=("slow rank 1",)))
    with pytest.raises(UsageError, match="faults were injected"):
        learned(Side("x", (faulty,)), 0.75)
    limit = Limit.model_validate({"metric": "median_s", "max": 2.0})
    assert [check_limits(one, [limit]).outcome for one in (results, faulty)] == [
        GOOD, CANNOT_TELL]
    assert check_limits(faulty, [limit.model_copy(update={"max": 0.5})]).outcome == SLOW
    for before, now in ((results, faulty), (faulty, results)):
        outcome, texts = beside_baseline(monkeypatch, before, now)
        assert (outcome, texts) == (CANNOT_TELL, [faulty.run.injected])
    assert beside_baseline(monkeypatch, results, results) == (GOOD, [])


@pytest.mark.parametrize("text", [
    "[" * 20000, "limits:\n  - {metric: median_s, max: 1, why: 2020-13-45}",
    "limits:\n  - {metric: median_s, max: 1, select: {label: !!int abc}}",
    "limits:\n  - {metric: median_s, max: " + "9" * 5000 + "}"],
    ids=["deep", "date", "number", "digits"])
def test_a_file_that_yaml_chokes_on_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises((FileError, ConfigError)) as caught:
        read_limits(path)
    assert str(caught.value).startswith(f"{path}: is no YAML")


def hpcbench(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = "import runpy\nrunpy.run_module('hpcbench', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", f"{code}\n{start}", "check", *words], cwd=ROOT,
                          text=True, env={**os.environ, "NO_COLOR": "1"}, capture_output=True,
                          timeout=60, check=False)


@pytest.mark.parametrize("style", ["slurm", "nagios"])
def test_a_wrong_command_line_drains_no_node(style: str) -> None:
    done = hpcbench(str(FILE), "--exit-style", style)
    assert done.returncode == {"slurm": 0, "nagios": 3}[style] and "UNREADABLE" in done.stderr


def test_an_error_of_hpcbench_itself_drains_no_node(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("limits: [{metric: median_s, max: 1000}]")
    broken = "import hpcbench.answers.check as gate\ngate.check_file = lambda *_: 1 / 0"
    words = (str(FILE), "--limits", str(limits))
    done = hpcbench(*words, "--exit-style", "slurm", code=broken)
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr, done
    assert hpcbench(*words, code=broken).returncode == 4


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
    seconds = [*map(int, re.findall(r"timeout -k (\d+) (\d+) ", (
        HEALTH / "check_stored.sh").read_text())[0])]
    of_nhc = int(re.findall(r"status -t (\d+) ", (HEALTH / "nhc.conf").read_text())[0])
    assert sum(seconds) < of_nhc < 30, "NHC refuses a check that may take longer than all of NHC"
    [line] = [one for one in (HEALTH / "prometheus.cron").read_text().splitlines()
              if not one.startswith("#")]
    assert len(line.split()[:5]) == 5 and line.split()[5] == "root"
    compile((HEALTH / "reframe_test.py").read_text(), "reframe_test.py", "exec")
