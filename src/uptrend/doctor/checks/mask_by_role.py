"""Whether the loss is on the model's own tokens, all of them, and on nobody else's.

    mask.tool-trained     a token that the model did not write has weight in the loss
    mask.model-untrained  a token that it wrote has none, without a stated reason
    mask.stop-untrained   the same, of the stop token that it sampled and of no other

Stated reasons are: the rollout could not be scored, its group was replaced (`kept` is false), or it was cut and
`learning.mask_truncated` is set. What the learner skips because its advantage is 0 keeps its weight.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import Confidence, Ending, Evidence, Finding, Role, RunView, Severity

IDS = ("mask.tool-trained", "mask.model-untrained", "mask.stop-untrained")


def check(view: RunView) -> Outcome:
    """Count trained tokens by role."""
    lacking = cannot_tell(view, IDS, "roles", "weights")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.has("roles", "weights")]
    expected = [_expected_t(r, view) for r in rows]
    found = [_foreign(view, rows), _untrained(view, rows, expected), _stops(view, rows, expected)]
    return [f for f in found if f is not None]


def _foreign(view: RunView, rows: list[Rows]) -> Finding | None:
    evidence = []
    for role in (Role.PROMPT, Role.TOOL):
        foreign = [(r.role_t == role) & (np.nan_to_num(_weight_t(r)) != 0) for r in rows]
        if count := sum(int(flags.sum()) for flags in foreign):
            share = count / sum(int((r.role_t == role).sum()) for r in rows)
            text = f"{count:,} {role.name.lower()} tokens have weight in the loss, {share:.0%} of them"
            where = point(rows, [r.any_n(flags) for r, flags in zip(rows, foreign, strict=True)])
            evidence.append(Evidence(text, float(count), **where))
    if not evidence:
        return None
    summary = "The loss is also on tokens that the model did not write: it learns to say what its prompt or tools said."
    return finding(view, "mask.tool-trained", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _untrained(view: RunView, rows: list[Rows], expected: list[Flags]) -> Finding | None:
    """Tokens other than the stop that should be in the loss and are not."""
    missing = [flags & (_weight_t(r) == 0) & ~_stop_t(r) for r, flags in zip(rows, expected, strict=True)]
    count, total = (sum(int(flags.sum()) for flags in kind) for kind in (missing, expected))
    if not count:
        return None
    share = count / total
    text = f"{count:,} of {total:,} generated tokens have no weight in the loss, and no record says why"
    where = point(rows, [r.any_n(flags) for r, flags in zip(rows, missing, strict=True)])
    return finding(
        view,
        "mask.model-untrained",
        Severity.CRITICAL if share >= 0.5 else Severity.WARNING,
        Confidence.HIGH,
        f"{share:.1%} of what the model wrote is left out of the loss without a reason.",
        [Evidence(text, share, **where)],
    )


def _stops(view: RunView, rows: list[Rows], expected: list[Flags]) -> Finding | None:
    stops = [flags & _stop_t(r) for r, flags in zip(rows, expected, strict=True)]
    missing = [flags & (_weight_t(r) == 0) for r, flags in zip(rows, stops, strict=True)]
    count, total = (sum(int(flags.sum()) for flags in kind) for kind in (missing, stops))
    if not count:
        return None
    text = f"{count:,} of {total:,} sampled stop tokens have no weight in the loss"
    where = point(rows, [r.any_n(flags) for r, flags in zip(rows, missing, strict=True)])
    summary = "The stop token that the model sampled is outside the loss: it can't learn when to stop."
    return finding(
        view, "mask.stop-untrained", Severity.WARNING, Confidence.HIGH, summary, [Evidence(text, float(count), **where)]
    )


def _weight_t(r: Rows) -> np.ndarray:
    weight = r.tokens("weights")
    assert weight is not None
    return weight


def _expected_t(r: Rows, view: RunView) -> Flags:
    """What should be trained: generated, in a rollout that was scored, kept and not left out by config."""
    taught_n = r.kept_n.copy()
    if r.has("reward"):
        taught_n &= ~np.isnan(r.reward_n)
    if view.value("learning.mask_truncated", view.trainer != "uptrend"):
        taught_n &= ~r.cut_n
    return np.asarray(r.model_t & ~np.isnan(_weight_t(r)) & taught_n[r.rollout_t])


def _stop_t(r: Rows) -> Flags:
    """The last token of each rollout that ended with a stop token, where the model wrote it."""
    stop = np.zeros(len(r.row_t), np.bool_)
    last_r = (r.starts_r + r.length_r - 1)[r.length_r > 0]
    stop[last_r] = True
    last_row_n = np.zeros(len(r.length_r), np.bool_)
    last_row_n[np.append(r.heads_n[1:], len(r.length_r)) - 1] = True
    stopped_n = r.ended_n == Ending.STOP_TOKEN.value
    return np.asarray(stop & r.model_t & last_row_n[r.row_t] & stopped_n[r.rollout_t])
