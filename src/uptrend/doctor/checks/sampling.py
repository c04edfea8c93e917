"""Completions: their entropy, lengths and endings, prompts that leave them no room, and groups that
are all alike.
"""

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
from uptrend.doctor.groups import GroupedRollouts, count_flags, group_rollouts, rollout_evidence
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.records import Ending, Evidence, Role, TrendKind, boundary_of
from uptrend.records.table import Flags, Floats
from uptrend.stats.intervals import all_right
from uptrend.stats.trend import rank_correlation, residuals

ENTROPY = "learner/entropy/mean"
LENGTH = "sampling/length/mean"
LENGTH_ENDED = "sampling/ended/length/share"
COLLAPSE = "sampling.entropy-collapse"
EXPLOSION = "sampling.entropy-explosion"
CUT = "context.completion-truncated"
NO_STOP = "sampling.no-stop"
COLD = "sampling.temperature-low"
FEW = "sampling.few-generations"
FEWEST = 10

# Entropy: shares of its start below which it has collapsed, while the reward does not rise, and is
# worth a note; and nats below which there is nothing left to explore with, where the start is that
# low already.
GONE = 0.1
NOTED = 0.5
EMPTY = 0.05
# Temperature above any in use, and nats of entropy from which a text is mostly noise.
HOT = 1.5
NOISY = 1.0
# Entropy at the end / at first, and nats more, from which a text turns towards noise.
MIN_ENTROPY_GROWTH = 3.0
MIN_ENTROPY_RISE = 0.5
# Place in its range from which a reward has little left to learn, so that certainty is what was
# asked for.
NEAR_TOP = 0.9


@check(COLLAPSE, EXPLOSION, needs=[ENTROPY])
def entropy(case: Case) -> Found | None:
    """Compare entropy at the end with its start, and with what the reward did."""
    curve = case.summary(ENTROPY)
    if curve is None or len(curve.values) < FEWEST or curve.first <= 0:
        return None
    begin = float(curve.values[:3].mean())
    temperature = case.value("sampling.temperature")
    if (
        isinstance(temperature, int | float)
        and temperature > HOT
        and begin > NOISY
        and not case.is_learning
    ):
        text = (
            f"At temperature {temperature:g} the model speaks at random: {begin:.2g} nats of"
            " entropy from the start."
        )
        return Found(
            WARNING,
            SIGNAL,
            text,
            [case.evidence(ENTROPY, f"Entropy {begin:.3g} at first.")],
            EXPLOSION,
        )
    found = _entropy_gone(case, curve, begin)
    if found or curve.last < MIN_ENTROPY_GROWTH * begin:
        return found
    if curve.last - begin < MIN_ENTROPY_RISE:
        return None
    trend = case.trend.kind
    severity = {TrendKind.FALLING: CRITICAL, TrendKind.LEARNING: NOTE}.get(trend, WARNING)
    summary = (
        f"Entropy grew from {begin:.3g} to {curve.last:.3g} nats: the text has turned towards"
        " noise."
    )
    shown = case.evidence(ENTROPY, f"Entropy × {curve.last / begin:.1f}.")
    return Found(
        severity, PROOF if trend is TrendKind.FALLING else SIGNAL, summary, [shown], EXPLOSION
    )


