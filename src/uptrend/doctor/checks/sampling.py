"""Completions: their entropy, lengths and endings, prompts that leave them no room, and groups that are all alike."""

import numpy as np

from uptrend.doctor.case import FIRST, Case
from uptrend.doctor.check import Found, Lacking, check
from uptrend.doctor.checks import advantages, kl, optimizer
from uptrend.doctor.curves import REWARD, Curve
from uptrend.doctor.rows import Flags, Floats, Grouped, Where, count_flags, grouped, point
from uptrend.records import Confidence, Ending, Evidence, Role, Severity, TrendKind, boundary_of
from uptrend.stats.intervals import all_right
from uptrend.stats.trend import rank_correlation, residuals

ENTROPY, LENGTH, LENGTH_ENDED = "learner/entropy/mean", "sampling/length/mean", "sampling/ended/length/share"
COLLAPSE, EXPLOSION = "sampling.entropy-collapse", "sampling.entropy-explosion"
CUT, NO_STOP = "context.completion-truncated", "sampling.no-stop"
COLD, FEW = "sampling.temperature-low", "sampling.few-generations"
FEWEST = 10

# Entropy: shares of its start below which it has collapsed, while the reward does not rise, and is worth a note; and
# nats below which there is nothing left to explore with, where the start is that low already.
GONE, NOTED, EMPTY = 0.1, 0.5, 0.05
# Place in its range from which a reward has little left to learn, so that certainty is what was asked for.
NEAR_TOP = 0.9

# Share of rollouts cut by length, in some part of the run, that is worth a note, and that is nearly all of them.
MANY, NEARLY_ALL = 0.25, 0.9
# The same among single rollouts, of which it takes so many.
SOME, ALL, ENOUGH = 0.15, 0.95, 32
# Margin by which right completions outnumber those that end by themselves, where cut ones are paid.
PAID = 0.1
# Tokens in which hardly any answer fits.
BRIEF = 4

# Nats per token below which completions of one prompt are mostly one text.
SURE_OF_ITSELF = 0.1
# Groups that it takes to judge their variety, and the group size to compare with.
GROUPS, LARGE = 12, 16


@check(COLLAPSE, EXPLOSION, needs=[ENTROPY])
def entropy(case: Case) -> Found | None:
    """Compare entropy at the end with its start, and with what the reward did."""
    curve = case.course(ENTROPY)
    if curve is None or len(curve.values) < FEWEST or curve.first <= 0:
        return None
    return _entropy_gone(case, curve) or _entropy_grown(case, curve)


def _entropy_gone(case: Case, curve: Curve) -> Found | None:
    begin, trend = float(curve.values[:3].mean()), case.trend.kind
    share = curve.last / max(begin, curve.first)
    is_stuck = trend in (TrendKind.FLAT, TrendKind.FALLING)
    is_spent = is_stuck and curve.last < EMPTY and curve.first < EMPTY and share < 0.7
    if share >= NOTED and not is_spent:
        return None
    # Means alone do not show how high a reward goes.
    reward, knows_top = case.course(REWARD), trend is not TrendKind.FALLING and case.view.has("reward/max")
    is_at_top = reward is not None and knows_top and case.height(reward.last) >= NEAR_TOP
    is_paid = case.entropy_weight < 0  # a bonus of the wrong sign asks for it
    is_fault = is_stuck and (is_paid or (not is_at_top and (share < GONE or is_spent)))
    meanwhile, confidence = "over the run", Confidence.LOW
    if is_fault:
        meanwhile = "while the reward stood still: there is nothing left to explore with"
        confidence = Confidence.HIGH if share < GONE or is_paid else Confidence.MEDIUM
    elif is_at_top:
        meanwhile = "with the reward near its top: a policy that is right grows sure, and that is normal"
    elif trend is TrendKind.LEARNING:
        meanwhile = "while the reward rose: a policy that learns grows sure, and that is normal"
    summary = f"Entropy fell from {begin:.3g} to {curve.last:.3g} nats {meanwhile}."
    shown = curve.evidence(f"Entropy at {share:.1%} of its start.")
    return Found(Severity.WARNING if is_fault else Severity.NOTE, confidence, summary, [shown], COLLAPSE)


