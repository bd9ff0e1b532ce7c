"""Rounds of a hunt as trials of the ranks that answer, and the facts that their results are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hpcbench.backends.availability import RankFacts, gpu_indices, visible_gpus
from hpcbench.config.section import Fault
from hpcbench.fleet.hunt.agent import RankTask
from hpcbench.fleet.hunt.crew import Crew, Finished
from hpcbench.fleet.hunt.facts import (
    ALL_RANKS,
    ALONE,
    DIED,
    HANG,
    MEASURED,
    MISSING,
    NO_ANSWER,
    UNTESTED,
    WRONG,
    Company,
    Fact,
    Node,
    Round,
)
from hpcbench.fleet.hunt.rendezvous import Message
from hpcbench.fleet.hunt.trials import HuntTest, TrialPlan, seconds_of, trial
from hpcbench.launch.verdict import RankOutcome, Verdict, judge
from hpcbench.statistics.stopping import LEAST_PASS_S
from hpcbench.units import grouped, plural, rank_list

_OUTCOMES: Mapping[str, str] = {
    "ok": MEASURED, "wrong": WRONG, "timeout": HANG, "failed": DIED, "skipped": UNTESTED,
    "not_run": UNTESTED}
"""Status of a case -> outcome of its fact."""
_MOST_BUDGET_S = 10.0
_A_RANK_S = 0.05
"""Added for each rank of a group to the time in which it has to form."""
_FACTS_S = 120.0
_COUNTS = 2
"""Devices are counted in so many rounds: drivers take seconds to start a GPU."""
_READ = ("clock", "ecc_uncorrected", "throttled")
"""Measures that are read of the machine while it works."""


@dataclass(frozen=True)
class Settings:
    """How trials are made: the folder for files, the seconds after which a call hangs.

    ``in_turn``: groups of a round measure one after another, as nodes share cores or links.
    ``faults``: by rank, made on purpose."""

    folder: str
    limit_s: float
    in_turn: bool = False
    faults: tuple[Fault, ...] = ()


@dataclass
class Execution:
    """Carries rounds out; alone, each rank of a node is measured by itself, all at the same time.
    ``missing``: why ranks that never signed in are missing."""

    crew: Crew
    nodes: Mapping[str, Node]
    settings: Settings
    missing: Mapping[int, str]
    machines: dict[int, Message] = field(default_factory=dict)
    """What each rank's machine has, as it said last."""
    has_gpus: bool = False
    """Whether this is a hunt on GPUs: any rank has one."""
    alone: int = 0
    """Rounds of ranks alone so far."""
    trials: dict[tuple[object, ...], TrialPlan] = field(default_factory=dict)
    """The trials planned so far, by what they are for: thousands of ranks have the same."""

    def execute(self, step: Round) -> list[Fact]:
        """Return the facts of a round: at least one of each group."""
        if step.stage == ALONE:
            return list(self._alone(step))
        return list(self._together(step))

    def _members(self, company: Company, name: str) -> tuple[int, ...]:
        ranks = self.nodes[name].ranks
        return ranks if company.ranks_per_node == ALL_RANKS else ranks[:company.ranks_per_node]

    def _silence(self, ranks: Sequence[int]) -> str:
        """Return which of these ranks do not answer, and why; "" if all do."""
        why = {rank: self.crew.lost.get(rank, self.missing.get(rank, "")) for rank in ranks
               if rank not in self.crew.living}
        return f"rank {rank_list(why)}: {next(iter(why.values()))}" if why else ""

    # ---- each rank by itself

    def _alone(self, step: Round) -> Iterator[Fact]:
        names = [company.nodes[0] for company in step.groups]
        ranks = [rank for name in names for rank in self.nodes[name].ranks]
        self.alone += 1
        fresh = self.crew.ask(ranks, "facts", _FACTS_S) if self.alone <= _COUNTS else {}
        self.machines |= fresh
        self.has_gpus = any(one.get("cuda", {}).get("names") for one in self.machines.values())
        gpus = self._gpus()
        for name in names:
            yield from self._answers(step, name)
            if fresh.keys() & {*self.nodes[name].ranks}:
                yield self._devices(step, name)
        trials: list[tuple[str, TrialPlan, dict[int, RankTask]]] = []
        for name in names:
            for rank in self.nodes[name].ranks:
                if rank in self.crew.living and (gpus[rank] is not None or not self.has_gpus):
                    trials.append((name, *self._tasks(step, (rank,), gpus, len(names))))
        by_node = grouped((one[0], one) for one in trials)
        batches = list(by_node.values()) if self.settings.in_turn else [trials]
        for batch in batches:
            finished = self.crew.run([tasks for *_, tasks in batch])
            for (name, plan, _), done in zip(batch, finished, strict=True):
                yield from self._facts_alone(step, name, plan, done)

    def _answers(self, step: Round, name: str) -> Iterator[Fact]:
        silence = self._silence(self.nodes[name].ranks)
        yield Fact(step.stage, step.number, name, "answers", None if silence else 1.0,
                   NO_ANSWER if silence else MEASURED, evidence=silence, at_s=self.crew.now_s)

    def _devices(self, step: Round, name: str) -> Fact:
        """Return how many devices the node has: GPUs, in a hunt without any cores."""
        told = [self.machines[rank] for rank in self.nodes[name].ranks if rank in self.machines]
        problem = next((one["problem"] for one in told if "problem" in one), "")
        machines = [one for one in told if "problem" not in one]
        if problem:
            return Fact(step.stage, step.number, name, "devices", None, MISSING, evidence=problem,
                        at_s=self.crew.now_s)
        opened = {gpu for one in machines for gpu, why in zip(visible_gpus(
            one["cuda"]["uuids"], one["cuda"]["visible"]), one["cuda"]["no_code"], strict=True)
            if not why}
        cores = {core for one in machines for core in one["cores"]}
        count, what = (len(opened), "GPU") if self.has_gpus else (len(cores), "core")
        lost = any(one["device_nodes"] and not one["cuda"]["names"] for one in machines)
        evidence = plural(count, what) + (f": {machines[0]['cuda']['reason']}" if lost else "")
        return Fact(step.stage, step.number, name, "devices", float(count),
                    MISSING if lost else MEASURED, evidence=evidence, at_s=self.crew.now_s)

    def _facts_alone(
        self, step: Round, name: str, plan: TrialPlan, done: Finished,
    ) -> Iterator[Fact]:
        (rank,) = done.ranks
        common = Fact(step.stage, step.number, name, "answers", rank=rank, at_s=done.at_s)
        if done.lost:
            yield replace(common, outcome=NO_ANSWER, evidence=f"rank {rank}: {done.lost[rank]}")
            return
        for test, verdict, value in _outcomes(plan, done, self.settings.limit_s):
            yield replace(common, measure=test.measure, value=value, size_bytes=test.size_bytes,
                          outcome=_OUTCOMES[verdict.status], evidence=verdict.reason)
        for measure, value in done.readings[rank].items():
            if measure in _READ:
                yield replace(common, measure=measure, value=float(value))

    # ---- several nodes

    def _together(self, step: Round) -> Iterator[Fact]:
        gpus, able = self._gpus(), []
        for company in step.groups:
            ranks = [rank for name in company.nodes for rank in self._members(company, name)]
            silent = [(name, why) for name in company.nodes
                      if (why := self._silence(self._members(company, name)))]
            for name, why in silent:
                yield _of_group(step, company, "answers", outcome=NO_ANSWER, node=name,
                                evidence=why, at_s=self.crew.now_s)
            without = [rank for rank in ranks if self.has_gpus and gpus[rank] is None]
            if silent or without:
                yield _of_group(
                    step, company, "all_reduce", outcome=UNTESTED, at_s=self.crew.now_s,
                    evidence=silent[0][1] if silent else f"rank {without[0]} has no GPU of its own")
            else:
                able.append((company, *self._tasks(step, ranks, gpus, len(step.groups))))
        batches = [[one] for one in able] if self.settings.in_turn else [able]
        for batch in batches:
            finished = self.crew.run([tasks for *_, tasks in batch])
            for (company, plan, _), done in zip(batch, finished, strict=True):
                yield from self._facts_together(step, company, plan, done)

    def _facts_together(
        self, step: Round, company: Company, plan: TrialPlan, done: Finished,
    ) -> Iterator[Fact]:
        for test, verdict, value in _outcomes(plan, done, self.settings.limit_s):
            outcome = _OUTCOMES[verdict.status]
            fact = _of_group(step, company, test.measure, outcome=outcome, value=value,
                             ranks=len(done.ranks), size_bytes=test.size_bytes,
                             evidence=verdict.reason, at_s=done.at_s)
            yield fact
            guilty = self._guilty(done, plan.cases[plan.tests.index(test)].case_id, verdict)
            if guilty:
                yield _of_group(step, company, test.measure, node=guilty, ranks=len(done.ranks),
                                outcome=NO_ANSWER if done.lost else outcome,
                                size_bytes=test.size_bytes, evidence=verdict.reason,
                                at_s=done.at_s)

    def _guilty(self, done: Finished, case_id: str, verdict: Verdict) -> str:
        """Return the node that the evidence itself shows to be at fault, "" if it shows none.

        A lost connection may be either end's fault; wrong results accuse who alone has them."""
        evidence = {item.rank: item for item in done.evidence(case_id)}
        if verdict.status == "wrong":
            nodes = {self._node_of[rank] for rank, item in evidence.items() if item.n_wrong > 0}
            return nodes.pop() if len(nodes) == 1 else ""
        blamed = evidence.get(verdict.blamed_rank)
        if blamed is None or blamed.outcome not in (
                RankOutcome.DIED, RankOutcome.EXCEPTION, RankOutcome.STOPPED, RankOutcome.STUCK):
            return ""
        return self._node_of[blamed.rank]

    @cached_property
    def _node_of(self) -> Mapping[int, str]:
        return {rank: name for name, node in self.nodes.items() for rank in node.ranks}

    # ---- tasks

    def _gpus(self) -> dict[int, int | None]:
        """Return each rank's GPU among those it sees."""
        able = {rank: one["cuda"] for rank, one in sorted(self.machines.items())
                if "problem" not in one}
        indices = gpu_indices([RankFacts(rank, self._node_of[rank], 0, {"cuda": cuda})
                               for rank, cuda in able.items()])
        found: dict[int, int | None] = dict.fromkeys(
            rank for node in self.nodes.values() for rank in node.ranks)
        return {**found, **dict(zip(able, indices, strict=True))}

    def _tasks(
        self, step: Round, ranks: Sequence[int], gpus: Mapping[int, int | None], groups: int,
    ) -> tuple[TrialPlan, dict[int, RankTask]]:
        """Return what a group of ranks does, and each one's part of it."""
        limit_s = self.settings.limit_s
        form_s = limit_s + _A_RANK_S * (len(ranks) - 1)
        on_gpu = all(gpus[rank] is not None for rank in ranks) and all(
            self.machines[rank]["has_nccl"] for rank in ranks)
        key = (step.stage, len(ranks), on_gpu)
        if key not in self.trials:
            self.trials[key] = trial(step.stage, len(ranks), on_gpu=on_gpu, limit_s=limit_s,
                                     folder=self.settings.folder)
        plan = self.trials[key]
        budget_s = step.budget_s / len(plan.cases) / (groups if self.settings.in_turn else 1)
        nodes = {rank: self._node_of[rank] for rank in ranks}
        local = grouped((node, rank) for rank, node in nodes.items())
        tasks = {rank: RankTask(
            0, index, len(ranks), len(local), local[nodes[rank]].index(rank),
            len(local[nodes[rank]]), gpus[rank], self._uuid(rank, gpus[rank]),
            bool(self.machines[rank].get("rocm")) if rank in self.machines else False, plan.cases,
            form_s, form_s if on_gpu else form_s - limit_s,
            min(max(budget_s, LEAST_PASS_S), _MOST_BUDGET_S),
            tuple(fault for fault in self.settings.faults if fault.rank == rank))
            for index, rank in enumerate(ranks)}
        return plan, tasks

    def _uuid(self, rank: int, gpu: int | None) -> str | None:
        uuid: str = self.machines[rank]["cuda"]["uuids"][gpu] if gpu is not None else ""
        return uuid or None


def _outcomes(
    plan: TrialPlan, done: Finished, limit_s: float,
) -> Iterator[tuple[HuntTest, Verdict, float | None]]:
    """Yield each test with its verdict, and the value where it was measured."""
    ended = ""
    for test, case in zip(plan.tests, plan.cases, strict=True):
        evidence = done.evidence(case.case_id)
        if ended or not evidence:
            yield test, Verdict("not_run", ended or "it was not begun", -1), None
            continue
        verdict = judge(evidence, limit_s, test.name)
        seconds = seconds_of(done.durations_ns(case.case_id))
        if verdict.status not in ("ok", "wrong"):
            ended = f"not tried after {test.name}: {verdict.reason}"
        measured = verdict.status == "ok" and seconds
        if verdict.status == "ok" and not seconds:
            verdict = Verdict("not_run", "no sample was taken", -1)
        yield test, verdict, test.value(seconds, len(done.ranks)) if measured and seconds else None


def _of_group(
    step: Round, company: Company, measure: str, *, node: str = "", **values: Any,
) -> Fact:
    """Return a fact of a group, or of one of its nodes in the company of the others."""
    return Fact(step.stage, step.number, node, measure,
                peers=tuple(name for name in company.nodes if name != node), **values)
