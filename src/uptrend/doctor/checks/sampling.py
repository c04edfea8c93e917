"""Completions: their entropy, lengths and endings, prompts that leave them no room, and groups that
are all alike.

Suffixes: n = rollout, g = group, t = token, all within one step.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from uptrend.doctor.case import FIRST_STEPS_READ, Case, CurveSummary
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    severity_by_share,
    warn_if,
)
from uptrend.doctor.checks import advantages, kl, optimizer, rewards
from uptrend.doctor.groups import (
    GroupedRollouts,
    count_flags,
    group_rollouts,
    rollout_evidence,
    subset_evidence,
)
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Ending, Evidence, Role, TrendKind, boundary_of
from uptrend.records.table import Flags, Floats, Ints, RolloutTable
from uptrend.stats.intervals import all_right
from uptrend.stats.trend import rank_correlation, residuals

ENTROPY_METRIC = "learner/entropy/mean"
LENGTH_METRIC = "sampling/length/mean"
CUT_METRIC = "sampling/ended/length/share"
ENTROPY_COLLAPSE = "sampling.entropy-collapse"
ENTROPY_EXPLOSION = "sampling.entropy-explosion"
COMPLETION_TRUNCATED = "context.completion-truncated"
NO_STOP = "sampling.no-stop"
ABORTED = "sync.aborted-rollouts"
TEMPERATURE_LOW = "sampling.temperature-low"
FEW_GENERATIONS = "sampling.few-generations"

# Points of a curve below which it is not judged.
MIN_CURVE_POINTS = 10
# Entropy / entropy at its start below which it has collapsed, while the reward does not rise, and
# is worth a note.
COLLAPSED_ENTROPY_SHARE = 0.1
NOTED_ENTROPY_SHARE = 0.5
# Nats below which there is nothing left to explore with, where the start is that low already; the
# share of its start that it has then fallen to at least.
SPENT_ENTROPY = 0.05
MAX_SPENT_SHARE = 0.7
# Temperature above any in use, and nats of entropy from which a text is mostly noise.
HOT_TEMPERATURE = 1.5
NOISE_ENTROPY = 1.0
# Entropy at the end / at first, and nats more, from which a text turns towards noise.
MIN_ENTROPY_GROWTH = 3.0
MIN_ENTROPY_RISE = 0.5
# Height in its range from which a reward has little left to learn, so that certainty is what was
# asked for.
NEAR_TOP = 0.9


# Rollouts without an end, and the share of them, below which a user's own stop rules explain them.
MIN_ABORTED_ROLLOUTS = 4
MIN_ABORTED_SHARE = 0.02
# Tokens below its limit that a rollout must have been stopped at: an end may be cut off with what a
# trainer reserves.
MIN_TOKENS_LEFT = 2
# Settings of TRL by which a rollout may end without an end token.
OTHER_ENDS = ("stop", "stop_strings", "stop_token_ids", "structured_outputs")


@check(ABORTED, columns=["roles", "ids", "ended"])
def aborted(case: Case) -> Answer:
    """Report rollouts that are trained as finished although they neither reached an end nor a
    limit.
    """
    model = case.view.info.get("model")
    ends = set(model.get("special") or ()) if isinstance(model, Mapping) else set()
    max_tokens = case.value("sampling.max_tokens")
    if not ends or not isinstance(max_tokens, int | float):
        return Lacking("the model's end tokens, or the limit of tokens, are not recorded")
    if _ends_otherwise(case):
        return Lacking("rollouts may end at texts or a context limit, which is not recorded")
    flags = []
    lengths: set[int] = set()
    tables = case.tables_with("roles", "ids", "ended")
    for table in tables:
        is_aborted_n = _aborted_n(table, ends, max_tokens)
        flags.append(is_aborted_n)
        lengths |= set(table.model_length_n[is_aborted_n].tolist())
    count = count_flags(flags)
    share = count / max(1, sum(map(len, tables)))
    # One length for all is a limit that no setting names.
    if count < MIN_ABORTED_ROLLOUTS or share < MIN_ABORTED_SHARE or len(lengths) == 1:
        return None
    text = (
        f"{count:,} trained rollouts end after {min(lengths)} to {max(lengths)} of"
        f" {max_tokens:g} tokens without an end token"
    )
    evidence = rollout_evidence(tables, flags, text, share)
    return Found(warn_if(share >= MIN_ABORTED_SHARE), SIGNAL, PAGE_SUMMARY, [evidence])


def _ends_otherwise(case: Case) -> bool:
    """Return True where a setting lets rollouts end without an end token below their limit."""
    raw = case.view.info.get("raw")
    settings = raw if isinstance(raw, Mapping) else {}
    generation = settings.get("generation_kwargs")
    named = generation if isinstance(generation, Mapping) else {}
    sampler = case.view.info.get("sampler")
    engine = sampler.get("engine") if isinstance(sampler, Mapping) else ""
    return (
        engine == "rollout_func"
        or any(name in named for name in OTHER_ENDS)
        or bool(settings.get("vllm_structured_outputs_regex"))
        or bool(settings.get("vllm_max_model_length"))
    )


def _aborted_n(table: RolloutTable, ends: set[int], max_tokens: float) -> Flags:
    """Flag trained rollouts of one turn whose last token is no end and that had tokens left."""
    ids = table.read_tokens("ids")
    last_t = np.zeros(len(table), np.int64)
    last_t[table.rollout_t] = np.arange(len(ids))  # the last assignment counts
    has_end_n = np.isin(ids[last_t] if len(ids) else np.zeros(len(table)), list(ends))
    has_left_n = table.model_length_n <= max_tokens - MIN_TOKENS_LEFT
    is_one_turn_n = np.array([(count or 0) <= 1 for count in table.turn_count_n], np.bool_)
    says_finished_n = np.isin(table.ended_n, [Ending.STOP_TOKEN.value, Ending.LENGTH.value])
    flags = has_left_n & is_one_turn_n & says_finished_n & ~has_end_n
    weight_t = table.read_tokens_if_kept("weights")
    if weight_t is not None:
        flags &= table.flag(table.rollout_t[np.nan_to_num(weight_t) != 0])
    return np.asarray(flags & table.kept_n & (table.model_length_n > 0))


@check(ENTROPY_COLLAPSE, ENTROPY_EXPLOSION, needs=[ENTROPY_METRIC])
def entropy(case: Case) -> Found | None:
    """Compare entropy at the end with its start, and with what the reward did."""
    curve = case.summary(ENTROPY_METRIC)
    if curve is None or len(curve.values) < MIN_CURVE_POINTS or curve.first <= 0:
        return None
    begin = float(curve.values[:3].mean())
    noise = _noise_from_start(case, begin)
    if noise:
        return noise
    return _entropy_fell(case, curve, begin) or _entropy_grew(case, curve, begin)


def _noise_from_start(case: Case, begin: float) -> Found | None:
    """Find a temperature at which the model writes noise."""
    temperature = case.value("sampling.temperature")
    if not isinstance(temperature, int | float) or temperature <= HOT_TEMPERATURE:
        return None
    if begin <= NOISE_ENTROPY or case.is_learning:
        return None
    summary = (
        f"At temperature {temperature:g} the model speaks at random: {begin:.2g} nats of"
        " entropy from the start."
    )
    evidence = case.evidence(ENTROPY_METRIC, f"Entropy {begin:.3g} at first.")
    return Found(WARNING, SIGNAL, summary, [evidence], ENTROPY_EXPLOSION)


def _entropy_grew(case: Case, curve: CurveSummary, begin: float) -> Found | None:
    """Find an entropy that grows towards noise; worst where the reward falls with it."""
    if curve.last < MIN_ENTROPY_GROWTH * begin or curve.last - begin < MIN_ENTROPY_RISE:
        return None
    severity = WARNING
    basis = SIGNAL
    if case.trend.kind is TrendKind.FALLING:
        severity = CRITICAL
        basis = PROOF
    elif case.trend.kind is TrendKind.LEARNING:
        severity = NOTE
    summary = (
        f"Entropy grew from {begin:.3g} to {curve.last:.3g} nats: the text has turned towards"
        " noise."
    )
    evidence = case.evidence(ENTROPY_METRIC, f"Entropy × {curve.last / begin:.1f}.")
    return Found(severity, basis, summary, [evidence], ENTROPY_EXPLOSION)


def _entropy_fell(case: Case, curve: CurveSummary, begin: float) -> Found | None:
    """Find an entropy that fell; a fault only where the reward stands still below its top."""
    share = curve.last / max(begin, curve.first)
    is_low = curve.last < SPENT_ENTROPY and curve.first < SPENT_ENTROPY
    is_spent = case.is_stuck and is_low and share < MAX_SPENT_SHARE
    if share >= NOTED_ENTROPY_SHARE and not is_spent:
        return None

    reward = case.summary(REWARD_METRIC)
    # Means alone do not show how high a reward goes.
    knows_top = case.trend.kind is not TrendKind.FALLING and case.has("reward/max")
    is_at_top = reward is not None and knows_top and case.scaled_reward(reward.last) >= NEAR_TOP
    is_paid = case.entropy_weight < 0  # a bonus of the wrong sign asks for it
    is_collapsed = share < COLLAPSED_ENTROPY_SHARE
    is_fault = case.is_stuck and (is_paid or (not is_at_top and (is_collapsed or is_spent)))

    meanwhile = "over the run"
    basis = SUSPICION
    if is_fault:
        meanwhile = "while the reward stood still: there is nothing left to explore with"
        basis = PROOF if is_collapsed or is_paid else SIGNAL
    elif is_at_top or case.is_learning:
        when = "with the reward near its top" if is_at_top else "while the reward rose"
        meanwhile = f"{when}: a policy that is right grows sure, and that is normal"
    summary = f"Entropy fell from {begin:.3g} to {curve.last:.3g} nats {meanwhile}."
    evidence = case.evidence(ENTROPY_METRIC, f"Entropy at {share:.1%} of its start.")
    return Found(warn_if(is_fault), basis, summary, [evidence], ENTROPY_COLLAPSE)


# Length / length at first, up to which its shortest quarter is worth a note, and below which the
# end is a fault where the reward falls too.
NOTED_LENGTH = 0.55
COLLAPSED_LENGTH = 0.25
# Tokens at first below which completions are too short to shrink.
MIN_INITIAL_TOKENS = 8


@check("sampling.length-collapse", by_source=True)
def length_collapse(case: Case) -> Found | None:
    """Report completions that shrink; a fault where the reward falls with them."""
    length = case.summary(LENGTH_METRIC)
    if length is None or len(length.values) < MIN_CURVE_POINTS:
        return None
    if length.initial < MIN_INITIAL_TOKENS:
        return None
    least = min(float(np.median(quarter)) for quarter in np.array_split(length.values, 4))
    if least > NOTED_LENGTH * length.initial:
        return None
    is_short = length.last < COLLAPSED_LENGTH * length.initial
    is_fault = case.trend.kind is TrendKind.FALLING and is_short
    severity, basis = (WARNING, SIGNAL) if is_fault else (NOTE, SUSPICION)
    with_reward = " with the reward" if is_fault else ""
    summary = f"Completions shrank from {length.initial:.0f} to {least:.0f} tokens{with_reward}."
    text = (
        f"In its shortest quarter {least / length.initial:.0%} of its start; {length.last:.0f}"
        " tokens at the end."
    )
    return Found(severity, basis, summary, [case.evidence(LENGTH_METRIC, text)])


# Share of rollouts cut by length, in some quarter of the run, that is worth a note, and that is
# nearly all of them.
NOTED_CUT_SHARE = 0.25
NEARLY_ALL_CUT_SHARE = 0.9
# Points of a curve from which its quarters are compared.
MIN_QUARTERED_POINTS = 5
# The same among single rollouts, and the number of them that it takes.
NOTED_CUT_ROLLOUTS_SHARE = 0.15
ALL_CUT_ROLLOUTS_SHARE = 0.95
MIN_ROLLOUTS = 32
# Groups with both cut and uncut rollouts that it takes to compare them.
MIN_MIXED_GROUPS = 8
# Shares that earn the least, in groups with both kinds: of those cut at least, of others at most;
# and the standard errors by which they must differ.
MIN_CUT_FAILURES = 0.9
MAX_OTHER_FAILURES = 0.6
MIN_FAILURE_ERRORS = 4
# Margin by which right completions outnumber those that end by themselves, where cut ones are paid.
MIN_PAID_MARGIN = 0.1
# Shares of rollouts that go on after an end of turn, and that are cut by length, from which an end
# of turn stops nothing.
MIN_UNHEEDED_SHARE = 0.5
MIN_UNHEEDED_CUT_SHARE = 0.9
# Rounding of rewards that are equal.
REWARD_TOLERANCE = 1e-6
# Tokens in which hardly any answer fits; in which a terse one does; and in which a solution in
# words hardly ends: in public runs that were all cut at 80 and at 256 tokens, the limit was at
# fault; in one at 512, a template without an end.
BRIEF_TOKENS = 4
TERSE_TOKENS = 64
WORKED_TOKENS = 256
# Nats per token below which completions of one prompt are mostly one text.
SURE_ENTROPY = 0.1


@check(COMPLETION_TRUNCATED, NO_STOP, by_source=True)
def endings(case: Case) -> Answer:
    """Judge completions that the length limit cut: some of them, or nearly all, which never stop by
    themselves.

    A terse task whose answer comes first loses nothing when it is cut.
    """
    return [
        _endings_by_curve(case),
        _suspected_endings(case),
        _endings_by_rollout(case),
        _unheeded_ends(case),
    ]


def _unheeded_ends(case: Case) -> Found | None:
    """Find special tokens after which the model had to go on: it ended its turn, and was not
    stopped.
    """
    special_ids: list[int] = (case.view.info.get("model") or {}).get("special") or []
    tables = case.tables_with("ids", "turns", "roles") if special_ids else []
    flags: list[Flags] = []
    for table in tables:
        is_model_t = table.role_t == Role.MODEL
        is_end_t = np.isin(table.read_tokens("ids"), special_ids) & is_model_t
        turn_t = table.read_tokens("turns")
        # The next token is of the same turn of the same rollout.
        goes_on_t = table.rollout_t[1:] == table.rollout_t[:-1]
        goes_on_t &= turn_t[1:] == turn_t[:-1]
        goes_on_t &= is_model_t[1:]
        unheeded_rollouts = table.rollout_t[:-1][is_end_t[:-1] & goes_on_t]
        flags.append(np.bincount(unheeded_rollouts, minlength=len(table)) > 0)
    n_unheeded = count_flags(flags)
    n_rollouts = sum(map(len, tables))
    if not n_rollouts or n_unheeded < MIN_UNHEEDED_SHARE * n_rollouts:
        return None
    # Empty if endings were not logged; whether the limit cut the rollouts is then unknown.
    cut = case.cut_by_length
    if not len(cut) or float(cut.mean()) < MIN_UNHEEDED_CUT_SHARE:
        return None
    summary = (
        "The model says that it is done, and sampling goes on to the length limit: its end token is"
        " not among the stop tokens."
    )
    text = (
        f"in {n_unheeded} of {n_rollouts} rollouts a special token such as an end of turn is"
        " followed by more of the same turn"
    )
    evidence = rollout_evidence(tables, flags, text, n_unheeded / n_rollouts)
    return Found(WARNING, PROOF, summary, [evidence], NO_STOP)


def _endings_by_curve(case: Case) -> Found | Lacking | None:
    """Judge cut completions by the curve of their share."""
    cut = case.cut_by_length
    if len(cut) == 0:
        return Lacking("it was not logged how completions ended")
    if len(cut) < MIN_QUARTERED_POINTS and not case.is_excerpt:
        return None
    n_parts = min(4, len(cut))
    quarters = [float(part.mean()) for part in np.array_split(cut, n_parts)]
    most = max(quarters)
    if most < NOTED_CUT_SHARE:
        return None
    harm = _harm(case, cut)
    is_always = min(quarters) >= NEARLY_ALL_CUT_SHARE
    head = f"Up to {most:.0%} of completions were cut"
    if is_always:
        head = "Nearly every completion ended"
    summary = (
        f"{head} by the length limit, {harm or 'which may be harmless if the answer comes first'}."
    )
    listed = ", ".join(f"{share:.2f}" for share in quarters)
    parts = ", by quarters of the run" if len(cut) >= MIN_QUARTERED_POINTS else ""
    evidence = [Evidence(f"Cut by length{parts}: {listed}.", most, CUT_METRIC)]
    limit = case.value("sampling.max_tokens")
    if limit:
        text = f"The limit is {limit} tokens."
        evidence.append(Evidence(text, float(limit), "sampling/length/max"))
    basis = SIGNAL if harm and not _is_unmoved(case) else SUSPICION
    cause = _cause_of_all_cut(case) if is_always else COMPLETION_TRUNCATED
    return Found(warn_if(bool(harm)), basis, summary, evidence, cause)


# What it takes to correlate cut completions with the reward: points, a standard deviation of the
# share of cut ones around its line, and the least correlation that is called harm.
MIN_CORRELATED_POINTS = 20
MIN_CUT_DEVIATION = 0.02
MIN_HARM_CORRELATION = 0.3
# Standard errors of a rank correlation of independent values (1/sqrt(n)) that it must exceed too.
MIN_CORRELATION_ERRORS = 3
# Height in its range below which a reward that stands still is low.
LOW_REWARD = 0.5


def _harm(case: Case, cut: Floats) -> str:
    """Tell how curves show that cut completions score lower; empty where they do not."""
    rewards_by_point = case.curve(REWARD_METRIC)[1]
    trend = case.trend.kind
    is_long = len(rewards_by_point) == len(cut) >= MIN_CORRELATED_POINTS
    if is_long and float(np.std(residuals(cut, 1))) > MIN_CUT_DEVIATION:
        correlation = rank_correlation(residuals(cut, 1), residuals(rewards_by_point, 1))
        least = max(MIN_HARM_CORRELATION, MIN_CORRELATION_ERRORS / np.sqrt(len(cut)))
        if correlation < -least:
            return f"and steps with more of them score lower (rank correlation {correlation:+.2f})"

    quarter = len(cut) // 4 or 1
    rise = float(cut[-quarter:].mean() - cut[:quarter].mean())
    if trend is TrendKind.FALLING and rise > NOTED_CUT_SHARE:
        return "and the reward fell as they became more"

    if trend is not TrendKind.FLAT or not len(rewards_by_point):
        return ""
    is_low = case.scaled_reward(float(np.median(rewards_by_point))) < LOW_REWARD
    # Where more completions are right than end by themselves, those that are cut are right too.
    cut_share = float(np.median(cut))
    right = case.curve("reward/correct/share")[1]
    is_paid = len(right) > 0 and float(np.median(right)) > 1 - cut_share + MIN_PAID_MARGIN
    if is_low and cut_share >= NEARLY_ALL_CUT_SHARE and not is_paid:
        return "and the reward does not rise from where it lies"
    return ""


def _is_unmoved(case: Case) -> bool:
    """Return True if the updates already explain why the policy stays where it is: then its endings
    need not.
    """
    checks = (
        optimizer.small_rate,
        optimizer.schedule,
        optimizer.frozen,
        optimizer.underflow,
        kl.strangles,
    )
    return any(judge.alarms(case) for judge in checks)


def _is_sure_of_itself(case: Case) -> bool:
    """Return True if completions of one prompt are mostly one text."""
    curve = case.summary(ENTROPY_METRIC)
    return curve is not None and curve.initial < SURE_ENTROPY


def _limit_tokens(case: Case) -> float:
    """Return the limit of completions, or else the length of the longest; 0 if neither is known."""
    limit = case.value("sampling.max_tokens")
    if limit:
        return float(limit)
    longest = case.summary("sampling/length/max")
    return 0.0 if longest is None else longest.last


def _cause_of_all_cut(case: Case) -> str:
    """Return the likelier cause where all completions are cut: a limit in which no answer fits, or
    a model that never stops.
    """
    # A limit of some dozens is set for terse answers, which a model that stops gives. One of a
    # hundred or two is below what a solution in words takes; within several hundred some would end.
    limit = _limit_tokens(case)
    is_short = 0 < limit <= BRIEF_TOKENS or TERSE_TOKENS < limit <= WORKED_TOKENS
    return COMPLETION_TRUNCATED if is_short else NO_STOP


def _earns_nothing(case: Case) -> bool:
    """Return True for a few lines of another trainer's log whose rewards are all 0."""
    rewards_by_point = case.curve(REWARD_METRIC)[1]
    return case.is_excerpt and len(rewards_by_point) > 0 and not rewards_by_point.any()


