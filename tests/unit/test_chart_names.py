"""Names of charts: short, different, and never another chart's."""

from __future__ import annotations

import pytest

from hpcbench.report.charts import with_short_names
from hpcbench.views.chart import Chart

LONG = "training-transformer-2_layers__hidden_128__sequence_64__heads_4__changed-fp32-"


@pytest.mark.parametrize(("given", "wanted"), [
    (["all_reduce", "rank_iteration"], ["all_reduce", "rank_iteration"]),
    (["tp_mlp-m=1-n=2-fp32", "stalls"], ["tp_mlp", "stalls"]),
    (["tp_mlp-m=1-n=2", "tp_mlp-m=4-n=2"], ["tp_mlp-m=1", "tp_mlp-m=4"]),
    ([f"{LONG}gloo", f"{LONG}mpi", "stalls"], ["training-1", "training-2", "stalls"]),
    ([f"{LONG}gloo", f"{LONG}mpi", "training-1"], [f"{LONG}gloo", f"{LONG}mpi", "training-1"]),
])
def test_names(given: list[str], wanted: list[str]) -> None:
    found = with_short_names([Chart("", "", name, (), ()) for name in given])
    assert [chart.file_stem for chart in found] == wanted
