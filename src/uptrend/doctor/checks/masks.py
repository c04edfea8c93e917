"""Tokens: the loss is on the model's own and on no others, attention sees all of them, and they are
those that were sampled.

n = rollout, r = row (a sequence of a rollout), t = token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
CRITICAL_UNTRAINED_SHARE = 0.5
CRITICAL_HIDDEN_SHARE = 0.05
# A learner that does not react to its prompt. Deviation in nats between tasks that the sampler must
# show for the learner's silence to mean anything; learner's deviation / sampler's up to which it is
# silent; tokens below which both are chance.
MIN_SAMPLER_DEVIATION = 0.1
MAX_LEARNER_RATIO = 0.02
MIN_SHARED_TOKENS = 20
# 2^64 / the golden ratio, odd: powers of it have no pattern, so that sums of them hash texts.
HASH_FACTOR = 0x9E3779B97F4A7C15
TOKEN_COLUMNS = (
    "turns",
    "roles",
    "versions",
    "sampler",
    "weights",
    "attended",
    "advantages",
    "learner",
)


@check(
    "mask.tool-trained", "mask.model-untrained", "mask.stop-untrained", columns=["roles", "weights"]
)
def loss_by_role(case: Case) -> list[Found | None]:
    """Report trained tokens that the model did not write, and tokens that it wrote without weight
    in the loss.
    """
    tables = case.tables_with("roles", "weights")
    trained: list[Flags] = []
    expected: list[Flags] = []
    untrained: list[Flags] = []
    stops: list[Flags] = []
    for table in tables:
        weight_t = table.read_tokens("weights")
        expected_t = _expected_t(case, table, weight_t)
        trained.append(np.nan_to_num(weight_t) != 0)
        expected.append(expected_t)
        untrained.append(expected_t & (weight_t == 0))
        stops.append(expected_t & _stop_t(table))
    return [
        _trained_foreign_tokens(tables, trained),
        _untrained_own_tokens(tables, expected, untrained, stops),
        _untrained_stop_tokens(tables, untrained, stops),
    ]


def _trained_foreign_tokens(tables: list[RolloutTable], trained: list[Flags]) -> Found | None:
    """Find tokens of prompts and tools in the loss."""
    evidence = []
    for foreign in _foreign_tokens(tables, trained):
        text = (
            f"{foreign.count:,} {foreign.role} tokens have weight in the loss,"
            f" {foreign.share:.0%} of them"
        )
        evidence.append(_seen_tokens(tables, foreign.flags, text, float(foreign.count)))
    if not evidence:
        return None
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, evidence, "mask.tool-trained")


def _untrained_own_tokens(
    tables: list[RolloutTable], expected: list[Flags], untrained: list[Flags], stops: list[Flags]
) -> Found | None:
    """Find tokens of the model, other than stop tokens, that are left out of the loss."""
    flags = [missing & ~stop for missing, stop in zip(untrained, stops, strict=True)]
    count = count_flags(flags)
    if not count:
        return None
    total = count_flags(expected)
    share = count / total
    text = (
        f"{count:,} of {total:,} generated tokens have no weight in the loss, and no record says"
        " why"
    )
    summary = f"{share:.1%} of what the model wrote is left out of the loss without a reason."
    severity = severity_by_share(share, critical=CRITICAL_UNTRAINED_SHARE)
    evidence = _seen_tokens(tables, flags, text, share)
    return Found(severity, PROOF, summary, [evidence], "mask.model-untrained")


def _untrained_stop_tokens(
    tables: list[RolloutTable], untrained: list[Flags], stops: list[Flags]
) -> Found | None:
    flags = [missing & stop for missing, stop in zip(untrained, stops, strict=True)]
    count = count_flags(flags)
    if not count:
        return None
    text = f"{count:,} of {count_flags(stops):,} sampled stop tokens have no weight in the loss"
    evidence = _seen_tokens(tables, flags, text, float(count))
    return Found(WARNING, PROOF, PAGE_SUMMARY, [evidence], "mask.stop-untrained")


def _expected_t(case: Case, table: RolloutTable, weight_t: Floats) -> Flags:
    """Flag tokens that should be trained: generated, in a rollout that was scored, kept and not
    left out by config.
    """
    # Tokens that the learner skips because their advantage is 0 keep their weight.
    is_ours = case.view.trainer == "uptrend"
    is_trained_n = table.kept_n.copy()
    # Our rewards are always recorded, where there were any.
    if table.has("reward") or is_ours:
        is_trained_n &= ~np.isnan(table.reward_n)
    if case.value("learning.mask_truncated", not is_ours):
        limits = [ending.value for ending in LIMIT_ENDINGS]
        is_trained_n &= ~np.isin(table.ended_n, limits)
    return np.asarray(table.model_t & ~np.isnan(weight_t) & is_trained_n[table.rollout_t])


def _stop_t(table: RolloutTable) -> Flags:
    """Flag the last token of each rollout that ended with a stop token, where the model wrote
    it.
    """
    last_row_n = np.append(table.first_row_n[1:], len(table.length_r)) - 1
    last_row_n = last_row_n[table.length_r[last_row_n] > 0]
    is_last_t = np.zeros(len(table.row_t), np.bool_)
    is_last_t[np.cumsum(table.length_r)[last_row_n] - 1] = True
    has_stopped_n = table.ended_n == Ending.STOP_TOKEN.value
    return np.asarray(is_last_t & table.model_t & has_stopped_n[table.rollout_t])


@check("mask.attention-blind", columns=["roles"])
def attention_blind(case: Case) -> Found | Lacking | None:
    """Report a learner that could not see its question, by recorded attention or by its
    log-probabilities.
    """
    tables = case.tables_with("roles", "attended")
    hidden = [table.read_tokens("attended") == 0 for table in tables]
    evidence = []
    largest_share = 0.0
    for foreign in _foreign_tokens(tables, hidden):
        text = (
            f"{foreign.share:.0%} of the {foreign.role} tokens ({foreign.count:,}) were hidden from"
            " attention"
        )
        evidence.append(_seen_tokens(tables, foreign.flags, text, foreign.share))
        largest_share = max(largest_share, foreign.share)
    if evidence:
        severity = severity_by_share(largest_share, critical=CRITICAL_HIDDEN_SHARE)
        return Found(severity, PROOF, PAGE_SUMMARY, evidence)

    indifference = _indifference_to_prompts(case)
    if indifference is not None:
        summary = (
            "The learner's log-probabilities do not depend on the question: it can't see its"
            " prompt."
        )
        return Found(CRITICAL, PROOF, summary, [indifference])
    if any(table.has("attended") for table in case.tables):
        return None
    return Lacking(
        "what attention could see was not recorded; preflight's prompt swap asks the model"
    )


@check("tokens.retokenized", columns=["ids", "roles", "sampler"])
def retokenized(case: Case) -> list[Found | None]:
    """Report trained tokens that were not sampled as they stand: decoded and tokenized anew, or put
    there.
    """
    tables = case.tables_with("ids", "roles", "sampler")
    return [_unsampled_tokens(tables), _ragged_columns(tables)]


def _unsampled_tokens(tables: list[RolloutTable]) -> Found | None:
    # A sampled token has the sampler's log-probability and the version of the weights that sampled
    # it.
    flags: list[Flags] = []
    for table in tables:
        is_unsampled_t = np.isnan(table.read_tokens("sampler"))
        versions = table.read_tokens_if_kept("versions")
        if versions is not None:  # a trainer that keeps no versions is believed
            is_unsampled_t |= np.isnan(versions)
        weights = table.read_tokens_if_kept("weights")
        if weights is not None:
            is_unsampled_t &= np.nan_to_num(weights) != 0
        flags.append(table.model_t & is_unsampled_t)
    count = count_flags(flags)
    if not count:
        return None
    total = count_flags(table.model_t for table in tables)
    text = (
        f"{count:,} of {total:,} generated tokens in the loss have no log-probability or version of"
        " a sampler"
    )
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [_seen_tokens(tables, flags, text, count / total)])


def _ragged_columns(tables: list[RolloutTable]) -> Found | None:
    """Find columns with another number of tokens than there are ids."""
    evidence = []
    for name in TOKEN_COLUMNS:
        if not any(table.has(name) for table in tables):
            continue
        flags = [table.ragged_n(name) for table in tables]
        count = count_flags(flags)
        if count:
            text = f"in {count:,} rollouts {name} has another number of tokens than ids"
            evidence.append(rollout_evidence(tables, flags, text, count))
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, evidence) if evidence else None


@dataclass(frozen=True)
class ForeignTokens:
    """Flagged tokens of one role other than the model's."""

    role: str
    count: int
    share: float
    """Share of the role's tokens."""
    flags: list[Flags]