def _entropy_gone(case: Case, curve: CurveSummary, begin: float) -> Found | None:
    share = curve.last / max(begin, curve.first)
    reward = case.summary(REWARD_METRIC)
    is_spent = case.is_stuck and curve.last < EMPTY and curve.first < EMPTY and share < 0.7
    if share >= NOTED and not is_spent:
        return None
    # Means alone do not show how high a reward goes.
    knows_top = case.trend.kind is not TrendKind.FALLING and case.has("reward/max")
    is_at_top = reward is not None and knows_top and case.scaled_reward(reward.last) >= NEAR_TOP
    is_paid = case.entropy_weight < 0  # a bonus of the wrong sign asks for it
    is_fault = case.is_stuck and (is_paid or (not is_at_top and (share < GONE or is_spent)))
    meanwhile = "over the run"
    basis = SUSPICION
    if is_fault:
        meanwhile = "while the reward stood still: there is nothing left to explore with"
        basis = PROOF if share < GONE or is_paid else SIGNAL
    elif is_at_top or case.is_learning:
        when = "with the reward near its top" if is_at_top else "while the reward rose"
        meanwhile = f"{when}: a policy that is right grows sure, and that is normal"
    summary = f"Entropy fell from {begin:.3g} to {curve.last:.3g} nats {meanwhile}."
    shown = case.evidence(ENTROPY, f"Entropy at {share:.1%} of its start.")
    return Found(warn_if(is_fault), basis, summary, [shown], COLLAPSE)


# Length / length at first, up to which its shortest quarter is worth a note, and below which the
# end is a fault where the reward falls too.
NOTED_LENGTH = 0.55
COLLAPSED_LENGTH = 0.25


@check("sampling.length-collapse")
def length_collapse(case: Case) -> Found | None:
    """Report completions that shrink; a fault where the reward falls with them."""
    length = case.summary(LENGTH)
    if length is None or len(length.values) < FEWEST or length.initial < 8:
        return None
    least = min(float(np.median(part)) for part in np.array_split(length.values, 4))
    if least > NOTED_LENGTH * length.initial:
        return None
    is_short = length.last < COLLAPSED_LENGTH * length.initial
    is_fault = case.trend.kind is TrendKind.FALLING and is_short
    text = (
        f"Completions shrank from {length.initial:.0f} to {least:.0f}"
        f" tokens{' with the reward' * is_fault}."
    )
    share = (
        f"In its shortest quarter {least / length.initial:.0%} of its start; {length.last:.0f}"
        " tokens at the end."
    )
    sure = (WARNING, SIGNAL) if is_fault else (NOTE, SUSPICION)
    return Found(*sure, text, [case.evidence(LENGTH, share)])


# Share of rollouts cut by length, in some part of the run, that is worth a note, and that is nearly
# all of them.
MANY = 0.25
NEARLY_ALL = 0.9
# The same among single rollouts, of which it takes so many.
SOME = 0.15
ALL = 0.95
ENOUGH = 32
# Shares that earn the least, in groups with both kinds: of those cut at least, of others at most.
MIN_CUT_FAILURES = 0.9
MAX_OTHER_FAILURES = 0.6
# Margin by which right completions outnumber those that end by themselves, where cut ones are paid.
PAID = 0.1
# Share of rollouts cut by length from which an end of turn stops nothing.
MOSTLY = 0.9
# Tokens in which hardly any answer fits.
BRIEF = 4
# Nats per token below which completions of one prompt are mostly one text.
SURE_ENTROPY = 0.1


@check(CUT, NO_STOP)
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
    """Find special tokens after which the model had to go on: it said that it was done, and was not
    stopped.
    """
    special: list[int] = (case.view.info.get("model") or {}).get("special") or []
    rows = case.tables_with("ids", "turns", "roles") if special else []
    flags = []
    for r in rows:
        is_special = np.isin(r.read_tokens("ids"), special) & (r.role_t == Role.MODEL)
        turns = r.read_tokens("turns")
        goes_on = (
            (r.rollout_t[1:] == r.rollout_t[:-1])
            & (turns[1:] == turns[:-1])
            & (r.role_t[1:] == Role.MODEL)
        )
        flags.append(np.bincount(r.rollout_t[:-1][is_special[:-1] & goes_on], minlength=len(r)) > 0)
    count = count_flags(flags)
    total = sum(map(len, rows))
    if not total or count < 0.5 * total or float(case.cut_by_length.mean()) < MOSTLY:
        return None
    text = (
        f"in {count} of {total} rollouts a special token such as an end of turn is followed by more"
        " of the same turn"
    )
    summary = (
        "The model says that it is done, and sampling goes on to the length limit: its end token is"
        " not among the "
    )
    return Found(
        WARNING,
        PROOF,
        f"{summary}stop tokens.",
        [rollout_evidence(rows, flags, text, count / total)],
        NO_STOP,
    )


