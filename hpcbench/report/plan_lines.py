"""The output of `list`, `plan` and a dry run: the catalogue, a plan's content, trials."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rich.text import Text

from hpcbench import __version__
from hpcbench.config.axes import (
    BACKENDS,
    DTYPE_BYTES,
    LOAD_NAMES,
    OPS,
    ORDERS,
    SPLITS,
    UNEVEN,
)
from hpcbench.config.presets import HARDWARE
from hpcbench.config.section import block_title, fault_texts
from hpcbench.errors import how_to_install
from hpcbench.import_path import PASSED_ENV
from hpcbench.kinds.registry import catalogue, kinds, offered_kinds
from hpcbench.operations.collectives import collectives
from hpcbench.plan.case import DEFAULT_MODE, Case, Plan, case_to_json
from hpcbench.plan.order import (
    LAUNCH_S,
    MOST_OF_TIMEOUT,
    assumed_rates,
    case_budget_s,
    pass_s,
    plan_estimate_s,
    starts_s,
    within_timeout_s,
)
from hpcbench.records import dataclass
from hpcbench.reduce.results import fold_text
from hpcbench.report.terminal import Sentence, listing_lines, print_document, print_lines
from hpcbench.texts import Verbosity
from hpcbench.units import format_seconds, grouped, plural, rough_time, round_bytes
from hpcbench.views.columns import any_plan
from hpcbench.views.presenter import CountedCall, presenter_of
from hpcbench.views.table import (
    MODES,
    USUAL_FOLDS,
    Line,
    Table,
    distinct,
    env_text,
    iterations_text,
    plugin_lines,
    repeats_text,
)

_WORD = re.compile(r"[\w.+-]+")


def print_plan(plan: Plan, verbosity: Verbosity = Verbosity.NORMAL) -> None:
    if verbosity.is_quiet:
        print_lines([plan_total(plan)])
        return
    print_lines(chain(plan_header(plan, full=verbosity.is_verbose),
                      case_tables(plan, full=verbosity.is_verbose),
                      skip_lines(plan, full=verbosity.is_verbose)), whole=verbosity.is_verbose)


def by_rule(skips: Iterable[tuple[str, Case]]) -> Mapping[str, list[Case]]:
    """Return the cases that were left out for each rule, from pairs of a reason and a case.

    Reasons that follow from one rule differ in numbers and in names of the case."""
    rules = grouped((_rule(reason, case), (reason, case)) for reason, case in skips)
    groups: dict[str, list[Case]] = {}
    for of_rule in rules.values():
        reasons = dict.fromkeys(reason for reason, _ in of_rule)
        groups.setdefault(_in_one(list(reasons)), []).extend(case for _, case in of_rule)
    return groups


def _in_one(reasons: Sequence[str]) -> str:
    """Return the first reason and the number of others, or with all dtypes if only these differ."""
    alike = {_WORD.sub(lambda word: "" if word[0] in DTYPE_BYTES else word[0], reason)
             for reason in reasons}
    dtypes = [word for reason in reasons for word in _WORD.findall(reason) if word in DTYPE_BYTES]
    if len(alike) == 1 and len(dtypes) == len(reasons):
        return reasons[0].replace(dtypes[0], " and ".join(dtypes))
    others = len(reasons) - 1
    more = f" (and {plural(others, 'more reason')} like it)" if others else ""
    return reasons[0] + more


def _rule(reason: str, case: Case) -> str:
    """Return a reason without its numbers and without the words of its case."""
    own = {part for word in case.workload.label(case.world_size).words
           for part in _WORD.findall(word)}
    return _WORD.sub(lambda found: "#" if found[0] in own or any(map(str.isdigit, found[0]))
                     else found[0], reason)


LISTED_CASES = 60


def plan_header(plan: Plan, *, full: bool = False) -> Iterator[Text]:
    """Yield how much is planned, how it is measured and how long it takes.

    ``full``: also the variables that workers inherit."""
    runs = [case for case in plan.cases if case.skip is None]
    yield Sentence(f"{plan.name}: {plural(len(plan.cases), 'case')} x {repeats_text(plan)} "
                   f"for {plural(plan.world_size, 'rank')}, plan {plan.plan_hash}", style="bold")
    for text in (_count_line(plan, runs), *_measure_lines(plan, runs), _estimate_line(plan, runs)):
        yield Sentence(text, 2)
    for note in _late_notes(plan, runs):
        yield Sentence(f"note: {note}", 2, "yellow")
    if faults := fault_texts(plan.config.get("fault", ())):
        yield Sentence(f"faults will be injected: {'; '.join(faults)}", 2, "bold red")
    yield from note_lines(plan)
    if full:
        patterns = (*PASSED_ENV, *plan.config.get("launch", {}).get("pass_env", ()))
        yield Sentence(f"workers inherit the variables {' '.join(patterns)}", style="dim")


def _is_late(case: Case) -> bool:
    return case.skip is None and case.estimate_s > case.timeout_s


def _late_text(case: Case) -> str:
    return f"takes about {format_seconds(case.estimate_s)}, timeout_s is {case.timeout_s:g}"


def _late_notes(plan: Plan, runs: Sequence[Case]) -> Iterator[str]:
    """Yield that cases may time out, and each key that gives them more time: that of their block
    where it has one, as it holds instead of launch.timeout_s."""
    if late := [case for case in runs if _is_late(case)]:
        worst = max(late, key=lambda case: case.estimate_s / case.timeout_s)
        own = {block_title(block.get("name"), block["kind"], at + 1): f"benchmarks.{at}.timeout_s"
               for at, block in enumerate(plan.config.get("benchmarks", ()))
               if block.get("timeout_s")}
        keys = grouped((own.get(case.block, "launch.timeout_s"), case.estimate_s) for case in late)
        yield (f"{plural(len(late), 'case')} may time out: {worst.label} {_late_text(worst)}; give "
               "time with " + " ".join(f"--set {key}={math.ceil(2 * max(estimates))}"
                                       for key, estimates in keys.items()))


def _count_line(plan: Plan, runs: Sequence[Case]) -> str:
    *first, last = sorted({need for case in runs for need in case.needs}) or [""]
    needs = f"{', '.join(first)} or {last}" if first else last
    counts = ((len(runs), "to run"), (sum(bool(case.needs) for case in runs),
                                      f"need {needs} (plan --probe checks it now)"),
              (len(plan.cases) - len(runs), "skipped"), (plan.duplicates, "duplicates dropped"))
    return "; ".join(f"{count} {text}" for count, text in counts
                     if count or text == "to run")


def note_lines(plan: Plan) -> Iterator[Text]:
    yield from (Sentence(f"note: {note}", 2, "yellow") for note in plan.config.get("notes", ()))


def plan_total(plan: Plan) -> Text:
    runs = [case for case in plan.cases if case.skip is None]
    return Text(f"{plan.name}: {plural(len(plan.cases), 'case')} x {repeats_text(plan)} for "
                f"{plural(plan.world_size, 'rank')}: {len(runs)} to run, "
                f"{len(plan.cases) - len(runs)} skipped, {_total_text(plan)}")


def _total_text(plan: Plan) -> str:
    return f"estimate {_estimated(plan_estimate_s(plan))}"


def _estimated(seconds: float) -> str:
    return rough_time(seconds) if seconds == 0 or seconds >= 120 else format_seconds(seconds)


def _measure_lines(plan: Plan, runs: Sequence[Case]) -> Iterator[str]:
    """Yield unusual modes, how many iterations a pass has and until when, and the order."""
    measure = plan.config.get("measure", {})
    modes = Counter(case.mode for case in runs)
    if modes.keys() - {DEFAULT_MODE}:
        yield "modes: " + ", ".join(f"{mode} ({count})" for mode, count in modes.items())
    if fixed := [case for case in runs if case.is_fixed]:
        yield f"iterations: {iterations_text(fixed)} a pass in {plural(len(fixed), 'case')}"
    if auto := [case for case in runs if not case.is_fixed]:
        until = (f" (until the median is known within {measure['precision'] * 100:g} %, at most "
                 f"{measure['budget_s']:g} s in all{_capped(plan, auto)})" if measure else "")
        yield "iterations: automatic" + f" in {plural(len(auto), 'case')}" * bool(fixed) + until
    for batch, warmup in dict.fromkeys((case.batch, case.warmup) for case in runs):
        if batch > 1:
            yield (f"mode pipelined: {batch} calls an iteration, "
                   f"{plural(batch * warmup, 'call')} of warm-up a pass")
    order = (f"shuffled in each pass (seed {measure['seed']})"
             if measure.get("order") == "shuffled" else "as planned")
    yield f"order: {order}; cases with the same environment and ranks stay together"


def _capped(plan: Plan, auto: Sequence[Case]) -> str:
    """Return the other limit of a pass, if one holds for each of these cases."""
    share_s = case_budget_s(
        plan.config["measure"]["budget_s"], len(auto), plan.passes, plan.launches)
    limits_s = {within_timeout_s(share_s, case.timeout_s) for case in auto}
    if max(limits_s) >= share_s:
        return ""
    return (f", but at most {max(limits_s):g} s a pass of a case, which is "
            f"{MOST_OF_TIMEOUT * 100:g} % of timeout_s")


def _estimate_line(plan: Plan, runs: Sequence[Case]) -> str:
    repeats = plan.passes * plan.launches
    depends = (pass_s(runs) - pass_s([case for case in runs if not case.needs])) * repeats
    memory = max((case.memory_bytes + case.host_bytes for case in runs), default=0)
    text = _total_text(plan)
    text += f" ({_estimated(depends)} of that only if all needs are met)" if depends else ""
    most = f"; memory at most {round_bytes(memory)} per rank" if memory else ""
    start = [f"{LAUNCH_S:g} s a launch to start workers"] * bool(starts_s(plan, runs))
    rates = "; ".join([*assumed_rates(runs, plan.config.get("hardware", {})), *start])
    return f"{text}{most}" + f"; assumed: {rates}" * bool(rates)


def case_tables(plan: Plan, *, full: bool = False) -> Iterator[Table]:
    """Yield every case, or, for long plans, one line for cases of a block that are alike; values
    that a block's lines share stand above them, unless the table is ``full``."""
    runs = [case for case in plan.cases if case.skip is None]
    blocks = grouped(((case.block, case.kind), case) for case in runs)
    hardware = plan.config.get("hardware", {})
    for (block, kind), cases in blocks.items():
        title, listed = f"block {block}", len(runs) <= LISTED_CASES
        table = presenter_of(kind).plan_table(
            title, cases, listed=listed, hardware=hardware) or any_plan(title, cases)
        yield table if full else table.shared_above()


