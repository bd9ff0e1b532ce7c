"""HB130 finds what readings of the machine say of cases."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.reduce.results import CaseResult, Usage
from hpcbench.reduce.run_checks import usage_findings
from results_factory import make_case, ok


def items(*usages: Usage | None) -> list[CaseResult]:
    return [replace(ok(make_case(index=number), 1e-3), usage=usage)
            for number, usage in enumerate(usages)]


def test_hb130_clocks_that_were_lowered() -> None:
    found = [*usage_findings(items(
        Usage(1, throttled=False), Usage(1, throttled=True, throttled_by=("power cap",)), None,
        Usage(1, throttled=True, throttled_by=("power cap", "hardware thermal"))))]
    assert [(one.code, one.scope) for one in found] == [("HB130", "note")] * 2
    assert found[0].message.startswith("clocks were lowered (power cap) in 2 cases, first all_red")
    assert "(hardware thermal) in 1 case," in found[1].message


def test_hb130_gpus_that_report_errors() -> None:
    xid, memory = usage_findings(items(Usage(1, xids=(79,)), Usage(1, ecc_errors=2.0),
                                       Usage(1, ecc_errors=0.0)))
    assert xid.message.startswith("a GPU has reported XID 79 in 1 case,")
    assert memory.message.startswith("a GPU had memory errors in 1 case,")


def test_hb130_a_sound_machine() -> None:
    assert not [*usage_findings(items(Usage(1, throttled=False, ecc_errors=0.0), None))]