def _entropy_grown(case: Case, curve: Curve) -> Found | None:
    begin, trend = float(curve.values[:3].mean()), case.trend.kind
    if curve.last < 3 * begin or curve.last - begin < 0.5:
        return None
    severity = {TrendKind.FALLING: Severity.CRITICAL, TrendKind.LEARNING: Severity.NOTE}.get(trend, Severity.WARNING)
    confidence = Confidence.HIGH if trend is TrendKind.FALLING else Confidence.MEDIUM
    summary = f"Entropy grew from {begin:.3g} to {curve.last:.3g} nats: the text has turned towards noise."
    shown = curve.evidence(f"Entropy × {curve.last / begin:.1f}.")
    return Found(severity, confidence, summary, [shown], EXPLOSION)


@check("sampling.length-collapse")
def length_collapse(case: Case) -> Found | None:
    """Report completions that shrink; a fault where the reward falls with them."""
    length = case.course(LENGTH)
    if length is None or len(length.values) < FEWEST or length.begin < 8:
        return None
    least = min(float(np.median(part)) for part in np.array_split(length.values, 4))
    if least > 0.55 * length.begin:
        return None
    is_fault = case.trend.kind is TrendKind.FALLING and length.last < 0.25 * length.begin
    text = f"Completions shrank from {length.begin:.0f} to {least:.0f} tokens{' with the reward' * is_fault}."
    share = f"In its shortest quarter {least / length.begin:.0%} of its start; {length.last:.0f} tokens at the end."
    if is_fault:
        return Found(Severity.WARNING, Confidence.MEDIUM, text, [length.evidence(share)])
    return Found(Severity.NOTE, Confidence.LOW, text, [length.evidence(share)])


@check(CUT, NO_STOP)
def endings(case: Case) -> list[Found | Lacking]:
    """Judge completions that the length limit cut: some of them, or nearly all, which never stop by themselves.

    A terse task whose answer comes first loses nothing when it is cut.
    """
    return [*_endings_by_curve(case), *_suspected_endings(case), *_endings_by_rollout(case)]


def _endings_by_curve(case: Case) -> list[Found | Lacking]:
    cut = case.cut_by_length
    if len(cut) == 0:
        return [Lacking("it was not logged how completions ended")]
    quarters = [float(part.mean()) for part in np.array_split(cut, 4) if len(cut) >= 5]
    if max(quarters, default=0.0) < MANY:
        return []
    harm = _harm(case, cut)
    always = min(quarters) >= NEARLY_ALL
    head = "Nearly every completion ended" if always else f"Up to {max(quarters):.0%} of completions were cut"
    text = f"{head} by the length limit, {harm or 'which may be harmless if the answer comes first'}."
    told = f"Cut by length, by quarters of the run: {', '.join(f'{q:.2f}' for q in quarters)}."
    shown = [Evidence(told, max(quarters), LENGTH_ENDED)]
    if limit := case.view.value("sampling.max_tokens"):
        shown.append(Evidence(f"The limit is {limit} tokens.", float(limit), "sampling/length/max"))
    severity = Severity.WARNING if harm else Severity.NOTE
    confidence = Confidence.MEDIUM if harm and not _is_unmoved(case) else Confidence.LOW
    return [Found(severity, confidence, text, shown, NO_STOP if always else CUT)]


def _harm(case: Case, cut: Floats) -> str:
    """Tell how curves show that cut completions score lower; empty where they do not."""
    rewards, trend = case.view.curve(REWARD)[1], case.trend.kind
    if len(rewards) == len(cut) >= 20 and float(np.std(residuals(cut, 1))) > 0.02:
        together = rank_correlation(residuals(cut, 1), residuals(rewards, 1))
        if together < -max(0.3, 3 / np.sqrt(len(cut))):
            return f"and steps with more of them score lower (rank correlation {together:+.2f})"
    quarter = len(cut) // 4 or 1
    if trend is TrendKind.FALLING and float(cut[-quarter:].mean() - cut[:quarter].mean()) > MANY:
        return "and the reward fell as they became more"
    is_low = len(rewards) > 0 and case.height(float(np.median(rewards))) < 0.5
    # Where more completions are right than end by themselves, those that are cut are right too.
    right = case.view.curve("reward/correct/share")[1]
    is_paid = len(right) > 0 and float(np.median(right)) > 1 - float(np.median(cut)) + PAID
    if trend is TrendKind.FLAT and is_low and float(np.median(cut)) >= NEARLY_ALL and not is_paid:
        return "and the reward does not rise from where it lies"
    return ""


