"""Tokens: the loss is on the model's own and on no other, attention sees all, and they are those
that were sampled.
"""

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    PAGE_SUMMARY,
    PROOF,
    WARNING,
    Found,
    Lacking,
    check,
    severity_by_share,
)
from uptrend.doctor.groups import count_flags, group_sum, rollout_evidence
from uptrend.records import Ending, Evidence, Role
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.records.table import Flags, Floats, Ints, RolloutTable

# Share of the model's tokens outside the loss, and of prompt or tool tokens hidden, from which
# little can be learned.
MOST_UNTRAINED = 0.5
MUCH_HIDDEN = 0.05
# Nats by which the sampler must move between tasks for the learner's silence to mean anything, and
# the share of that below which the learner does not react, over at least so many comparable tokens.
SAMPLER_MOVES = 0.1
LEARNER_MOVES = 0.02
ENOUGH = 20
# An odd number without a pattern, for hashing.
FACTOR = 0x9E3779B97F4A7C15
BY_TOKEN = ("turns", "roles", "versions", "sampler", "weights", "attended", "advantages", "learner")


@check(
    "mask.tool-trained", "mask.model-untrained", "mask.stop-untrained", columns=["roles", "weights"]
)
def loss_by_role(case: Case) -> list[Found]:
    """Report trained tokens that the model did not write, and tokens that it wrote without weight
    in the loss.
    """
    rows = case.tables_with("roles", "weights")
    found = []
    weights = [r.read_tokens("weights") for r in rows]
    evidence = [
        _seen(
            rows,
            flags,
            f"{count:,} {role} tokens have weight in the loss, {share:.0%} of them",
            float(count),
        )
        for role, count, share, flags in _foreign(rows, [np.nan_to_num(w) != 0 for w in weights])
    ]
    if evidence:
        found.append(Found(CRITICAL, PROOF, PAGE_SUMMARY, evidence, "mask.tool-trained"))
    expected = [_expected_t(case, r, w) for r, w in zip(rows, weights, strict=True)]
    stops = [_stop_t(r) & e for r, e in zip(rows, expected, strict=True)]
    missing = [e & (w == 0) for e, w in zip(expected, weights, strict=True)]
    lost = [m & ~s for m, s in zip(missing, stops, strict=True)]
    if count := count_flags(lost):
        share = count / count_flags(expected)
        total = count_flags(expected)
        text = (
            f"{count:,} of {total:,} generated tokens have no weight in the loss, and no record"
            " says why"
        )
        summary = f"{share:.1%} of what the model wrote is left out of the loss without a reason."
        severity = severity_by_share(share, critical=MOST_UNTRAINED)
        shown = _seen(rows, lost, text, share)
        found.append(Found(severity, PROOF, summary, [shown], "mask.model-untrained"))
    lost = [m & s for m, s in zip(missing, stops, strict=True)]
    if count := count_flags(lost):
        text = f"{count:,} of {count_flags(stops):,} sampled stop tokens have no weight in the loss"
        found.append(
            Found(
                WARNING,
                PROOF,
                PAGE_SUMMARY,
                [_seen(rows, lost, text, float(count))],
                "mask.stop-untrained",
            )
        )
    return found


@check("mask.attention-blind", columns=["roles"])
def attention_blind(case: Case) -> Found | Lacking | None:
    """Report a learner that could not see its question, by recorded attention or by its
    log-probabilities.
    """
    rows = case.tables_with("roles", "attended")
    evidence = [
        _seen(
            rows,
            flags,
            f"{share:.0%} of the {role} tokens ({count:,}) were hidden from attention",
            share,
        )
        for role, count, share, flags in _foreign(
            rows, [r.read_tokens("attended") == 0 for r in rows]
        )
    ]
    if evidence:
        severity = severity_by_share(max(e.value or 0.0 for e in evidence), critical=MUCH_HIDDEN)
        return Found(severity, PROOF, PAGE_SUMMARY, evidence)
    if deaf := _unmoved(case.tables_with("roles", "ids", "learner", "sampler", "task")):
        text = (
            "The learner's log-probabilities do not depend on the question: it can't see its"
            " prompt."
        )
        return Found(CRITICAL, PROOF, text, [deaf])
    if any(r.has("attended") for r in case.tables):
        return None
    return Lacking(
        "what attention could see was not recorded; preflight's prompt swap asks the model"
    )


