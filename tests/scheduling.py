"""What bash tests/run.sh runs at once: a file of tests per core, and in the end one by one.

pytest-xdist gives each of its processes one file at a time. What measures, or waits for faults to
be found in time, comes last, when the other processes have ended: nothing of the suite disturbs it.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

JOBS = "tests/mpi/"
ALONE = (JOBS, "tests/unit/test_measure_loop.py", "tests/unit/test_noise.py")
"""How the ids of tests begin that need the machine for themselves."""
BESIDE_OTHERS = tuple(f"{JOBS}test_{name}.py" for name in (
    "benchmarks", "gpu_session", "mpi_results", "slurm", "training_parallel", "launch",
    "collectives_more", "memory", "functions", "measure_in_programs", "fingerprints",
    "outside_texts", "main_job", "interruption", "storage", "gpu_machines", "resume", "profiling",
    "suite", "faults", "check_folders", "own_disks", "plugin_jax", "plugin_trainers",
    "reported_commands", "training",
    "primitive_compiled", "start_faults", "primitives", "hardware",
    "gen_config_job", "protocol", "compat_programs", "primitive_overlap",
    "missing_ranks", "telemetry", "validate", "clock_sync", "mpi_backend",
    "training_balance", "training_communication",
    "torchrun",
    "conveniences", "strategy_plugin", "run_verbosity", "kubernetes",
    "library_prints", "ordinary_user", "secrets", "kind_plugin",
    "collective_plugin", "traffic_job", "torch_backends", "plugins",
    "training_compiled", "what_if_job", "replay_forms", "ucc", "hunt"))
"""Jobs of which only results count: no time, and no limit that a loaded machine comes near.

The longest files come first: the last ones should end at about one time.
"""
APART = tuple(f"{JOBS}test_{test}" for test in (
    "faults.py::test_each_fault_",
    "measure_in_programs.py::test_it_agrees_with_run",
    "profiling.py::test_every_case_", "protocol.py::test_a_slow_", "protocol.py::test_a_generous_",
    "traffic_job.py::test_with_its_own_gaps_",
    "clock_sync.py::test_a_"))
"""Tests of these files that need the machine for themselves: most judge times."""
COMPUTING = ("tests/install/", "tests/workloads/", "tests/unit/")
"""Where the others are, the folder with the longest files first, for the same reason."""
LAST = "alone, one after the other"


def _place(file: str) -> int:
    """Return the place of a file among those that start jobs; all others keep their order."""
    return BESIDE_OTHERS.index(file) if file in BESIDE_OTHERS else len(BESIDE_OTHERS)


class AloneAtTheEnd(LoadFileScheduling):
    """Files in parallel; when they are done, the rest in one process."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(APART) or (
                nodeid.startswith(ALONE) and not nodeid.startswith(BESIDE_OTHERS)):
            return LAST
        return super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the process a file; what comes last goes to the only one that is left."""
        if LAST in self.workqueue:
            self.workqueue.move_to_end(LAST)
        if next(iter(self.workqueue)) != LAST:
            self.workqueue.move_to_end(self._next_file(node), last=False)
            super()._assign_work_unit(node)
            return
        others = [other for other in self.nodes if other is not node]
        if not all(other.shutting_down for other in others):
            node.shutdown()
        elif not any(self._pending_of(self.assigned_work[other]) for other in others):
            super()._assign_work_unit(node)

    def _next_file(self, node: WorkerController) -> str:
        """Return a file that starts jobs if no other process has one, else one that computes."""
        busy = any(scope.startswith(JOBS) and not all(tests.values())
                   for other in self.nodes if other is not node
                   for scope, tests in self.assigned_work[other].items())
        files = sorted((scope for scope in self.workqueue if scope != LAST), key=_place)
        folders = (*COMPUTING, JOBS, "") if busy else (JOBS, *COMPUTING, "")
        return next(file for folder in folders for file in files if file.startswith(folder))

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0,
    ) -> None:
        """Note that a test has ended: another process may have waited for that."""
        super().mark_test_complete(node, item_index, duration)
        self._reschedule_all()

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that ended its process, if one did; the tests after it are run elsewhere.

        xdist's own method runs that test again, which ends the next process.
        """
        units = self.assigned_work.pop(node)
        unfinished = [test for unit in units.values() for test, done in unit.items() if not done]
        for scope, unit in units.items():
            if left := {test: False for test in unit if test in unfinished[1:]}:
                self.workqueue[scope] = left
        self._reschedule_all()
        return unfinished[0] if unfinished else None

    def _reschedule_all(self) -> None:
        for node in self.nodes:
            if node in self.registered_collections:  # else it replaces one that died, and collects
                self._reschedule(node)