def _is_unmoved(case: Case) -> bool:
    """Tell whether the updates already explain why the policy stays where it is: then its endings need not."""
    checks = (optimizer.small_rate, optimizer.schedule, optimizer.frozen, optimizer.underflow, kl.strangles)
    return any(judge.alarms(case) for judge in checks)


def _is_sure_of_itself(case: Case) -> bool:
    curve = case.course(ENTROPY)
    return curve is not None and curve.begin < SURE_OF_ITSELF


def _suspected_endings(case: Case) -> list[Found]:
    """Suspect completions that are cut before they answer, where groups fail alike."""
    cut, longest = case.cut_by_length, case.course("sampling/length/max")
    if len(cut) == 0 or (share := float(cut.min())) < ALL or _is_sure_of_itself(case):
        return []
    if advantages.unexplained_dead_groups(case) != advantages.LOW:
        return []
    shown = [Evidence(f"At least {share:.0%} cut at every step.", share, LENGTH_ENDED)]
    brief = "after a few tokens, and most groups fail alike: they may be cut before they answer"
    long = "by the length limit, and most groups fail alike: they may never stop by themselves"
    is_brief = longest is not None and longest.last <= BRIEF
    text = f"Nearly all completions are cut {brief if is_brief else long}. The texts of one group would settle it."
    sure = (Severity.NOTE, Confidence.LOW) if _is_unmoved(case) else (Severity.WARNING, Confidence.MEDIUM)
    return [Found(*sure, text, shown, CUT if is_brief else NO_STOP)]


def _endings_by_rollout(case: Case) -> list[Found | Lacking]:
    """Compare cut rollouts with the others of their own groups."""
    if lacking := case.why_no_rollouts(("ended", "reward", "group")):
        return [Lacking(lacking)]
    steps = case.groups
    if not steps:
        return [Lacking("some rollouts have no group id")]
    cut, low = [g.rows.cut_n[g.place_n] for g in steps], [_is_low(g) for g in steps]
    share = float(np.concatenate(cut).mean())
    if share < SOME or sum(map(len, cut)) < ENOUGH:
        return []
    if share >= ALL:  # nothing to compare with: only where nearly all also earn the least that there is
        failed = float(np.concatenate(low).mean())
        stops = sum(int((g.rows.ended_n == Ending.STOP_TOKEN.value).sum()) for g in steps)
        if failed < ALL:
            return []
        text = f"{share:.0%} of the rollouts are cut by length, {stops} ended with a stop token, and {failed:.0%} fail"
        where = point([g.rows for g in steps], [g.whole(c) for g, c in zip(steps, cut, strict=True)])
        id, summary = NO_STOP, "Rollouts never stop by themselves and are cut before they answer."
    else:
        pairs = np.concatenate([_failures(g, c, lo) for g, c, lo in zip(steps, cut, low, strict=True)])
        if len(pairs) < 8:
            return []
        cut_fails, whole_fails = pairs.mean(axis=0)
        difference = pairs[:, 0] - pairs[:, 1]
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        if cut_fails < 0.9 or whole_fails > 0.6 or difference.mean() < 4 * error:
            return []
        fails = f"{cut_fails:.0%} of the cut ones and {whole_fails:.0%} of the others earn the least there is"
        text = f"{share:.0%} of the rollouts are cut; in {len(pairs)} groups that have both kinds {fails}"
        flags = [g.whole(c & lo) for g, c, lo in zip(steps, cut, low, strict=True)]
        where = point([g.rows for g in steps], flags)
        id, summary = CUT, "Rollouts are cut before they answer, and fail for it."
    return [Found(Severity.WARNING, Confidence.MEDIUM, summary, [Evidence(text, share, LENGTH_ENDED, **where)], id)]