def _endings_by_curve(case: Case) -> Found | Lacking | None:
    cut = case.cut_by_length
    if len(cut) == 0:
        return Lacking("it was not logged how completions ended")
    quarters = [float(part.mean()) for part in np.array_split(cut, 4) if len(cut) >= 5]
    if max(quarters, default=0.0) < MANY:
        return None
    harm = _harm(case, cut)
    is_always = min(quarters) >= NEARLY_ALL
    head = (
        "Nearly every completion ended"
        if is_always
        else f"Up to {max(quarters):.0%} of completions were cut"
    )
    text = (
        f"{head} by the length limit, {harm or 'which may be harmless if the answer comes first'}."
    )
    told = f"Cut by length, by quarters of the run: {', '.join(f'{q:.2f}' for q in quarters)}."
    shown = [Evidence(told, max(quarters), LENGTH_ENDED)]
    if limit := case.value("sampling.max_tokens"):
        shown.append(Evidence(f"The limit is {limit} tokens.", float(limit), "sampling/length/max"))
    basis = SIGNAL if harm and not _is_unmoved(case) else SUSPICION
    return Found(
        warn_if(bool(harm)),
        basis,
        text,
        shown,
        NO_STOP if is_always and not _is_brief(case) else CUT,
    )


def _harm(case: Case, cut: Floats) -> str:
    """Tell how curves show that cut completions score lower; empty where they do not."""
    paid = case.curve(REWARD_METRIC)[1]
    trend = case.trend.kind
    if len(paid) == len(cut) >= 20 and float(np.std(residuals(cut, 1))) > 0.02:
        together = rank_correlation(residuals(cut, 1), residuals(paid, 1))
        if together < -max(0.3, 3 / np.sqrt(len(cut))):
            return f"and steps with more of them score lower (rank correlation {together:+.2f})"
    quarter = len(cut) // 4 or 1
    if trend is TrendKind.FALLING and float(cut[-quarter:].mean() - cut[:quarter].mean()) > MANY:
        return "and the reward fell as they became more"
    is_low = len(paid) > 0 and case.scaled_reward(float(np.median(paid))) < 0.5
    # Where more completions are right than end by themselves, those that are cut are right too.
    right = case.curve("reward/correct/share")[1]
    is_paid = len(right) > 0 and float(np.median(right)) > 1 - float(np.median(cut)) + PAID
    if trend is TrendKind.FLAT and is_low and float(np.median(cut)) >= NEARLY_ALL and not is_paid:
        return "and the reward does not rise from where it lies"
    return ""


