"""Tools, shared state, skipped updates and processes."""

from dataclasses import replace

from tampered import findings, untold
from uptrend.doctor.checks import process_digests
from uptrend.records import RunView


def test_processes_with_different_weights(tiny: RunView) -> None:
    def digests(*values: str) -> RunView:
        events = [{"event": "digest", "step": 3, "process": i, "digest": v} for i, v in enumerate(values)]
        return replace(tiny, events=(*tiny.events, *events))

    found = findings(process_digests.check, digests("aa", "aa", "ab"))["run.ranks-diverge"]
    assert (found.evidence[0].value, found.evidence[0].step) == (2, 3)
    assert process_digests.check(digests("aa", "aa")) == []
    assert "one process" in untold(process_digests.check, digests("aa"))["run.ranks-diverge"]
    assert (
        "step, process and digest" in untold(process_digests.check, replace(tiny, trainer="trl"))["run.ranks-diverge"]
    )
