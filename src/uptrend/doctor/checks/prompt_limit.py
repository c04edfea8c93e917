"""Whether prompts fit (context.prompt-truncated): those that were refused, and those that are exactly at the limit."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Rows
from uptrend.records import CannotTell, Confidence, Evidence, Finding, Role, RunView, Severity, boundary_of

ID = "context.prompt-truncated"


def check(view: RunView) -> Outcome:
    """Count prompts at the limit and beyond."""
    lacking = cannot_tell(view, [ID])
    if lacking:
        return [*lacking]
    rows = read_rows(view)
    if refused := _refused(view, rows):
        return [refused]
    limit = view.value("sampling.max_prompt")
    if view.trainer == "uptrend":  # its prompts are never cut
        return []
    if not limit or not any(r.has("roles") for r in rows):
        return [CannotTell(ID, "no limit of prompts is known, or no tokens were kept")]
    cut = _at_limit(view, [r for r in rows if r.has("roles")], int(limit))
    return [cut] if cut else []


def _refused(view: RunView, rows: list[Rows]) -> Finding | None:
    flags = [np.array([boundary_of(e) == "prompt" for e in r.texts("error")], np.bool_) for r in rows]
    count, total = sum(int(f.sum()) for f in flags), sum(map(len, rows))
    if not count:
        return None
    text = f"{count} of {total} rollouts never began, because their prompt does not fit"
    evidence = [Evidence(text, count / total, **point(rows, flags))]
    severity = (
        Severity.CRITICAL if count >= 0.5 * total else Severity.WARNING if count >= 0.01 * total else Severity.NOTE
    )
    return finding(view, ID, severity, Confidence.HIGH, "Prompts are longer than the run has room for.", evidence)


def _at_limit(view: RunView, rows: list[Rows], limit: int) -> Finding | None:
    flags = [np.bincount(r.rollout_t[r.role_t == Role.PROMPT], minlength=len(r)) >= limit for r in rows]
    count, total = sum(int(f.sum()) for f in flags), sum(map(len, rows))
    if count < 0.05 * total:
        return None
    text = f"{count} of {total} prompts have exactly the {limit} tokens that are allowed"
    evidence = [Evidence(text, count / total, **point(rows, flags))]
    summary = "Prompts are cut at their limit, and what the answer needs may be in the part that is gone."
    return finding(view, ID, Severity.WARNING, Confidence.MEDIUM, summary, evidence)