@check("tokens.retokenized", columns=["ids", "roles", "sampler"])
def retokenized(case: Case) -> list[Found]:
    """Report trained tokens that were not sampled as they stand: decoded and tokenized anew, or put
    there.
    """
    # A sampled token has the sampler's log-probability and the version of the weights that sampled
    # it.
    rows = case.tables_with("ids", "roles", "sampler")
    found = []
    unsampled = []
    for r in rows:
        versions = r.tokens("versions")
        weights = r.tokens("weights")
        missing = np.isnan(r.read_tokens("sampler"))
        if versions is not None:  # a trainer that keeps no versions is believed
            missing |= np.isnan(versions)
        if weights is not None:
            missing &= np.nan_to_num(weights) != 0
        unsampled.append(r.model_t & missing)
    if count := count_flags(unsampled):
        total = count_flags(r.model_t for r in rows)
        text = (
            f"{count:,} of {total:,} generated tokens in the loss have no log-probability or"
            " version of a sampler"
        )
        found.append(
            Found(CRITICAL, PROOF, PAGE_SUMMARY, [_seen(rows, unsampled, text, count / total)])
        )
    ragged = {
        name: [r.ragged_n(name) for r in rows]
        for name in BY_TOKEN
        if any(r.has(name) for r in rows)
    }
    evidence = [
        rollout_evidence(
            rows,
            flags,
            f"in {count:,} rollouts {name} has another number of tokens than ids",
            count,
        )
        for name, flags in ragged.items()
        if (count := count_flags(flags))
    ]
    if evidence:
        found.append(Found(CRITICAL, PROOF, PAGE_SUMMARY, evidence))
    return found


def _seen(rows: list[RolloutTable], flags: list[Flags], text: str, value: float) -> Evidence:
    return rollout_evidence(
        rows, [r.flag(r.rollout_t[f]) for r, f in zip(rows, flags, strict=True)], text, value
    )


def _foreign(
    rows: list[RolloutTable], flags: list[Flags]
) -> list[tuple[str, int, float, list[Flags]]]:
    """Return the role, count, share and flags of flagged tokens of prompts and of tools, where
    there are some.
    """
    found = []
    for role in (Role.PROMPT, Role.TOOL):
        flagged = [(r.role_t == role) & f for r, f in zip(rows, flags, strict=True)]
        if count := count_flags(flagged):
            total = count_flags(r.role_t == role for r in rows)
            found.append((role.name.lower(), count, count / total, flagged))
    return found


def _expected_t(case: Case, r: RolloutTable, weight_t: Floats) -> Flags:
    """Flag tokens that should be trained: generated, in a rollout that was scored, kept and not
    left out by config.
    """
    # Tokens that the learner skips because their advantage is 0 keep their weight.
    taught_n = r.kept_n.copy()
    # ours are always recorded, where there were any
    if r.has("reward") or case.view.trainer == "uptrend":
        taught_n &= ~np.isnan(r.reward_n)
    if case.value("learning.mask_truncated", case.view.trainer != "uptrend"):
        taught_n &= ~np.isin(r.ended_n, [ending.value for ending in LIMIT_ENDINGS])
    return np.asarray(r.model_t & ~np.isnan(weight_t) & taught_n[r.rollout_t])


