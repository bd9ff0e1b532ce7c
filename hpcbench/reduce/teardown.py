"""Which ranks' workers crashed after their cases were on disk: worth knowing, and no failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hpcbench.reduce.results import Finding
from hpcbench.trace.source import TEARDOWN_NOTE, TraceSource


def teardown_findings(sources: Iterable[TraceSource]) -> Iterator[Finding]:
    """Yield a note for each way in which workers of a rank ended while leaving (HB152)."""
    crashes = Counter((source.header.rank, source.header.hostname, str(note.data.get("ended")))
                    for source in sources for note in source.notes if note.kind == TEARDOWN_NOTE)
    for (rank, hostname, ended), times in sorted(crashes.items()):
        again = f" ({times} times)" if times > 1 else ""
        yield Finding("HB152", "note", f"rank {rank} on {hostname}: {ended} when it left the "
                      f"process group{again}: its cases had been recorded before, and stand; see "
                      "that rank's libraries")
