"""What probes said while the run went on: a watched trainer writes each answer down as an event.

Read from events `probed`, with the id, severity, confidence, summary and evidence of a finding. The last word on an
id stands. (Events `acquitted` say the opposite: a probe has excluded a cause; `diagnose` believes them.)
"""

from collections.abc import Mapping
from typing import Any

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.check import Outcome, finding
from uptrend.records import Confidence, Evidence, RunView, Severity


def check(view: RunView) -> Outcome:
    """The findings of probes, as they were told."""
    told = {e["id"]: e for e in view.events if e.get("event") == "probed" and e.get("id") in CATALOGUE}
    return [
        finding(
            view, id, Severity(e["severity"]), Confidence(e["confidence"]), e["summary"],
            [_evidence(item) for item in e.get("evidence", ())],
        )
        for id, e in told.items()
    ]  # fmt: skip


def _evidence(item: Mapping[str, Any]) -> Evidence:
    return Evidence(
        item["text"], item.get("value"), item.get("metric") or "", item.get("step"), item.get("rollout") or ""
    )