def _stop_t(r: RolloutTable) -> Flags:
    """Flag the last token of each rollout that ended with a stop token, where the model wrote
    it.
    """
    stop = np.zeros(len(r.row_t), np.bool_)
    last_r = np.append(r.first_row_n[1:], len(r.length_r)) - 1
    last_r = last_r[r.length_r[last_r] > 0]
    stop[np.cumsum(r.length_r)[last_r] - 1] = True
    return np.asarray(stop & r.model_t & (r.ended_n == Ending.STOP_TOKEN.value)[r.rollout_t])


def _unmoved(rows: list[RolloutTable]) -> Evidence | None:
    """Return evidence where the sampler's log-probabilities depend on the question and the
    learner's do not.
    """
    # Where two rollouts of different tasks begin with the same words, only the prompts can make a
    # difference: a learner that can't see them gives the same words the same log-probabilities. No
    # record of attention is needed.
    moves = [_movement(r) for r in rows]
    count = sum(n for _, _, n in moves)
    if count < ENOUGH:
        return None
    sampler, learner = (
        float(np.sqrt(sum(m[side] * m[2] for m in moves) / count)) for side in (0, 1)
    )
    if sampler < SAMPLER_MOVES or learner > LEARNER_MOVES * sampler:
        return None
    over = f"over {count:,} tokens with which several tasks' rollouts begin alike"
    text = (
        f"{over}, log-probabilities deviate from task to task by {sampler:.2f} (sampler) and"
        f" {learner:.1g} (learner)"
    )
    return Evidence(text, learner, step=rows[0].step, rollout=rows[0].name(0))


def _movement(r: RolloutTable) -> tuple[float, float, int]:
    """Return the variance between tasks of sampler and learner, after equal words; and over how
    many tokens.
    """
    if r.task_n is None:
        return 0.0, 0.0, 0
    sampler = r.read_tokens("sampler")
    learner = r.read_tokens("learner")
    place, kind = _said_alike(r)
    known = np.isfinite(sampler[place]) & np.isfinite(learner[place])
    place = place[known]
    kind = kind[known]
    # One token of each kind per task, or equal tokens of one task would hide how little is
    # compared.
    once = np.unique(np.stack([kind, r.task_n[r.rollout_t[place]]]), axis=1, return_index=True)[1]
    place = place[once]
    kind = kind[once]
    several = np.bincount(kind, minlength=1)[kind] > 1
    place = place[several]
    kind = kind[several]
    if not len(place):
        return 0.0, 0.0, 0
    counts = np.maximum(np.bincount(kind), 1)
    within = [
        values - (group_sum(values, kind) / counts)[kind]
        for values in (sampler[place], learner[place])
    ]
    return float(np.mean(within[0] ** 2)), float(np.mean(within[1] ** 2)), len(place)


def _said_alike(r: RolloutTable) -> tuple[Ints, Ints]:
    """Return the first turn's tokens, and a number that is equal where all that the model said so
    far is equal.
    """
    ids = r.read_tokens("ids")
    turns = r.tokens("turns")
    said = np.flatnonzero(r.model_t if turns is None else r.model_t & (turns == 0))
    if not len(said):
        return said, said
    row = r.row_t[said]
    begin = np.unique(row, return_index=True)[1]
    own = np.searchsorted(row[begin], row)
    first = said[begin][own]
    place = said - first
    # A polynomial of the ids so far, modulo 2^64; the prompt's last token counts, for it predicts
    # the first word.
    power = np.cumprod(np.full(int(place.max()) + 1, FACTOR, np.uint64))
    word = (ids[said].astype(np.uint64) + np.uint64(1)) * power[place]
    total = np.cumsum(word)
    so_far = total - (total - word)[begin][own]
    so_far = so_far + ids[np.maximum(first - 1, 0)].astype(np.uint64) * np.uint64(FACTOR // 3)
    if turns is None:
        said = said[place == 0]
        so_far = so_far[place == 0]
    return said, np.unique(so_far, return_inverse=True)[1].astype(np.int64)