def _failures(g: Grouped, cut_n: Flags, low_n: Flags) -> Floats:
    """Return the shares of cut and of whole rollouts that earn the least, per group that has both kinds."""
    groups = [g.group_n == group for group in np.unique(g.group_n[cut_n])]
    both = [[low_n[mine & cut_n].mean(), low_n[mine & ~cut_n].mean()] for mine in groups if not cut_n[mine].all()]
    return np.array(both).reshape(-1, 2)


def _is_low(g: Grouped) -> Flags:
    low = g.rows.by_rollout("reward_low")[g.place_n]
    return np.asarray(g.reward_n <= np.where(np.isfinite(low), low, g.reward_n.min()) + 1e-6)


@check("context.prompt-truncated")
def prompts(case: Case) -> list[Found | Lacking]:
    """Report prompts that were refused, that are exactly at their limit, or that leave completions no token at all."""
    answers = [_prompts_by_rollout(case)]
    steps, lengths = case.view.curve(LENGTH)
    if len(lengths) >= 3 and not lengths.any():  # a model that answers says at least its stop token
        text = "No completion has a single token: prompts leave no room for an answer, or are refused."
        shown = Evidence(f"Length 0 at each of {len(lengths)} steps.", 0.0, LENGTH, int(steps[0]))
        answers.append(Found(Severity.CRITICAL, Confidence.MEDIUM, text, [shown]))
    return [answer for answer in answers if answer]


def _prompts_by_rollout(case: Case) -> Found | Lacking | None:
    if lacking := case.why_no_rollouts():
        return Lacking(lacking)
    rows = case.rows
    refused = [np.array([boundary_of(e) == "prompt" for e in r.texts("error")], np.bool_) for r in rows]
    count, total = count_flags(refused), sum(map(len, rows))
    if count:
        text = f"{count} of {total} rollouts never began, because their prompt does not fit"
        share = count / total
        severity = Severity.CRITICAL if share >= 0.5 else Severity.WARNING if share >= 0.01 else Severity.NOTE
        shown = Evidence(text, share, **point(rows, refused))
        return Found(severity, Confidence.HIGH, "Prompts are longer than the run has room for.", [shown])
    if case.view.trainer == "uptrend":  # its prompts are never cut
        return None
    limit, rows = int(case.view.value("sampling.max_prompt") or 0), case.rows_with("roles")
    if not limit or not rows:
        return Lacking("no limit of prompts is known, or no tokens were kept")
    full = [np.bincount(r.rollout_t[r.role_t == Role.PROMPT], minlength=len(r)) >= limit for r in rows]
    count, total = count_flags(full), sum(map(len, rows))
    if count < 0.05 * total:
        return None
    text = f"{count} of {total} prompts have exactly the {limit} tokens that are allowed"
    shown = Evidence(text, count / total, **point(rows, full))
    summary = "Prompts are cut at their limit, and what the answer needs may be in the part that is gone."
    return Found(Severity.WARNING, Confidence.MEDIUM, summary, [shown])


@check(COLD, FEW)
def diversity(case: Case) -> list[Found | Lacking]:
    """Judge whether groups are large and varied enough to compare, before the run has had an effect on them."""
    if lacking := case.why_no_rollouts(("group", "reward")):
        return [*_suspected_copies(case), Lacking(lacking)]
    steps = [g for g in map(grouped, case.rows[:FIRST]) if g is not None]
    if sum(len(g.size_g) for g in steps) < GROUPS:
        return [Lacking(f"fewer than {GROUPS} groups in the first {FIRST} steps")]
    dead = float(np.mean(np.concatenate([g.dead_g for g in steps])))
    right = float(np.mean(np.concatenate([_right(g) for g in steps])))
    if dead < 0.5 or right > 0.8:  # groups that compare, or tasks that are too easy: neither is at fault
        return []
    if np.ptp(np.concatenate([g.rows.reward_n[np.isfinite(g.rows.reward_n)] for g in steps])) == 0:
        return []  # one reward for everything: no variety of rollouts would show in it
    return [f for f in (_copies(case, steps, dead), _small_groups(steps, dead)) if f]


