"""When a run was worked at, from its events."""

import math

from uptrend.records import Run


def seconds_of(run: Run) -> float | None:
    """How long a run was worked at: from each beginning to the last thing that it wrote."""
    total, began = 0.0, None
    last = None
    for event in run.events:
        if event["event"] in ("started", "resumed"):
            total += last - began if began is not None and last is not None else 0.0
            began = event["time"]
        last = event["time"]
    return None if began is None or last is None else round(total + last - began, 2)


def ended_at(run: Run) -> float:
    """When a run finished; the end of time for one that did not."""
    return next((float(e["time"]) for e in reversed(run.events) if e["event"] == "finished"), math.inf)
