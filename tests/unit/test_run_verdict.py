"""The first line of a run: one sentence and one of three states, the first rule that matches."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bad_input_process import hpcbench
from golden import RESULTS
from hpcbench.answers.answer import CANNOT_TELL, Answer, Run
from hpcbench.answers.topics import TopicResult, summary_lines
from hpcbench.answers.verdict import AMBER, GREEN, RED, checked_text, verdict_of
from hpcbench.config.axes import UNCHECKED
from hpcbench.reduce.results import CaseResult, Finding, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.document import markdown_text
from hpcbench.report.report_file import _answers, document_of
from hpcbench.report.results_lines import brief_tables_of, count_lines, short_reason
from hpcbench.report.summary import case_rows, summary_document
from results_factory import (
    MemorySamples,
    flagged,
    make_case,
    make_plan,
    make_results,
    not_ok,
    ok,
    sweep,
)

NOISE = Finding("HB144", "note", "other processes used 81 % of each core: expect long tails; see")
"""Of an earlier version, which had no share."""
LITTLE = Finding("HB144", "note", "others used 2 % to 9 % of cores: expect long tails", 0.09)
ONE = Finding("HB143", "note", "rank 3 on b: other processes used 60 % of its core", 0.6)
FEW = Finding("HB134", "note", "no p5 or p95 for all_reduce: fewer than 20; raise")


def run_of(*more: CaseResult, findings: tuple[Finding, ...] = (), **changes: object) -> Results:
    return make_results((ok(make_case()), *more), findings, **changes)


def bad(status: str) -> CaseResult:
    return not_ok(make_case(index=1), status, "some reason")


CLEAN, NOT_CHECKED = ok(make_case()), ok(make_case(check=UNCHECKED))
PASSES_LEFT = run_of(flagged(CLEAN, pass_medians_s=(1e-4,) * 2 + (None,) * 4), findings=(FEW,))
PASSES_LEFT = replace(PASSES_LEFT, plan=replace(PASSES_LEFT.plan, passes=6), cases=(
    flagged(CLEAN, pass_medians_s=(1e-4,) * 3 + (None,) * 3), *PASSES_LEFT.cases[1:]))
"""Its job was killed in pass 3."""
RUNS: Mapping[str, tuple[str, str, Results]] = {
    "clean": (GREEN, "1 of 1 case", run_of()),
    "skipped by plan": (GREEN, "1 of 2 cases", run_of(bad("skipped"))),
    "nothing measured": (RED, "no case", make_results((bad("failed"),))),
    "faults": (RED, "2 faults were injected; 1 of 2 cases gave wrong results; other processes",
               run_of(bad("wrong"), faults=("a", "b"), findings=(NOISE,))),
    "not one run": (RED, "plan.json was", run_of(findings=(Finding(
        "HB140", "run", "plan.json was changed: so"),))),
    "lost ranks": (RED, "2 of 4 ranks", run_of(bad("wrong"), ranks_present=(0, 3))),
    "wrong": (RED, "1 of 2 cases gave wrong results; other processes used 81 %",
              run_of(bad("wrong"), findings=(NOISE,))),
    "one rank": (RED, "one rank", make_results((ok(make_case(world_size=1)),), world_size=1,
                                               ranks_present=(0,))),
    "weights differ": (RED, "replicas", run_of(findings=(Finding("HB127", "note", "x: y"),))),
    "noise": (RED, "other processes used 81 % of each core", run_of(
        bad("timeout"), findings=(FEW, NOISE))),
    "noise above a tenth": (RED, "cores", run_of(findings=(replace(LITTLE, share=0.11),))),
    "a little noise": (AMBER, "cores", run_of(findings=(FEW, LITTLE))),
    "one noisy rank": (RED, "one rank", run_of(findings=(ONE,))),
    "a rank with a little": (AMBER, "one rank", run_of(findings=(FEW, replace(ONE, share=0.1)))),
    "imported": (AMBER, "nccl-tests", run_of(imported=("nccl-tests",))),
    "incomplete": (AMBER, "1 of 4 cases", run_of(bad("failed"), bad("timeout"), bad("not_run"),
                                                 findings=(FEW,))),
    "passes left": (AMBER, "2 of 2 cases measured in 2 to 3 of 6 passes", PASSES_LEFT),
    "unchecked": (AMBER, "1 of 2 cases", run_of(NOT_CHECKED)),
    "unchecked, flagged": (AMBER, "2 of 3 cases flagged", run_of(
        flagged(NOT_CHECKED, "late_starts"), flagged(CLEAN, "trend"))),
    "drift": (AMBER, "canary", run_of(findings=(FEW, Finding("HB145", "note", "the canary x: y")))),
    "flags": (AMBER, "1 of 2 cases", run_of(flagged(CLEAN, "two_modes"), findings=(FEW,))),
    "no interval": (AMBER, "1 of 2 medians", run_of(
        ok(make_case(iterations=3)), findings=(FEW,))),
    "every sample late": (AMBER, "1 case", make_results((
        replace(CLEAN, timing=replace(CLEAN.timing, n_late=CLEAN.statistics.n)),))),
    "noise not looked for": (AMBER, "noise", replace(run_of(), plan=make_plan(
        (make_case(),), config={"measure": {"noise_check_s": 0.0}}))),
    "any warning": (AMBER, "no p5 or p95", run_of(findings=(FEW,))),
}
"""Name -> the state, a figure of its sentence, the run; other rules that match come later."""


@pytest.mark.parametrize("name", RUNS)
def test_the_first_rule_that_matches_is_the_verdict(name: str) -> None:
    state, figure, results = RUNS[name]
    found = verdict_of(results)
    assert found.state == state and figure in found.sentence, found.sentence
    assert found.sentence.startswith("Do not quote: ") is (state == RED)
    assert "\n" not in found.sentence and len(found.sentence) < 160


@pytest.mark.parametrize(("batch", "n_samples", "n_checked", "text"), [
    (1, 24, 22, "all 20 timed samples checked"),
    (1, 24, 8, "results of 6 of 20 timed samples checked"),
    (20, 28, 4, "results of 0 of 20 timed samples and 4 single calls checked"),
    (1, 24, None, "results checked")])
def test_how_many_results_were_checked_is_told_of_timed_samples(
    batch: int, n_samples: int, n_checked: int | None, text: str,
) -> None:
    """Of two passes with two warm-ups each, of which the first is checked."""
    case = replace(make_case(), warmup=2, batch=batch)
    untimed = 4 + 2 * (batch > 1)
    of = flagged(ok(case), n_warmup=untimed, n_samples=n_samples, n_checked=n_checked,
                 stop_reasons=("", ""))
    assert checked_text(make_results((of,))) == text


def test_headline_and_headings_name_the_passes_that_there_are() -> None:
    (line,), table = count_lines(PASSES_LEFT), next(brief_tables_of(PASSES_LEFT))
    assert "incomplete" in line and "2 to 3 of 6 passes" in line
    assert "2 to 3 of 6 passes" in table.title


@pytest.mark.parametrize(("reason", "short"), [
    ("optimizer adamw8bit: a checkpoint would lack states; leave it out",
     "optimizer adamw8bit: a checkpoint would lack states"),
    ("load matrix: says where rows go, not which", "load matrix: says where rows go"),
    ("one rank is no pipeline: give more", "one rank is no pipeline"), ("nccl: no GPU, none",
                                                                       "nccl: no GPU")])
def test_a_short_reason_is_why_and_not_a_setting_alone(reason: str, short: str) -> None:
    assert short_reason(reason) == short


@pytest.mark.parametrize(("kind", "state", "figure"), [
    ("collective", RED, "other processes used 29 % to 49 % of each core"),
    ("mixed", RED, "3 faults"), ("training", AMBER, "3 of 18 cases"), ("primitive", AMBER, "12"),
])
def test_the_verdict_leads_report_and_summaries(kind: str, state: str, figure: str) -> None:
    with open_results(RESULTS[kind]) as file:
        results, document = file.results, document_of([Run("run", file.results, file)])
    found = verdict_of(results)
    assert found.state == state and figure in found.sentence
    first = next(summary_lines(results))
    assert first.topic == "verdict" and first.tone == {
        GREEN: "good", AMBER: "caution", RED: "bad"}[state]
    assert document.sections[0].items[0] == replace(first, topic=None)
    assert [section.key for section in document.sections][:3] == ["verdict", "best", "findings"]
    assert document.title.endswith(" on node0, 2026-11-22")
    begin = markdown_text(document).partition("## Verdict")[2].split("\n- ")[1]
    assert begin.startswith(f"**{first.text[:12]}")
    stored = summary_document(results, case_rows(results))["verdict"]
    assert stored == {"state": found.state, "sentence": found.sentence}


REPORTS = (
    "show {run}", "show {run} -q", "show {run} --json", "check {run} --limits {limits}",
    "check {run} --limits {limits} -q", "check {run} --limits {limits} --json",
    "check {other} --baseline {run}", "check {other} --baseline {run} --json",
    "check --learn {run} -o {new}.yaml", "compare {other} {run}", "compare {other} {run} --json",
    "compare {other} {run} -q", "advise {run}", "advise {run} -q",
    "advise {run} --json", "report {run} -o {new}.md", "report {run} {other} -o {new}.md",
    "history {folder}", "history {folder} --json")


@pytest.mark.parametrize("words", REPORTS)
def test_every_report_of_a_run_with_injected_faults_says_so(words: str, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("limits: [{metric: median_s, max: 1000}]")
    shutil.copytree(RESULTS["mixed"].parent, tmp_path / "runs" / "mixed")
    done = hpcbench(*shlex.split(words.format(
        run=RESULTS["mixed"], other=RESULTS["collective"], limits=tmp_path / "limits.yaml",
        new=tmp_path / "new", folder=tmp_path / "runs")))
    pages = "".join(page.read_text("utf-8") for page in tmp_path.glob("new.md"))
    said = done.stdout + done.stderr + pages
    assert re.search(r'faults? (was|were) injected|"faults": \[\n', said), said


def test_topics_without_data_share_one_line() -> None:
    results = make_results(tuple(map(ok, sweep(("all_reduce",), ("gloo",)))))
    document = document_of([Run("run", results, MemorySamples(results))])
    keys = [section.key for section in document.sections]
    (without,) = (one for one in document.sections if one.key == "no-data")
    assert len(without.items) == 1 and "answer-machine" not in keys and "answer-cost" not in keys


def test_a_topic_that_can_tell_nothing_of_its_data_is_not_without_data() -> None:
    from hpcbench.analysis import diagnose  # not in the core

    results = make_results((ok(make_case()),))
    run = Run("run", results, MemorySamples(results))
    unsure = Answer(CANNOT_TELL, "stragglers: cannot tell", ("their intervals are wide",))
    for answer, key in ((unsure, "answer-diagnose"), (replace(unsure, evidence=()), "no-data")):
        advice = [TopicResult(diagnose.TOPIC, diagnose.Diagnosis((), (), (answer,)))]
        shown = {one.key: one for one in _answers([run], advice)}
        text = diagnose.TOPIC.question
        assert ("answer-diagnose" in shown) == (key == "answer-diagnose")
        assert (text in str(shown["no-data"].items)) == (key == "no-data")