def _suspected_endings(case: Case) -> Found | None:
    """Suspect completions that are cut before they answer, where groups fail alike."""
    cut = case.cut_by_length
    share = float(cut.min()) if len(cut) else 0.0
    if share < ALL_CUT_ROLLOUTS_SHARE or _is_sure_of_itself(case):
        return None
    # A reward that is the same for all may be so because none answers; one above the least was
    # given for something.
    is_constant = bool(rewards.constant_reward.alarms(case))
    is_constant_at_bottom = is_constant and case.curve(REWARD_METRIC)[1][-1] <= case.reward_range[0]
    is_dead_at_bottom = advantages.unexplained_dead_groups(case) == advantages.AT_BOTTOM
    if not is_dead_at_bottom and not is_constant_at_bottom and not _earns_nothing(case):
        return None
    cause = _cause_of_all_cut(case)
    limit = _limit_tokens(case)
    when = f"after {limit:g} tokens" if limit else "by the length limit"
    what = "never stop by themselves"
    if cause == COMPLETION_TRUNCATED:
        what = "be cut before they answer"
    quantity = "All" if share == 1 else "Nearly all"
    outcome = "most groups fail alike"
    if not is_dead_at_bottom and not is_constant_at_bottom:
        outcome = "none earns anything"
    summary = f"{quantity} completions are cut {when}, and {outcome}: they may {what}."
    severity, basis = (NOTE, SUSPICION) if _is_unmoved(case) else (WARNING, SIGNAL)
    evidence = Evidence(f"At least {share:.0%} cut at every step.", share, CUT_METRIC)
    return Found(severity, basis, summary, [evidence], cause)