def _suspected_copies(case: Case) -> list[Found]:
    """Suspect rollouts that are nearly deterministic before anything was learned."""
    curve = case.course(ENTROPY)
    if curve is None or not _is_sure_of_itself(case) or not advantages.unexplained_dead_groups(case):
        return []
    why = "There is almost no entropy from the first steps on, and rollouts of a group get one reward"
    text = f"{why}: they may be copies. The temperature, or the texts of one group, would settle it."
    shown = Evidence(f"Entropy {curve.begin:.2g} at first.", curve.begin, ENTROPY, int(case.view.steps[0]))
    return [Found(Severity.WARNING, Confidence.MEDIUM, text, [shown], COLD)]


def _copies(case: Case, steps: list[Grouped], dead: float) -> Found | None:
    """Report rollouts of a group that say the same thing."""
    if not all(g.rows.has("ids", "roles") for g in steps):
        return None
    distinct = float(np.mean(np.concatenate([_distinct(g) for g in steps])))
    if distinct > 0.25:
        return None
    size = int(np.median(np.concatenate([g.size_g for g in steps])))
    text = f"of {size} rollouts per group {distinct * size:.1f} differ, and {dead:.0%} of the groups are dead"
    shown = [Evidence(text, distinct, "sampling/distinct/share", **_first_dead(steps))]
    temperature = case.view.value("sampling.temperature")
    if temperature is not None:
        shown.append(Evidence(f"sampling.temperature is {temperature:g}", float(temperature)))
    summary = "The rollouts of a group are nearly the same: at this temperature there is nothing to compare."
    is_low = temperature is not None and temperature < 0.6
    sure = (Severity.WARNING, Confidence.MEDIUM) if is_low else (Severity.NOTE, Confidence.LOW)
    return Found(*sure, summary, shown, COLD)


def _small_groups(steps: list[Grouped], dead: float) -> Found | None:
    """Report groups that are mostly dead at this size and would not be at 16."""
    size = int(np.median(np.concatenate([g.size_g for g in steps])))
    rates = np.concatenate([np.bincount(g.group_n, weights=_right(g)) / g.size_g for g in steps])
    if not 2 <= size < 8 or rates.std() == 0:
        return None
    now, then = (dead_share(*fit_beta(rates, size), n) for n in (size, LARGE))
    if now < 0.5 or now - then < 0.2:
        return None
    text = f"{dead:.0%} of groups of {size} are dead; such pass rates predict {now:.0%}, and {then:.0%} at {LARGE}"
    summary = f"Groups of {size} are too small for these tasks: most hold only failures or only successes."
    shown = Evidence(text, now - then, "advantage/dead/share", **_first_dead(steps))
    return Found(Severity.WARNING, Confidence.MEDIUM, summary, [shown], FEW)


def fit_beta(rates: Floats, size: int) -> tuple[float, float]:
    """Fit a Beta distribution to pass rates by moments: how tasks vary, beyond the noise of `size` rollouts."""
    mean = float(np.clip(rates.mean(), 1e-3, 1 - 1e-3))
    spread = float(rates.var(ddof=1)) / (mean * (1 - mean))
    rho = float(np.clip((spread - 1 / size) / (1 - 1 / size), 1e-3, 0.999))
    total = (1 - rho) / rho
    return mean * total, (1 - mean) * total


def dead_share(alpha: float, beta: float, size: int) -> float:
    """Return the expected share of groups of this size that all succeed or all fail: the mean of pᴳ + (1−p)ᴳ."""
    return all_right(alpha, beta, size) + all_right(beta, alpha, size)


def _right(g: Grouped) -> Flags:
    correct = g.rows.by_rollout("correct")[g.place_n]
    return np.asarray(np.where(np.isfinite(correct), correct == 1, g.reward_n >= g.reward_n.max()), np.bool_)


def _distinct(g: Grouped) -> Floats:
    """Return the number of different texts per rollout, by group."""
    ids = g.rows.tokens("ids")
    assert ids is not None
    said = np.split(ids[np.flatnonzero(g.rows.model_t)], np.cumsum(g.rows.lengths_n)[:-1])
    texts = {(int(group), said[place].tobytes()) for place, group in zip(g.place_n, g.group_n, strict=True)}
    return np.bincount([group for group, _ in texts], minlength=len(g.size_g)) / g.size_g


def _first_dead(steps: list[Grouped]) -> Where:
    return point([g.rows for g in steps], [g.whole(g.dead_g[g.group_n]) for g in steps])