def _foreign_tokens(tables: list[RolloutTable], flags: list[Flags]) -> Iterator[ForeignTokens]:
    """Yield the flagged tokens of prompts and of tools, where there are some."""
    for role in (Role.PROMPT, Role.TOOL):
        of_role = [table.role_t == role for table in tables]
        flagged = [own & flags_t for own, flags_t in zip(of_role, flags, strict=True)]
        count = count_flags(flagged)
        if count:
            share = count / count_flags(of_role)
            yield ForeignTokens(role.name.lower(), count, share, flagged)


def _seen_tokens(
    tables: list[RolloutTable], flags: list[Flags], text: str, value: float
) -> Evidence:
    """Return evidence that points at the first rollout with a flagged token."""
    flags_by_rollout = [
        table.flag(table.rollout_t[flags_t]) for table, flags_t in zip(tables, flags, strict=True)
    ]
    return rollout_evidence(tables, flags_by_rollout, text, value)


# Where two rollouts of different tasks begin with the same words, only the prompts can make a
# difference: a learner that can't see them gives the same words the same log-probabilities. No
# record of attention is needed.
def _indifference_to_prompts(case: Case) -> Evidence | None:
    """Return evidence where the sampler's log-probabilities depend on the question and the
    learner's do not.
    """
    tables = case.tables_with("roles", "ids", "learner", "sampler", "task")
    squares = np.zeros(2)
    tokens = 0
    for table in tables:
        shared = _shared_tokens(table)
        if len(shared.token):
            sampler_variance = shared.variance(table.read_tokens("sampler"))
            learner_variance = shared.variance(table.read_tokens("learner"))
            squares += np.array([sampler_variance, learner_variance]) * len(shared.token)
            tokens += len(shared.token)
    if tokens < MIN_SHARED_TOKENS:
        return None
    sampler, learner = np.sqrt(squares / tokens).tolist()
    if sampler < MIN_SAMPLER_DEVIATION or learner > MAX_LEARNER_RATIO * sampler:
        return None
    text = (
        f"over {tokens:,} tokens with which several tasks' rollouts begin alike, log-probabilities"
        f" deviate from task to task by {sampler:.2f} (sampler) and {learner:.1g} (learner)"
    )
    return Evidence(text, learner, step=tables[0].step, rollout=tables[0].name(0))


