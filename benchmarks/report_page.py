"""How large is the report of a large run, and how long does it take to write and to open?

    python benchmarks/report_page.py [--sizes 300x8 3000x1000] [--no-browser]
    python benchmarks/report_page.py --run results/latest [--repeat 5]

Results are made as `report_speed.py` makes them: cases x ranks. `hpcbench report` runs in a process
of its own, from its start. Headless Chromium then opens the file: first paint is the browser's own
figure, its memory that of all its processes. Goals: 300 x 8 in 3 MB, 5 s and 1 s; 3,000 x 1,000 in
15 MB, 30 s, 1 GiB to write and 1 GB to look at. Of a ``--run``, of the shipped job, each of so many
reports takes at most 2 s of CPU time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from report_speed import make_results, used_by

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage")


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that a report may take."""

    file_mb: float
    written_s: float
    written_mib: float
    paint_s: float | None
    browser_mb: float | None


GOALS = {(300, 8): Goal(3, 5, 1024, 1.0, None), (3000, 1000): Goal(15, 30, 1024, None, 1000)}
OF_SHIPPED_JOB_S = 2.0


def main() -> int:
    """Measure each size; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["300x8", "3000x1000"])
    parser.add_argument("--traced", type=int, default=8)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--run", type=Path, help="the folder of a run, instead of sizes")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    if given.run is not None:
        return int(not written_in_time(given.run, given.repeat))
    return int(not all([measured(size, given) for size in given.sizes]))


def measured(size: str, given: argparse.Namespace) -> bool:
    """Print what the report of such a run takes; return whether its goals, if any, are met."""
    cases, ranks = map(int, size.split("x"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_results(folder, argparse.Namespace(cases=cases, ranks=ranks, traced=given.traced))
        target = folder / "report.html"
        used = used_by(["-m", "hpcbench", "report", str(folder), "-o", str(target)])
        file_mb = target.stat().st_size / 1e6
        print(f"{cases} cases x {ranks} ranks: {file_mb:.2f} MB, written in {used.wall_s:.2f} s "
              f"(CPU {used.cpu_s:.2f} s), peak {used.mib:.0f} MiB")
        paint_s, browser_mb = (None, None) if given.no_browser else opened(target)
    goal = GOALS.get((cases, ranks))
    if goal is None:
        return True
    met = (file_mb <= goal.file_mb and used.wall_s <= goal.written_s
           and used.mib <= goal.written_mib
           and (paint_s is None or goal.paint_s is None or paint_s <= goal.paint_s)
           and (browser_mb is None or goal.browser_mb is None or browser_mb <= goal.browser_mb))
    print(f"  goals {goal}: {'met' if met else 'missed'}")
    return met


def written_in_time(run: Path, repeat: int) -> bool:
    """Print what each report of a run takes; return whether the slowest meets its goal."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "report.html"
        used = [used_by(["-m", "hpcbench", "report", str(run), "--force", "-o", str(target)])
                for _ in range(repeat)]
        file_mb = target.stat().st_size / 1e6
    met = max(one.cpu_s for one in used) <= OF_SHIPPED_JOB_S
    print(f"{file_mb:.2f} MB, CPU {', '.join(f'{one.cpu_s:.2f}' for one in used)} s, wall "
          f"{', '.join(f'{one.wall_s:.2f}' for one in used)} s, peak "
          f"{max(one.mib for one in used):.0f} MiB\n  goal {OF_SHIPPED_JOB_S:g} s of CPU time: "
          f"{'met' if met else 'missed'}")
    return met


def opened(page: Path) -> tuple[float | None, float | None]:
    """Return first paint (s) and the browser's memory (MB); None where there is no Chromium."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        print("  no Chromium here, so nothing is said of first paint and memory")
        return None, None
    from selenium import webdriver

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(driver)
        browser = webdriver.Chrome(options, service)
        try:
            began_s = time.perf_counter()
            browser.get(page.as_uri())
            loaded_s = time.perf_counter() - began_s
            paint_ms = browser.execute_script(
                'return performance.getEntriesByName("first-contentful-paint")[0]?.startTime')
            processes = psutil.Process(service.process.pid).children(recursive=True)
            memory_mb = sum(one.memory_full_info().pss for one in processes) / 1e6
        finally:
            browser.quit()
    paint_s = None if paint_ms is None else paint_ms / 1e3
    print(f"  first paint {paint_s} s, loaded in {loaded_s:.2f} s, browser {memory_mb:.0f} MB")
    return paint_s, memory_mb


if __name__ == "__main__":
    sys.exit(main())