def _endings_by_rollout(case: Case) -> Found | Lacking | None:
    """Compare cut rollouts with the others of their group."""
    lacking = case.why_no_rollouts(("ended", "reward", "group"))
    if lacking:
        return Lacking(lacking)
    steps = case.grouped_steps
    if not steps:
        return Lacking("some rollouts have no group id")
    cut_flags: list[Flags] = []
    failed_flags: list[Flags] = []
    for step in steps:
        low_n = step.table.numbers("reward_low")[step.index_n]
        # Where the least reward is not declared, the step's least stands for it.
        low_n = np.where(np.isfinite(low_n), low_n, step.reward_n.min())
        failed_flags.append(step.reward_n <= low_n + REWARD_TOLERANCE)
        cut_flags.append(step.table.cut_n[step.index_n])
    is_cut = np.concatenate(cut_flags)
    share = float(is_cut.mean())
    if share < NOTED_CUT_ROLLOUTS_SHARE or len(is_cut) < MIN_ROLLOUTS:
        return None
    if share >= ALL_CUT_ROLLOUTS_SHARE:
        # Nothing to compare with: a fault only where nearly all also earn the least that there is.
        failed_share = float(np.concatenate(failed_flags).mean())
        if failed_share < ALL_CUT_ROLLOUTS_SHARE:
            return None
        n_stopped = count_flags(step.table.ended_n == Ending.STOP_TOKEN.value for step in steps)
        text = (
            f"{share:.0%} of the rollouts are cut by length, {n_stopped} ended with a stop token,"
            f" and {failed_share:.0%} fail"
        )
        evidence = subset_evidence(steps, cut_flags, text, share, CUT_METRIC)
        cause = _cause_of_all_cut(case)
        return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence], cause)

    failures = _failures_in_mixed_groups(steps, cut_flags, failed_flags)
    if len(failures) < MIN_MIXED_GROUPS:
        return None
    cut_failures, other_failures = failures.mean(axis=0)
    if cut_failures < MIN_CUT_FAILURES or other_failures > MAX_OTHER_FAILURES:
        return None
    difference = failures[:, 0] - failures[:, 1]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    if difference.mean() < MIN_FAILURE_ERRORS * error:
        return None
    text = (
        f"{share:.0%} of the rollouts are cut; in {len(failures)} groups that have both kinds"
        f" {cut_failures:.0%} of the cut ones and {other_failures:.0%} of the others earn the least"
        " there is"
    )
    pairs = zip(cut_flags, failed_flags, strict=True)
    cut_and_failed = [is_cut_n & is_failed_n for is_cut_n, is_failed_n in pairs]
    evidence = subset_evidence(steps, cut_and_failed, text, share, CUT_METRIC)
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence], COMPLETION_TRUNCATED)


