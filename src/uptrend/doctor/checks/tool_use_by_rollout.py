"""What happened with tools, from the messages.

tool.never-called      the prompt speaks of tools, there are turns to use them in, and no rollout calls one
tool.errors-swallowed  tools break down, and the rollouts are scored as if the model had been wrong
"""

import re

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import CannotTell, Confidence, Ending, Evidence, Finding, RunView, Severity

IDS = ("tool.never-called", "tool.errors-swallowed")
ENOUGH = 32
"""Rollouts, or tool results, below which a share is chance."""
SPOKEN_OF = r"\b(tools?|functions?)\b"
BROKEN = (
    r"timed[ -]?out|timeout|connection (refused|reset|aborted|error)|service unavailable|internal server error"
    r"|bad gateway|too many requests|rate limit|broken pipe|no space left|out of memory"
)
"""What a tool says that failed by itself; other errors are often the model's own."""
SHORT = 500
"""Characters of a message that can be an error; a document may speak of anything."""


def check(view: RunView) -> Outcome:
    """Count calls and their failures."""
    lacking = cannot_tell(view, IDS, "messages")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.has("messages")]
    results = sum(int((r.talk.role_m == "tool").sum()) for r in rows)
    calls = sum(len(r.talk.calls_m) - r.talk.calls_m.null_count for r in rows)
    if not results and not calls:
        never = _never(view, rows)
        return [never] if never else []
    if not any(r.has("reward") for r in rows):
        return [CannotTell("tool.errors-swallowed", "no rewards")]
    swallowed = _swallowed(view, rows)
    return [swallowed] if swallowed else []


def _never(view: RunView, rows: list[Rows]) -> Finding | None:
    """Tools that are spoken of and never called."""
    spoken = [_by_rollout(r, np.isin(r.talk.role_m, ("system", "user")) & r.talk.matches(SPOKEN_OF)) for r in rows]
    total = sum(map(len, rows))
    if (view.value("sampling.max_turns") or 1) < 2 or total < ENOUGH or sum(int(f.sum()) for f in spoken) < 0.9 * total:
        return None
    tried = sum(len(r.talk.problem_m) - r.talk.problem_m.null_count for r in rows)
    text = (
        f"0 of {total} rollouts call a tool, though their prompts speak of tools; {tried} tried and could not be read"
    )
    evidence = [Evidence(text, 0.0, "sampling/turns/mean", **point(rows, spoken))]
    summary = "The model never calls a tool, so what tools would show it never sees."
    return finding(view, "tool.never-called", Severity.WARNING, Confidence.MEDIUM, summary, evidence)


def _swallowed(view: RunView, rows: list[Rows]) -> Finding | None:
    """Results that are failures, in rollouts that were scored and did not do well."""
    failed = [(r.talk.role_m == "tool") & r.talk.matches(BROKEN) & r.talk.is_short(SHORT) for r in rows]
    crashed = [(r.ended_n == Ending.TOOL_ERROR.value) & np.isfinite(r.reward_n) for r in rows]
    count, results = sum(int(f.sum()) for f in failed), sum(int((r.talk.role_m == "tool").sum()) for r in rows)
    flags = [
        (_by_rollout(r, f) & np.isfinite(r.reward_n) & ~(r.by_rollout("correct") == 1)) | c
        for r, f, c in zip(rows, failed, crashed, strict=True)
    ]
    scored = sum(int(f.sum()) for f in flags)
    ended = sum(int(c.sum()) for c in crashed)
    if not ended and (results < ENOUGH or count < 0.1 * results or scored < 3):
        return None
    text = f"{count} of {results} tool results are breakdowns; {scored} rollouts with one were scored as wrong answers"
    evidence = [Evidence(text, count / max(results, 1), **point(rows, flags)), *_example(rows, failed)]
    summary = "Tools fail, and the model is scored for it."
    confidence = Confidence.HIGH if ended else Confidence.MEDIUM
    return finding(view, "tool.errors-swallowed", Severity.WARNING, confidence, summary, evidence)


def _example(rows: list[Rows], failed: list[Flags]) -> list[Evidence]:
    for r, flags in zip(rows, failed, strict=True):
        if flags.any():
            said = re.sub(r"\s+", " ", str(r.talk.content_m[int(flags.argmax())].as_py()))[:80]
            return [Evidence(f"such as {said!r}", step=r.step, rollout=r.name(int(r.talk.rollout_m[flags.argmax()])))]
    return []


def _by_rollout(r: Rows, flags_m: Flags) -> Flags:
    return np.asarray(np.bincount(r.talk.rollout_m[flags_m], minlength=len(r)) > 0)