def skip_lines(plan: Plan, *, full: bool = False) -> Iterator[Text]:
    skips = [(case.skip, case) for case in plan.cases if case.skip is not None]
    if skips:
        yield Text()
        yield Text(f"skipped: {len(skips)}", style="yellow")
    if not full:
        for rule, cases in by_rule(skips).items():
            yield rule_line(rule, cases)
        return
    for reason, cases in grouped(skips).items():
        yield Sentence(f"{len(cases):>6} x  {reason}", 10)
        yield from (Sentence(f"           {case.case_id}  {case.label}", 25, "dim")
                    for case in cases)


def rule_line(rule: str, cases: Sequence[Case]) -> Text:
    return Sentence(f"{len(cases):>6} x  {rule}  [{span_line(cases)}]", 10)


def span_line(cases: Sequence[Case]) -> str:
    """Return names, spans, backends, types, sizes, ranks and environment of some cases."""
    presenters = {kind: presenter_of(kind) for kind in in_order(case.kind for case in cases)}
    shown = [presenter.words([case.workload for case in cases if case.kind == kind])
             for kind, presenter in presenters.items()]
    ranks = {presenter.ranks_word for presenter in presenters.values()}
    ranks_word = ranks.pop() if len(ranks) == 1 else "ranks"
    parts = [
        distinct(case.workload.name for case in cases),
        *dict.fromkeys(part for words in shown for part in words.what),
        distinct(case.backend for case in cases),
        distinct(name for words in shown for name in words.types),
        *dict.fromkeys(part for words in shown for part in words.sizes),
        f"{ranks_word}={distinct(sorted({case.world_size for case in cases}))}",
        distinct(env_text(case) or None for case in cases),
    ]
    return " ".join(filter(None, parts))