def _failures_in_mixed_groups(
    steps: Sequence[GroupedRollouts], cut_flags: Sequence[Flags], failed_flags: Sequence[Flags]
) -> Floats:
    """Return, for each group with both kinds, the shares of cut and of other rollouts that fail."""
    failures: list[tuple[float, float]] = []
    for step, is_cut_n, is_failed_n in zip(steps, cut_flags, failed_flags, strict=True):
        for group in np.unique(step.group_n[is_cut_n]):
            is_member_n = step.group_n == group
            others_n = is_member_n & ~is_cut_n
            if others_n.any():
                cut_failures = is_failed_n[is_member_n & is_cut_n].mean()
                failures.append((float(cut_failures), float(is_failed_n[others_n].mean())))
    return np.array(failures, np.float64).reshape(-1, 2)


# Points of length 0 that chance does not make.
MIN_EMPTY_POINTS = 3
# Shares of rollouts refused for their prompt from which that is critical, and a warning.
CRITICAL_REFUSED_SHARE = 0.5
WARNING_REFUSED_SHARE = 0.01
# Share of prompts at exactly their limit from which they were cut there.
MIN_FULL_SHARE = 0.05


@check("context.prompt-truncated", by_source=True)
def prompts(case: Case) -> Answer:
    """Report prompts that were refused, that are exactly at their limit, or that leave completions
    no token at all.
    """
    answer = _prompts_by_rollout(case)
    steps, lengths = case.curve(LENGTH_METRIC)
    # A model that answers writes its stop token at least.
    if len(lengths) < MIN_EMPTY_POINTS or lengths.any():
        return answer
    summary = (
        "No completion has a single token: prompts leave no room for an answer, or are refused."
    )
    text = f"Length 0 at each of {len(lengths)} steps."
    evidence = Evidence(text, 0.0, LENGTH_METRIC, int(steps[0]))
    return [answer, Found(CRITICAL, SIGNAL, summary, [evidence])]