def _is_unmoved(case: Case) -> bool:
    """Tell whether the updates already explain why the policy stays where it is: then its endings
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
    """Tell whether completions of one prompt are mostly one text."""
    curve = case.summary(ENTROPY)
    return curve is not None and curve.initial < SURE_ENTROPY


def _is_brief(case: Case) -> bool:
    """Tell whether the limit leaves so few tokens that hardly any answer fits."""
    longest = case.summary("sampling/length/max")
    limit = case.value("sampling.max_tokens")
    return limit <= BRIEF if limit else longest is not None and longest.last <= BRIEF


def _suspected_endings(case: Case) -> Found | None:
    """Suspect completions that are cut before they answer, where groups fail alike."""
    cut = case.cut_by_length
    if len(cut) == 0 or (share := float(cut.min())) < ALL or _is_sure_of_itself(case):
        return None
    # A reward that is the same for all may be so because none answers; one above the least was
    # given for something.
    is_constant = (
        bool(rewards.constant_reward.alarms(case))
        and case.curve(REWARD_METRIC)[1][-1] <= case.reward_range[0]
    )
    if advantages.unexplained_dead_groups(case) != advantages.AT_BOTTOM and not is_constant:
        return None
    is_brief = _is_brief(case)
    when = "after a few tokens" if is_brief else "by the length limit"
    what = "be cut before they answer" if is_brief else "never stop by themselves"
    text = f"Nearly all completions are cut {when}, and most groups fail alike: they may {what}."
    sure = (NOTE, SUSPICION) if _is_unmoved(case) else (WARNING, SIGNAL)
    shown = Evidence(f"At least {share:.0%} cut at every step.", share, LENGTH_ENDED)
    return Found(*sure, text, [shown], CUT if is_brief else NO_STOP)


def _endings_by_rollout(case: Case) -> Found | Lacking | None:
    if lacking := case.why_no_rollouts(("ended", "reward", "group")):
        return Lacking(lacking)
    if not case.grouped_steps:
        return Lacking("some rollouts have no group id")
    rows = []
    cut = []
    failed = []
    cut_flags = []
    failed_flags = []
    pairs = list[Floats]()
    for g in case.grouped_steps:
        low = g.table.by_rollout("reward_low")[g.index_n]
        low_n = g.reward_n <= np.where(np.isfinite(low), low, g.reward_n.min()) + 1e-6
        cut_n = g.table.cut_n[g.index_n]
        rows.append(g.table)
        cut.append(cut_n)
        failed.append(low_n)
        cut_flags.append(g.flags_over_step(cut_n))
        failed_flags.append(g.flags_over_step(cut_n & low_n))
        for group in np.unique(g.group_n[cut_n]):
            mine = g.group_n == group
            if not cut_n[mine].all():
                pairs.append(np.array([low_n[mine & cut_n].mean(), low_n[mine & ~cut_n].mean()]))
    share = float(np.concatenate(cut).mean())
    if share < SOME or sum(map(len, cut)) < ENOUGH:
        return None
    # nothing to compare with: only where nearly all also earn the least that there is
    if share >= ALL:
        fail = float(np.concatenate(failed).mean())
        stops = count_flags(r.ended_n == Ending.STOP_TOKEN.value for r in rows)
        text = (
            f"{share:.0%} of the rollouts are cut by length, {stops} ended with a stop token, and"
            f" {fail:.0%} fail"
        )
        shown = rollout_evidence(rows, cut_flags, text, share, LENGTH_ENDED)
        return (
            Found(WARNING, SIGNAL, PAGE_SUMMARY, [shown], CUT if _is_brief(case) else NO_STOP)
            if fail >= ALL
            else None
        )
    if len(pairs) < 8:
        return None
    both = np.array(pairs)
    cut_fails, whole_fails = both.mean(axis=0)
    difference = both[:, 0] - both[:, 1]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    if cut_fails < MIN_CUT_FAILURES or whole_fails > MAX_OTHER_FAILURES:
        return None
    if difference.mean() < 4 * error:
        return None
    fails = (
        f"{cut_fails:.0%} of the cut ones and {whole_fails:.0%} of the others earn the least"
        " there is"
    )
    text = (
        f"{share:.0%} of the rollouts are cut; in {len(pairs)} groups that have both kinds {fails}"
    )
    return Found(
        WARNING,
        SIGNAL,
        PAGE_SUMMARY,
        [rollout_evidence(rows, failed_flags, text, share, LENGTH_ENDED)],
        CUT,
    )


@check("context.prompt-truncated")
def prompts(case: Case) -> Answer:
    """Report prompts that were refused, that are exactly at their limit, or that leave completions
    no token at all.
    """
    answer = _prompts_by_rollout(case)
    steps, lengths = case.curve(LENGTH)
    if len(lengths) < 3 or lengths.any():  # a model that answers says at least its stop token
        return answer
    text = "No completion has a single token: prompts leave no room for an answer, or are refused."
    shown = Evidence(f"Length 0 at each of {len(lengths)} steps.", 0.0, LENGTH, int(steps[0]))
    return [answer, Found(CRITICAL, SIGNAL, text, [shown])]


def _prompts_by_rollout(case: Case) -> Found | Lacking | None:
    if lacking := case.why_no_rollouts():
        return Lacking(lacking)
    rows = case.tables
    total = sum(map(len, case.tables))
    refused = [
        np.array([boundary_of(e) == "prompt" for e in r.texts("error")], np.bool_) for r in rows
    ]
    if count := count_flags(refused):
        text = f"{count} of {total} rollouts never began, because their prompt does not fit"
        severity = severity_by_share(count / total, 0.5, 0.01)
        shown = rollout_evidence(rows, refused, text, count / total)
        return Found(severity, PROOF, "Prompts are longer than the run has room for.", [shown])
    if case.view.trainer == "uptrend":  # its prompts are never cut
        return None
    limit = int(case.value("sampling.max_prompt") or 0)
    rows = case.tables_with("roles")
    if not limit or not rows:
        return Lacking("no limit of prompts is known, or no tokens were kept")
    full = [
        np.bincount(r.rollout_t[r.role_t == Role.PROMPT], minlength=len(r)) >= limit for r in rows
    ]
    count = count_flags(full)
    total = sum(map(len, rows))
    if count < 0.05 * total:
        return None
    text = f"{count} of {total} prompts have exactly the {limit} tokens that are allowed"
    return Found(WARNING, SIGNAL, PAGE_SUMMARY, [rollout_evidence(rows, full, text, count / total)])


# Groups that it takes to judge their variety; the size of a group that may be too small, the one to
# compare with, and by how much fewer of these must be dead.
GROUPS = 12
SMALL_GROUP = 8
LARGE = 16
MIN_DEAD_FALL = 0.2
# Share of dead groups from which a group compares too little.
MIN_DEAD_SHARE = 0.5
# Different texts / rollouts of a group up to which these are copies, and the temperature below
# which that is no wonder.
MAX_DISTINCT_SHARE = 0.25
LOW_TEMPERATURE = 0.6


@check(COLD, FEW)
def diversity(case: Case) -> Answer:
    """Judge whether groups are large and varied enough to compare, before the run has had an effect
    on them.
    """
    if lacking := case.why_no_rollouts(("group", "reward")):
        return [_suspected_copies(case), Lacking(lacking)]
    steps = [g for g in map(group_rollouts, case.tables[:FIRST_STEPS_READ]) if g is not None]
    if sum(len(g.size_g) for g in steps) < GROUPS:
        return Lacking(f"fewer than {GROUPS} groups in the first {FIRST_STEPS_READ} steps")
    dead = float(np.mean(np.concatenate([g.dead_g for g in steps])))
    right = float(np.mean(np.concatenate([_right(g) for g in steps])))
    # groups that compare, or tasks that are too easy: neither is at fault
    if dead < MIN_DEAD_SHARE or right > 0.8:
        return None
    if (
        np.ptp(np.concatenate([g.table.reward_n[np.isfinite(g.table.reward_n)] for g in steps]))
        == 0
    ):
        return None  # one reward for everything: no variety of rollouts would show in it
    return [_copies(case, steps, dead), _small_groups(steps, dead)]


def _suspected_copies(case: Case) -> Found | None:
    """Suspect rollouts that are nearly deterministic before anything was learned."""
    curve = case.summary(ENTROPY)
    if (
        curve is None
        or not _is_sure_of_itself(case)
        or not advantages.unexplained_dead_groups(case)
    ):
        return None
    why = (
        "There is almost no entropy from the first steps on, and rollouts of a group get one reward"
    )
    text = (
        f"{why}: they may be copies. The temperature, or the texts of one group, would settle it."
    )
    shown = Evidence(
        f"Entropy {curve.initial:.2g} at first.", curve.initial, ENTROPY, int(case.view.steps[0])
    )
    return Found(WARNING, SIGNAL, text, [shown], COLD)


def _copies(case: Case, steps: list[GroupedRollouts], dead: float) -> Found | None:
    if not all(g.table.has("ids", "roles") for g in steps):
        return None
    distinct = float(np.mean(np.concatenate([_distinct(g) for g in steps])))
    if distinct > MAX_DISTINCT_SHARE:
        return None
    size = int(np.median(np.concatenate([g.size_g for g in steps])))
    text = (
        f"of {size} rollouts per group {distinct * size:.1f} differ, and {dead:.0%} of the groups"
        " are dead"
    )
    shown = [_seen_dead(steps, text, distinct, "sampling/distinct/share")]
    temperature = case.value("sampling.temperature")
    entropy = case.summary(ENTROPY)
    if temperature is not None:
        shown.append(Evidence(f"sampling.temperature is {temperature:g}", float(temperature)))
    # One text for all, before any update, from a policy that is not sure of itself: nothing was
    # drawn at random.
    is_greedy = (
        float(_distinct(steps[0]).mean()) * size < 1.5
        and entropy is not None
        and entropy.values[0] > SURE_ENTROPY
    )
    summary = (
        "The rollouts of a group are nearly the same: at this temperature there is nothing to"
        " compare."
    )
    sure = (
        (WARNING, SIGNAL)
        if is_greedy or (temperature or 1.0) < LOW_TEMPERATURE
        else (NOTE, SUSPICION)
    )
    return Found(*sure, summary, shown, COLD)


def _small_groups(steps: list[GroupedRollouts], dead: float) -> Found | None:
    """Report groups that are mostly dead at this size and would not be at a larger one."""
    # Rollouts that failed count: a group that lost half of them is not small.
    size = int(
        np.median(
            np.concatenate(
                [np.bincount(g.table.group_n) for g in steps if g.table.group_n is not None]
            )
        )
    )
    rates = np.concatenate([np.bincount(g.group_n, weights=_right(g)) / g.size_g for g in steps])
    if not 2 <= size < SMALL_GROUP or rates.std() == 0:
        return None
    now, then = (dead_share(*fit_beta(rates, size), n) for n in (size, LARGE))
    if now < MIN_DEAD_SHARE or now - then < MIN_DEAD_FALL:
        return None
    text = (
        f"{dead:.0%} of groups of {size} are dead; such pass rates predict {now:.0%}, and"
        f" {then:.0%} at {LARGE}"
    )
    summary = (
        f"Groups of {size} are too small for these tasks: most hold only failures or only"
        " successes."
    )
    return Found(
        WARNING, SIGNAL, summary, [_seen_dead(steps, text, now - then, "advantage/dead/share")], FEW
    )


def fit_beta(rates: Floats, size: int) -> tuple[float, float]:
    """Fit a Beta distribution to pass rates by moments: how tasks vary, beyond the noise of `size`
    rollouts.
    """
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


def _right(g: GroupedRollouts) -> Flags:
    correct = g.table.by_rollout("correct")[g.index_n]
    return np.asarray(
        np.where(np.isfinite(correct), correct == 1, g.reward_n >= g.reward_n.max()), np.bool_
    )


def _distinct(g: GroupedRollouts) -> Floats:
    """Return the number of different texts per rollout, by group."""
    ids = g.table.read_tokens("ids")
    said = np.split(ids[np.flatnonzero(g.table.model_t)], np.cumsum(g.table.lengths_n)[:-1])
    texts = {
        (int(group), said[place].tobytes())
        for place, group in zip(g.index_n, g.group_n, strict=True)
    }
    return np.bincount([group for group, _ in texts], minlength=len(g.size_g)) / g.size_g


def _seen_dead(steps: list[GroupedRollouts], text: str, value: float, metric: str) -> Evidence:
    return rollout_evidence(
        [g.table for g in steps],
        [g.flags_over_step(g.dead_g[g.group_n]) for g in steps],
        text,
        value,
        metric,
    )