def in_order(names: Iterable[str]) -> list[str]:
    """Return each kind once: those that are installed in their order, then others."""
    unique = list(dict.fromkeys(names))
    return [*(name for name in kinds() if name in unique),
            *(name for name in unique if name not in kinds())]


SCHEMA_VERSION = 1


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON values; ``estimate_s`` of the totals is of all repeats."""
    runs, bounds = [case for case in plan.cases if case.skip is None], _bounds(plan)
    return {
        "schema": "hpcbench.plan", "schema_version": SCHEMA_VERSION,
        "hpcbench_version": __version__, "name": plan.name, "plan_hash": plan.plan_hash,
        "world_size": plan.world_size, "passes": plan.passes, "launches": plan.launches,
        "totals": {
            "cases": len(plan.cases), "to_run": len(runs),
            "skipped": len(plan.cases) - len(runs), "duplicates": plan.duplicates,
            "with_needs": sum(bool(case.needs) for case in runs),
            "estimate_s": plan_estimate_s(plan),
            "largest_memory_bytes": max(
                (case.memory_bytes + case.host_bytes for case in runs), default=0),
        },
        "notes": [*plan.config.get("notes", ()), *_late_notes(plan, runs)],
        "cases": [{**_case(case), **bounds.get(case.case_id, {})} for case in plan.cases],
    }


def _bounds(plan: Plan) -> Mapping[str, Mapping[str, Any]]:
    """Return by case id the cells of columns ``least_*`` of the plan's tables: no rank beats them.
    """
    runs = [case for case in plan.cases if case.skip is None]
    bounds: dict[str, Mapping[str, Any]] = {}
    for kind, cases in grouped((case.kind, case) for case in runs).items():
        table = presenter_of(kind).plan_table(
            "", cases, listed=True, hardware=plan.config.get("hardware", {}))
        for row in (row for group in (table.groups if table else ()) for row in group.rows):
            cells = zip(table.columns if table else (), row.cells, strict=True)
            bounds[row.case_id or ""] = {column.name: cell for column, cell in cells
                                         if column.name.startswith("least_")}
    return bounds


def _case(case: Case) -> dict[str, Any]:
    """Return a case as plans store it, with its label, and that it may time out; its variables as a
    mapping."""
    late = f"may time out: {_late_text(case)}" if _is_late(case) else ""
    return {"label": case.label, **case_to_json(case), "env": dict(case.env),
            "needs": list(case.needs), "note": "; ".join(filter(None, (case.note, late)))}


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one case: ``accepted``, ``refused``, ``skipped`` or ``not tried``, and why.

    ``calls`` are the collectives that rank 0 called: name, how often, bytes of all of them as
    nccl-tests counts sizes."""

    case: Case
    outcome: str
    reason: str
    calls: tuple[CountedCall, ...] = ()