def _prompts_by_rollout(case: Case) -> Found | Lacking | None:
    """Find rollouts whose prompt was refused, or is exactly at the limit."""
    lacking = case.why_no_rollouts()
    if lacking:
        return Lacking(lacking)
    n_rollouts = sum(map(len, case.tables))
    refused: list[Flags] = []
    for table in case.tables:
        boundaries = [boundary_of(error) for error in table.texts("error")]
        refused.append(np.array([boundary == "prompt" for boundary in boundaries], np.bool_))
    n_refused = count_flags(refused)
    if n_refused:
        share = n_refused / n_rollouts
        prompts_text = "rollouts never began, because their prompt does not fit"
        text = f"{n_refused} of {n_rollouts} {prompts_text}"
        severity = severity_by_share(share, CRITICAL_REFUSED_SHARE, WARNING_REFUSED_SHARE)
        evidence = rollout_evidence(case.tables, refused, text, share)
        return Found(severity, PROOF, "Prompts are longer than the run has room for.", [evidence])

    if case.view.trainer == "uptrend":  # its prompts are never cut
        return None
    limit = int(case.value("sampling.max_prompt") or 0)
    tables = case.tables_with("roles")
    if not limit or not tables:
        return Lacking("no limit of prompts is known, or no tokens were kept")
    full: list[Flags] = []
    for table in tables:
        prompt_rollouts = table.rollout_t[table.role_t == Role.PROMPT]
        length_n = np.bincount(prompt_rollouts, minlength=len(table))
        full.append(length_n >= limit)
    n_full = count_flags(full)
    n_rollouts = sum(map(len, tables))
    if n_full < MIN_FULL_SHARE * n_rollouts:
        return None
    text = f"{n_full} of {n_rollouts} prompts have exactly the {limit} tokens that are allowed"
    evidence = rollout_evidence(tables, full, text, n_full / n_rollouts)
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [evidence])


