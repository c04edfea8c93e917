"""Whether all processes of a run hold the same weights (run.ranks-diverge).

Read from events that hold `digest` (of the parameters), `process` and `step`. No trainer writes them by itself, and
Uptrend trains in one process: they are a callback's, where several processes train.
"""

from collections import defaultdict

from uptrend.doctor.check import Outcome, finding
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity

ID = "run.ranks-diverge"
ALONE = "Uptrend trains in one process: there is no other to compare with"
UNTOLD = "no digests of the parameters by process (events with step, process and digest, which a callback can write)"


def check(view: RunView) -> Outcome:
    """Compare the digests of each step."""
    digests: dict[int, dict[int, str]] = defaultdict(dict)
    for event in view.events:
        if {"digest", "process", "step"} <= event.keys():
            digests[int(event["step"])][int(event["process"])] = str(event["digest"])
    several = {step: held for step, held in digests.items() if len(held) > 1}
    if not several:
        return [CannotTell(ID, ALONE if view.trainer == "uptrend" else UNTOLD)]
    apart = sorted(step for step, held in several.items() if len(set(held.values())) > 1)
    if not apart:
        return []
    held = several[apart[0]]
    text = f"at step {apart[0]} {len(held)} processes hold {len(set(held.values()))} different sets of weights"
    summary = "Processes of the same run have different weights."
    evidence = [Evidence(text, float(len(set(held.values()))), step=apart[0])]
    return [finding(view, ID, Severity.CRITICAL, Confidence.HIGH, summary, evidence)]