def print_trials(
    plan: Plan, trials: Iterable[Trial], verbosity: Verbosity = Verbosity.NORMAL,
) -> int:
    """Print each trial as it comes, or quietly the refused ones on standard error; then the counts.

    Return how many were refused."""
    counts: Counter[str] = Counter()
    if verbosity.is_quiet:
        print_lines(map(Text, _refused_lines(trials, counts)), sys.stderr)
        print_lines([Text(_totals(plan, counts))])
    else:
        print_lines(Sentence(line, 12) for line in _lines(plan, trials, counts))
    return counts["refused"]


def _refused_lines(trials: Iterable[Trial], counts: Counter[str]) -> Iterator[str]:
    for trial in trials:
        counts[trial.outcome] += 1
        if trial.outcome == "refused":
            yield _trial_line(trial)


def _lines(plan: Plan, trials: Iterable[Trial], counts: Counter[str]) -> Iterator[str]:
    yield (f"dry run of {plan.name} as rank 0 of {plan.world_size}: no communication, no "
           "measurement, no results")
    for trial in trials:
        counts[trial.outcome] += 1
        yield _trial_line(trial)
        if trial.outcome != "skipped":
            calls = trial.calls if trial.outcome == "accepted" else None
            for line in presenter_of(trial.case.kind).dry_run_lines(trial.case.workload, calls):
                yield f"{'':<10}{line}"
    yield _totals(plan, counts)


def _trial_line(trial: Trial) -> str:
    return f"{trial.outcome:<9} {trial.case.label}  {trial.reason}".rstrip()


def _totals(plan: Plan, counts: Counter[str]) -> str:
    totals = ", ".join(f"{counts[name]} {name}" for name in (
        "accepted", "refused", "skipped", "not tried") if counts[name])
    return f"dry run: {totals} (of {plural(len(plan.cases), 'case')})"


NO_TORCH = f"torch is not installed here: {how_to_install('run')}"


def print_listing(
    machine: Mapping[str, Any] | None, *, probe: bool, as_json: bool = False,
    verbosity: Verbosity = Verbosity.NORMAL,
) -> None:
    """Print the catalogue, quietly only names; ``machine`` as in `listing_document`."""
    if as_json:
        print_document(listing_document(machine, probe=probe))
    else:
        print_lines(map(Text, _names(machine)) if verbosity.is_quiet else _all_lines(machine))