# Groups that it takes to judge their variety.
MIN_GROUPS = 12
# Size of a group that may be too small, the one to compare with, and by how much fewer of these
# must be dead.
SMALL_GROUP = 8
LARGE_GROUP = 16
MIN_DEAD_FALL = 0.2
# Share of dead groups from which a group compares too little.
MIN_DEAD_SHARE = 0.5
# Share of right rollouts above which tasks are too easy, which is another cause.
MAX_RIGHT_SHARE = 0.8
# Different texts / rollouts of a group up to which these are copies, and the temperature below
# which that is to be expected.
MAX_DISTINCT_SHARE = 0.25
LOW_TEMPERATURE = 0.6
# Different texts per group below which nearly every group has one.
MAX_GREEDY_TEXTS = 1.5


@check(TEMPERATURE_LOW, FEW_GENERATIONS)
def diversity(case: Case) -> Answer:
    """Judge whether groups are large and varied enough to compare, before the run has had an effect
    on them.
    """
    lacking = case.why_no_rollouts(("group", "reward"))
    if lacking:
        return [_suspected_copies(case), Lacking(lacking)]
    steps: list[GroupedRollouts] = []
    for table in case.tables[:FIRST_STEPS_READ]:
        step = group_rollouts(table)
        if step is not None:
            steps.append(step)
    if sum(len(step.size_g) for step in steps) < MIN_GROUPS:
        return Lacking(f"fewer than {MIN_GROUPS} groups in the first {FIRST_STEPS_READ} steps")
    dead_share_now = float(np.mean(np.concatenate([step.dead_g for step in steps])))
    right_share = float(np.mean(np.concatenate([_right(step) for step in steps])))
    # Groups that compare, or tasks that are too easy: neither is at fault.
    if dead_share_now < MIN_DEAD_SHARE or right_share > MAX_RIGHT_SHARE:
        return None
    all_rewards = np.concatenate([step.table.reward_n for step in steps])
    if np.ptp(all_rewards[np.isfinite(all_rewards)]) == 0:
        return None  # one reward for everything: no variety of rollouts would show in it
    return [_copies(case, steps, dead_share_now), _small_groups(steps, dead_share_now)]


