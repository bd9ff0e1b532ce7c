"""Where a rank is, and whether its network interface works: what its evidence says of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from hpcbench.launch.verdicts.verdict import Evidence, Outcome


@dataclass(frozen=True, slots=True)
class RankLocation:
    """This rank's host, "" where all ranks have the same, and the interface that it is to use."""

    host: str = ""
    interface: str | None = None

    def sign(self, evidence: Evidence) -> Evidence:
        """Return evidence that says where it is from; of a case gone wrong, if the link is down."""
        broken = self.host and evidence.outcome not in (Outcome.OK, Outcome.HALTED)
        return replace(evidence, host=self.host,
                       link=link_problem(self.interface) if broken and self.interface else "")


def link_problem(interface: str) -> str:
    """Return what is wrong with a network interface: gone, switched off, without a cable; or ""."""
    state = psutil.net_if_stats().get(interface)
    if state is None:
        return f"network interface {interface} is gone"
    return "" if state.isup else f"network interface {interface} is down"