def listing_document(machine: Mapping[str, Any] | None, *, probe: bool) -> dict[str, Any]:
    """Return the catalogue as plain JSON values; ``machine`` is None where it was not probed.

    ``available`` is None where no ``probe`` was requested."""
    no_torch = NO_TORCH if probe else "not probed"
    there = machine or {"backends": dict.fromkeys(BACKENDS, no_torch), "devices": {},
                        "device_names": [], "versions": {}, "lost": {}}
    unknown = not probe and machine is None
    document = {
        "schema": "hpcbench.list", "schema_version": SCHEMA_VERSION,
        "hpcbench_version": __version__, "kinds": list(kinds()),
        "dtypes": {name: {"size_bytes": size} for name, size in DTYPE_BYTES.items()},
        "ops": list(OPS), "splits": list(SPLITS), "orders": list(ORDERS),
        "modes": {name: {"meaning": meaning, "fold": USUAL_FOLDS[name]}
                  for name, meaning in MODES.items()},
        "hardware": {name: {"about": about} for name, about in _machines()},
        **{group: {name: {"available": None if unknown else reason is None, "reason": reason}
                   for name, reason in there[group].items()} for group in ("backends", "devices")},
        "device_names": list(there["device_names"]), "versions": dict(there["versions"]),
        "lost": dict(there["lost"]),
    }
    return document | {group: names for group, names in catalogue().items()
                       if group not in document}


def _names(machine: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the names of each group in a line; only available backends, if they are known."""
    here = [name for name in BACKENDS if machine is None or machine["backends"][name] is None]
    for group, names in (*catalogue().items(), ("dtypes", DTYPE_BYTES), ("modes", MODES),
                         ("hardware", HARDWARE), ("backends", here)):
        yield f"{group:<17}{', '.join(names)}"


def _all_lines(machine: Mapping[str, Any] | None) -> Iterator[Text]:
    """Yield the catalogue; ``machine`` is None where it was not probed, or has no torch."""
    dtypes = [f"{name} ({size} B)" for name, size in DTYPE_BYTES.items()]
    for title, names in (("collectives", collectives()), ("dtypes", dtypes), ("ops", OPS),
                         ("uneven parts", (*UNEVEN, *LOAD_NAMES)), ("orders of cases", ORDERS)):
        yield Sentence(f"{title:<17}{', '.join(names)}", 17)
    yield Text()
    for kind in kinds():
        presenter = presenter_of(kind)
        items = list(presenter.listing())
        if presenter.problem:
            items.append(Line(f"kind {kind}: {presenter.problem}", "warning"))
        yield from (line for item in items for line in listing_lines(item))
        yield from [Text()] if items else []
    own = list(plugin_lines(offered_kinds().offers, lambda spec: f"kind {spec.name}"))
    yield from (text for line in own for text in listing_lines(line))
    yield from [Text()] if own else []
    yield Text("timing modes", style="bold")
    for name, meaning in MODES.items():
        yield _line(name, f"{meaning}; its time: {fold_text(USUAL_FOLDS[name])}")
    yield Text()
    yield Text("hardware of gen-config", style="bold")
    for name, about in _machines():
        yield _line(name, about)
    yield Text()
    yield Text("backends", style="bold")
    for name in BACKENDS:
        yield _available(name, machine["backends"]) if machine else _line(name, "not probed")
    if machine:
        yield Text()
        yield Text("devices", style="bold")
        yield from (_available(name, machine["devices"]) for name in machine["devices"])
        yield Text()
        yield Text("versions", style="bold")
        yield from (_line(name, version) for name, version in machine["versions"].items())
        for line in machine["lost"].values():
            yield Text()
            yield Sentence(line, style="yellow")
    elif not importlib.util.find_spec("torch"):
        yield Sentence(f"  {NO_TORCH}", 4, "yellow")


def _line(name: str, text: str, style: str = "") -> Text:
    return Sentence(f"  {name:<15}{text}", 17, style)


def _available(name: str, reasons: Mapping[str, str | None]) -> Text:
    reason = reasons[name]
    return (_line(name, f"not available: {reason}", "yellow") if reason else
            _line(name, "available", "green"))


def _machines() -> Iterator[tuple[str, str]]:
    """Yield the machines of `gen-config`, each with what it is."""
    from hpcbench.config.presets.preset import load_preset  # imports how sweep files are read

    yield from ((name, load_preset(name).about) for name in HARDWARE)