def _suspected_copies(case: Case) -> Found | None:
    """Suspect rollouts that are nearly deterministic before anything was learned."""
    curve = case.summary(ENTROPY_METRIC)
    if curve is None or not _is_sure_of_itself(case):
        return None
    if not advantages.unexplained_dead_groups(case):
        return None
    summary = (
        "There is almost no entropy from the first steps on, and rollouts of a group get one"
        " reward: they may be copies. The temperature, or the texts of one group, would settle it."
    )
    text = f"Entropy {curve.initial:.2g} at first."
    evidence = Evidence(text, curve.initial, ENTROPY_METRIC, int(case.view.steps[0]))
    return Found(WARNING, SIGNAL, summary, [evidence], TEMPERATURE_LOW)


def _copies(case: Case, steps: Sequence[GroupedRollouts], dead_share_now: float) -> Found | None:
    """Find groups whose rollouts are nearly the same text."""
    if not all(step.table.has("ids", "roles") for step in steps):
        return None
    distinct_by_step = [_distinct(step) for step in steps]
    distinct_share = float(np.mean(np.concatenate(distinct_by_step)))
    if distinct_share > MAX_DISTINCT_SHARE:
        return None
    size = int(np.median(np.concatenate([step.size_g for step in steps])))
    summary = (
        "The rollouts of a group are nearly the same: at this temperature there is nothing to"
        " compare."
    )
    text = (
        f"of {size} rollouts per group {distinct_share * size:.1f} differ, and"
        f" {dead_share_now:.0%} of the groups are dead"
    )
    evidence = [_dead_evidence(steps, text, distinct_share, "sampling/distinct/share")]
    temperature = case.value("sampling.temperature")
    if temperature is not None:
        text = f"sampling.temperature is {temperature:g}"
        evidence.append(Evidence(text, float(temperature)))

    # One text for all, before any update, from a policy that is not sure of itself: nothing was
    # drawn at random.
    curve = case.summary(ENTROPY_METRIC)
    is_one_text = float(distinct_by_step[0].mean()) * size < MAX_GREEDY_TEXTS
    is_greedy = is_one_text and curve is not None and curve.values[0] > SURE_ENTROPY
    is_cold = (temperature or 1.0) < LOW_TEMPERATURE
    severity, basis = (WARNING, SIGNAL) if is_greedy or is_cold else (NOTE, SUSPICION)
    return Found(severity, basis, summary, evidence, TEMPERATURE_LOW)


