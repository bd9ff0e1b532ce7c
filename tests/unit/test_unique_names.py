"""Jobs in containers often have the same process id, and may share one results folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcbench.launch.run_folder import create_run_folder
from hpcbench.trace.container import whole_file
from synthetic import make_plan


def test_runs_that_begin_at_once_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    plan = make_plan(n_cases=1)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run_folder(plan, tmp_path), range(200)))
    assert len({folder.path for folder in folders}) == 200
    assert (tmp_path / "latest").resolve() in {folder.path for folder in folders}
    assert not list(tmp_path.glob(".latest-*"))


def test_a_run_of_one_rank_does_not_take_the_place_of_one_of_several(tmp_path: Path) -> None:
    _, alone = (create_run_folder(make_plan(n_cases=1, world_size=1), tmp_path) for _ in "ab")
    assert (tmp_path / "latest").resolve() == alone.path and not alone.notes
    several = create_run_folder(make_plan(n_cases=1, world_size=2), tmp_path)
    third = create_run_folder(make_plan(n_cases=1, world_size=1), tmp_path)
    assert (tmp_path / "latest").resolve() == several.path and len(third.notes) == 1


def test_two_that_write_one_file_at_once_leave_one_of_the_two_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with whole_file(path) as first:
        first.write_text("first")
        with whole_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]
