"""Whether the learner saw the question: from the attention that was recorded, and from its log-probabilities.

The second needs no record of attention. Where two rollouts of different tasks begin with the same words, only the
prompts can make a difference between them: a learner that can't see them gives the same words the same
log-probabilities, while the sampler's move from task to task.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Floats, Ints, Rows, group_sum
from uptrend.records import CannotTell, Confidence, Evidence, Finding, Role, RunView, Severity

ID = "mask.attention-blind"
SAMPLER_MOVES = 0.1
"""Nats by which the sampler must move between tasks for the learner's silence to mean anything."""
LEARNER_MOVES = 0.02
"""The share of that below which the learner does not react."""
ENOUGH = 20
"""Tokens that must be comparable."""
FACTOR = 0x9E3779B97F4A7C15
"""An odd number without a pattern, for hashing."""


def check(view: RunView) -> Outcome:
    """Look at what attention could see, then at what the learner reacted to."""
    lacking = cannot_tell(view, [ID], "roles")
    if lacking:
        return [*lacking]
    rows = read_rows(view)
    seen = _hidden(view, [r for r in rows if r.has("roles", "attended")])
    if seen is not None:
        return [seen]
    deaf = _unmoved(view, [r for r in rows if r.has("roles", "ids", "learner", "sampler", "task")])
    if deaf is not None:
        return [deaf]
    if any(r.has("attended") for r in rows):
        return []
    return [CannotTell(ID, "what attention could see was not recorded; preflight's prompt swap asks the model")]


def _hidden(view: RunView, rows: list[Rows]) -> Finding | None:
    """Tokens of prompt or tools that attention could not see."""
    evidence, blind = [], 0.0
    for role in (Role.PROMPT, Role.TOOL):
        hidden = [(r.role_t == role) & (r.tokens("attended") == 0) for r in rows]
        count = sum(int(flags.sum()) for flags in hidden)
        if count:
            share = count / sum(int((r.role_t == role).sum()) for r in rows)
            blind = max(blind, share)
            text = f"{share:.0%} of the {role.name.lower()} tokens ({count:,}) were hidden from attention"
            where = point(rows, [r.any_n(flags) for r, flags in zip(rows, hidden, strict=True)])
            evidence.append(Evidence(text, share, **where))
    if not evidence:
        return None
    summary = "The learner could not see its question or its tool results: attention left them out."
    severity = Severity.CRITICAL if blind >= 0.05 else Severity.WARNING
    return finding(view, ID, severity, Confidence.HIGH, summary, evidence)


def _unmoved(view: RunView, rows: list[Rows]) -> Finding | None:
    """The same words after different questions: the sampler's log-probabilities move, the learner's do not."""
    moves = [_movement(r) for r in rows]
    count = sum(n for _, _, n in moves)
    if count < ENOUGH:
        return None
    sampler, learner = (float(np.sqrt(sum(m[side] * m[2] for m in moves) / count)) for side in (0, 1))
    if sampler < SAMPLER_MOVES or learner > LEARNER_MOVES * sampler:
        return None
    text = (
        f"over {count:,} tokens with which several tasks' rollouts begin alike, the sampler's log-probability deviates "
        f"by {sampler:.2f} from task to task and the learner's by {learner:.1g}"
    )
    where = point(rows, [np.ones(len(r), np.bool_) for r in rows])
    summary = "The learner's log-probabilities do not depend on the question: it can't see its prompt."
    return finding(view, ID, Severity.CRITICAL, Confidence.HIGH, summary, [Evidence(text, learner, **where)])


def _movement(r: Rows) -> tuple[float, float, int]:
    """Variance between tasks of sampler and learner, after equal words; and over how many tokens."""
    sampler, learner, task_n = r.tokens("sampler"), r.tokens("learner"), r.task_n
    if sampler is None or learner is None or task_n is None:
        return 0.0, 0.0, 0
    place, kind = _said_alike(r)
    known = np.isfinite(sampler[place]) & np.isfinite(learner[place])
    place, kind = place[known], kind[known]
    # One token of each kind a task, or equal tokens of one task would hide how little is compared.
    once = np.unique(np.stack([kind, task_n[r.rollout_t[place]]]), axis=1, return_index=True)[1]
    place, kind = place[once], kind[once]
    several = np.bincount(kind)[kind] > 1 if len(kind) else np.zeros(0, np.bool_)
    place, kind = place[several], kind[several]
    return _within(sampler[place], kind), _within(learner[place], kind), len(place)


def _said_alike(r: Rows) -> tuple[Ints, Ints]:
    """The first turn's tokens, and a number that two have in common where all that the model said so far is equal."""
    ids, turns = r.tokens("ids"), r.tokens("turns")
    assert ids is not None
    said = np.flatnonzero(r.model_t & (turns == 0)) if turns is not None else np.flatnonzero(r.model_t)
    begin, row = np.unique(r.row_t[said], return_index=True)[1], r.row_t[said]
    first = said[begin][np.searchsorted(row[begin], row)] if len(said) else said
    place = said - first
    # A polynomial of the ids so far, modulo 2^64; the prompt's last token counts, for it predicts the first word.
    power = np.cumprod(np.full(int(place.max(initial=0)) + 1, FACTOR, np.uint64))
    word = (ids[said].astype(np.uint64) + np.uint64(1)) * power[place]
    total = np.cumsum(word)
    so_far = total - (total - word)[begin][np.searchsorted(row[begin], row)] if len(said) else total
    so_far = so_far + ids[np.maximum(first - 1, 0)].astype(np.uint64) * np.uint64(FACTOR // 3)
    if turns is None:
        said, so_far = said[place == 0], so_far[place == 0]
    return said, np.unique(so_far, return_inverse=True)[1].astype(np.int64)


def _within(values: Floats, kind: Ints) -> float:
    """The variance around the mean of each kind."""
    if not len(values):
        return 0.0
    counts = np.maximum(np.bincount(kind), 1)
    return float(np.mean((values - (group_sum(values, kind) / counts)[kind]) ** 2))