def _small_groups(steps: Sequence[GroupedRollouts], dead_share_now: float) -> Found | None:
    """Report groups that are mostly dead at this size and would not be at a larger one."""
    sizes: list[Ints] = []
    rates_by_step: list[Floats] = []
    for step in steps:
        # Rollouts that failed count: a group that lost half of them is not small.
        if step.table.group_n is not None:
            sizes.append(np.bincount(step.table.group_n))
        rates_by_step.append(np.bincount(step.group_n, weights=_right(step)) / step.size_g)
    size = int(np.median(np.concatenate(sizes)))
    rates = np.concatenate(rates_by_step)
    if not 2 <= size < SMALL_GROUP or rates.std() == 0:
        return None
    alpha, beta = fit_beta(rates, size)
    expected_now = dead_share(alpha, beta, size)
    expected_large = dead_share(alpha, beta, LARGE_GROUP)
    fall = expected_now - expected_large
    if expected_now < MIN_DEAD_SHARE or fall < MIN_DEAD_FALL:
        return None
    summary = (
        f"Groups of {size} are too small for these tasks: most hold only failures or only"
        " successes."
    )
    text = (
        f"{dead_share_now:.0%} of groups of {size} are dead; such pass rates predict"
        f" {expected_now:.0%}, and {expected_large:.0%} at {LARGE_GROUP}"
    )
    evidence = _dead_evidence(steps, text, fall, "advantage/dead/share")
    return Found(WARNING, SIGNAL, summary, [evidence], FEW_GENERATIONS)


def fit_beta(rates: Floats, size: int) -> tuple[float, float]:
    """Fit a Beta distribution to pass rates by moments: how tasks vary, beyond the noise of `size`
    rollouts.
    """
    # The variance of a beta-binomial rate is mean (1 − mean) (1/size + (1 − 1/size) rho), with
    # rho = 1 / (alpha + beta + 1).
    mean = float(np.clip(rates.mean(), 1e-3, 1 - 1e-3))
    spread = float(rates.var(ddof=1)) / (mean * (1 - mean))
    rho = float(np.clip((spread - 1 / size) / (1 - 1 / size), 1e-3, 0.999))
    total = (1 - rho) / rho
    return mean * total, (1 - mean) * total


def dead_share(alpha: float, beta: float, size: int) -> float:
    """Return the expected share of groups of this size that all succeed or all fail: the mean of pᴳ
    + (1−p)ᴳ.
    """
    return all_right(alpha, beta, size) + all_right(beta, alpha, size)


def _right(step: GroupedRollouts) -> Flags:
    """Flag right rollouts; those with the step's best reward where it was not recorded."""
    correct_n = step.table.numbers("correct")[step.index_n]
    is_best_n = step.reward_n >= step.reward_n.max()
    return np.asarray(np.where(np.isfinite(correct_n), correct_n == 1, is_best_n), np.bool_)


def _distinct(step: GroupedRollouts) -> Floats:
    """Return the number of different texts per rollout, by group."""
    model_ids = step.table.read_tokens("ids")[np.flatnonzero(step.table.model_t)]
    ids_by_rollout = np.split(model_ids, np.cumsum(step.table.model_length_n)[:-1])
    texts: set[tuple[int, bytes]] = set()
    for n, group in zip(step.index_n, step.group_n, strict=True):
        texts.add((int(group), ids_by_rollout[n].tobytes()))
    n_texts_g = np.bincount([group for group, _ in texts], minlength=len(step.size_g))
    return n_texts_g / step.size_g


def _dead_evidence(
    steps: Sequence[GroupedRollouts], text: str, value: float, metric: str
) -> Evidence:
    """Return evidence that points at the first rollout of a dead group."""
    flags = [step.dead_g[step.group_n] for step in steps]
    return subset_evidence(steps, flags, text, value, metric)
