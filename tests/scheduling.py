"""What bash tests/run.sh runs at once: a file of tests per core, and in the end one by one.

pytest-xdist gives each of its processes one file at a time. Tests that start jobs or that measure
come last, when the other processes have ended, so that nothing of the suite disturbs them.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ALONE = ("tests/mpi/", "tests/install/test_local.py", "tests/unit/test_measure_loop.py",
         "tests/unit/test_noise.py")
"""How the ids of tests begin that need the machine for themselves."""
LAST = "alone, one after the other"


class AloneAtTheEnd(LoadFileScheduling):
    """Files in parallel; when they are done, everything in ALONE in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return LAST if nodeid.startswith(ALONE) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give the process a file; what comes last goes to the only one that is left."""
        if LAST in self.workqueue:
            self.workqueue.move_to_end(LAST)
        if next(iter(self.workqueue)) != LAST:
            super()._assign_work_unit(node)
            return
        others = [other for other in self.nodes if other is not node]
        if not all(other.shutting_down for other in others):
            node.shutdown()
        elif not any(self._pending_of(self.assigned_work[other]) for other in others):
            super()._assign_work_unit(node)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0,
    ) -> None:
        """Note that a test has ended: another process may have waited for that."""
        super().mark_test_complete(node, item_index, duration)
        for other in self.nodes:
            self._reschedule(other)