@dataclass(frozen=True)
class SharedTokens:
    """Tokens that the model wrote after equal words, in rollouts of one step."""

    token: Ints
    """Their numbers among all tokens."""
    beginning: Ints
    """Number that is equal for tokens with equal words up to and including them."""

    def where(self, selection: Flags | Ints) -> "SharedTokens":
        return SharedTokens(self.token[selection], self.beginning[selection])

    def variance(self, values_t: Floats) -> float:
        """Return the mean variance of values between tokens of one beginning."""
        values = values_t[self.token]
        counts = np.maximum(np.bincount(self.beginning), 1)
        means = group_sum(values, self.beginning) / counts
        return float(np.mean((values - means[self.beginning]) ** 2))


def _shared_tokens(table: RolloutTable) -> SharedTokens:
    """Return tokens that rollouts of several tasks begin with, one per task, with both
    log-probabilities.
    """
    if table.task_n is None:
        return SharedTokens(np.zeros(0, np.int64), np.zeros(0, np.int64))
    is_known_t = np.isfinite(table.read_tokens("sampler")) & np.isfinite(
        table.read_tokens("learner")
    )
    shared = _first_turns(table)
    shared = shared.where(is_known_t[shared.token])
    # One token of each beginning per task, or equal tokens of one task would hide how little is
    # compared.
    task = table.task_n[table.rollout_t[shared.token]]
    pairs = np.stack([shared.beginning, task])
    _, once = np.unique(pairs, axis=1, return_index=True)
    shared = shared.where(once)
    counts = np.bincount(shared.beginning, minlength=1)
    return shared.where(counts[shared.beginning] > 1)


def _first_turns(table: RolloutTable) -> SharedTokens:
    """Return the tokens of the model's first turns; of rows without turns, the first token."""
    ids = table.read_tokens("ids")
    turns = table.read_tokens_if_kept("turns")
    is_first_turn_t = table.model_t if turns is None else table.model_t & (turns == 0)
    token = np.flatnonzero(is_first_turn_t)
    if not len(token):
        return SharedTokens(token, token)
    row = table.row_t[token]
    # Index into `token` at which the row of each token begins.
    row_starts = np.unique(row, return_index=True)[1]
    row_start = row_starts[np.searchsorted(row[row_starts], row)]
    first_token = token[row_start]
    place = token - first_token

    # A beginning is hashed as a polynomial of its ids, modulo 2^64.
    powers = np.cumprod(np.full(int(place.max()) + 1, HASH_FACTOR, np.uint64))
    terms = (ids[token].astype(np.uint64) + np.uint64(1)) * powers[place]
    sums = np.cumsum(terms)
    hashes = sums - (sums - terms)[row_start]
    # The prompt's last token counts, for it predicts the first word.
    last_of_prompt = ids[np.maximum(first_token - 1, 0)].astype(np.uint64)
    hashes += last_of_prompt * np.uint64(HASH_FACTOR // 3)
    if turns is None:
        token = token[place == 0]
        hashes = hashes[place == 0]
    beginning = np.unique(hashes, return_inverse=True)[1].astype(np.int64)
    return SharedTokens(token, beginning)
