"""Whether the tokens that were trained are those that were sampled.

A sampled token has the sampler's log-probability and the version that sampled it. A token in the loss without
them was not sampled as it stands: it was decoded and tokenized anew, or put there by somebody.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Rows
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity

ID = "tokens.retokenized"
COLUMNS = ("turns", "roles", "versions", "sampler", "weights", "attended", "advantages", "learner")


def check(view: RunView) -> Outcome:
    """Compare what the learner trained with what the sampler says it sampled."""
    lacking = cannot_tell(view, [ID], "ids", "roles", "sampler")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.has("ids", "roles", "sampler")]
    found = [_unsampled(view, rows), _lengths(view, rows)]
    return [f for f in found if f is not None]


def _unsampled(view: RunView, rows: list[Rows]) -> Finding | None:
    missing = [_unsampled_t(r) for r in rows]
    count = sum(int(flags.sum()) for flags in missing)
    if not count:
        return None
    total = sum(int(r.model_t.sum()) for r in rows)
    text = f"{count:,} of {total:,} generated tokens that were trained have no log-probability or version of a sampler"
    where = point(rows, [r.any_n(flags) for r, flags in zip(rows, missing, strict=True)])
    summary = "Tokens were trained that were never sampled: the text was tokenized anew on its way to the learner."
    return finding(view, ID, Severity.CRITICAL, Confidence.HIGH, summary, [Evidence(text, count / total, **where)])


def _unsampled_t(r: Rows) -> Flags:
    """Trained tokens of the model that lack what sampling gives; a trainer that keeps no versions is believed."""
    sampler, versions, weights = r.tokens("sampler"), r.tokens("versions"), r.tokens("weights")
    assert sampler is not None
    missing = np.isnan(sampler)
    if versions is not None:
        missing |= np.isnan(versions)
    trained = np.ones(len(missing), np.bool_) if weights is None else np.nan_to_num(weights) != 0
    return np.asarray(r.model_t & trained & missing)


def _lengths(view: RunView, rows: list[Rows]) -> Finding | None:
    """Columns that have another number of tokens than the ids."""
    kept = [name for name in COLUMNS if any(r.has(name) for r in rows)]
    ragged = {name: [_by_rollout(r, r.ragged_r(name)) for r in rows] for name in kept}
    counts = {name: sum(int(flags.sum()) for flags in kind) for name, kind in ragged.items()}
    evidence = [
        Evidence(
            f"in {count:,} rollouts {name} has another number of tokens than ids", count, **point(rows, ragged[name])
        )
        for name, count in counts.items()
        if count
    ]
    if not evidence:
        return None
    summary = "The learner's tokens are not those of the sampler: their numbers differ."
    return finding(view, ID, Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _by_rollout(r: Rows, flags_r: Flags) -> Flags:
    return np.asarray(np.bincount(r.rollout_r[flags_r], minlength=len(r)) > 0)
