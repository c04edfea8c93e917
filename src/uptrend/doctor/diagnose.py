"""From a view of a run to the doctor's report. No torch."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.check import PROOF, alarms, rank
from uptrend.doctor.checks import run_checks
from uptrend.doctor.checks.rewards import NEAR_TOP
from uptrend.doctor.differential import differential
from uptrend.doctor.normal import normal_signs
from uptrend.doctor.report import from_finding_table
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.drawing import thin_curve
from uptrend.present.formatting import plural
from uptrend.records import CannotTell, Finding, Report, RunView, TrendKind
from uptrend.records.dialects import METRIC_DIALECTS, metric_name
from uptrend.records.directory import END_EVENTS, START_EVENTS

# Alarms beside which a rising reward does not show that the task is learned.
REWARD_ONLY_IDS = {
    "kl.runaway",
    "data.memorized",
    "data.leak",
    "task.evaluator-exposed",
    "reward.hackable",
    "reward.misaligned",
    "reward.component-dominates",
    "reward.length-hacking",
}
REJECTION_IDS = {"reward.gold-rejected", "reward.strict-parser"}


def diagnose(view: RunView) -> Report:
    """Run every check on a run and rank the findings.

    The report of a run that preflight refused repeats why.
    """
    case = Case(view)
    outcomes = run_checks(case)
    if not len(view.steps):
        outcomes += _preflight_findings(view)
    findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]

    excluded = _excluded_causes(view)
    # A probe tries gold answers in a few forms only; rollouts that prove a rejection say more.
    proven = {finding.id for finding in findings if finding.basis is PROOF}
    excluded -= proven & REJECTION_IDS
    causes = rank(finding for finding in findings if finding.id not in excluded)
    listed = [finding for cause in causes for finding in (cause, *cause.explains)]

    refusal = _refusal(view)
    is_too_short = case.trend.kind is TrendKind.TOO_SHORT
    is_short_and_clean = is_too_short and not alarms(listed)
    if refusal:
        trend = replace(case.trend, sentence=refusal, headline="not started")
    else:
        trend = replace(case.trend, headline=_headline(case, listed))
        if is_short_and_clean and case.is_excerpt:
            lines = "this line" if len(view.steps) == 1 else f"these {len(view.steps)} lines"
            sentence = f"{trend.sentence} No fault shows in {lines}; what would show more is below."
            trend = replace(trend, sentence=sentence)
    # Of a run that is too short for a trend and has no fault it is not known that it does not
    # learn, once rewards are earned.
    may_learn = is_short_and_clean and bool(case.curve(REWARD_METRIC)[1].any())
    remaining = None
    if not refusal and not may_learn:
        remaining = differential(case, outcomes, causes, excluded)
    return Report(
        source=view.source,
        trainer=view.trainer,
        name=view.name,
        steps=len(view.steps),
        step=int(view.steps[-1]) if len(view.steps) else 0,
        trend=trend,
        findings=causes,
        cannot_tell=() if refusal else _cannot_tell(outcomes, listed),
        normal=() if refusal else normal_signs(case, listed),
        missing=tuple(_missing(case)),
        notes=(*view.notes, *_unread_steps(case)),
        unknown=tuple(sorted(view.unknown)),
        curve=thin_curve(*view.curve(REWARD_METRIC)),
        differential=remaining,
    )


def _cannot_tell(
    outcomes: Iterable[Finding | CannotTell], listed: Iterable[Finding]
) -> tuple[CannotTell, ...]:
    """Return the causes that no check could judge or report, by id."""
    undecided: dict[str, CannotTell] = {}
    for outcome in outcomes:
        if isinstance(outcome, CannotTell):
            undecided[outcome.id] = outcome
    for finding in listed:
        undecided.pop(finding.id, None)
    return tuple(undecided[id] for id in sorted(undecided))


def _unread_steps(case: Case) -> Iterator[str]:
    """Yield notes on the rollouts that could not be read."""
    reasons = {"damaged": case.damaged_steps, "too large to be read": case.large_steps}
    for reason, steps in reasons.items():
        if steps:
            plural = "s" if len(steps) > 1 else ""
            numbers = ", ".join(map(str, steps))
            yield f"The rollouts of step{plural} {numbers} are {reason} and were left out."


def _refusal(view: RunView) -> str:
    """Return why preflight did not let a run begin; empty for a run that began."""
    boundaries = (*START_EVENTS, *END_EVENTS)
    events = [event for event in view.events if event.get("event") in boundaries]
    if len(view.steps) or not events or events[-1].get("stopped_by") != "preflight":
        return ""
    return f"Preflight did not let it begin. {events[-1].get('reason', '')}".rstrip()


def _headline(case: Case, findings: Iterable[Finding]) -> str:
    """Return the trend in words, qualified by the findings and the held-out change."""
    kind = str(case.trend.kind)
    heldout = case.heldout
    alarm_ids = {finding.id for finding in alarms(findings)}
    if case.is_excerpt and case.trend.kind is TrendKind.TOO_SHORT:
        # Too short for a trend, and long enough for what a single line proves.
        points = plural(len(case.view.steps), "point")
        return f"a fault shows in {points}" if alarm_ids else f"no fault in {points}"
    if "run.nonfinite" in alarm_ids:
        return f"{kind}, then NaN"

    if case.is_learning:
        is_left_behind = False
        if heldout is not None:
            # Without an interval, a score that only did not rise is no evidence; near the top it
            # can't rise.
            did_not_rise = heldout.effect <= 0 and heldout.interval is not None
            is_left_behind = heldout.fell or (did_not_rise and heldout.last < NEAR_TOP)
        is_doubtful = is_left_behind or not alarm_ids.isdisjoint(REWARD_ONLY_IDS)
        return "reward rises, task not shown" if is_doubtful else kind

    if heldout is not None and heldout.fell:
        return f"{kind}, held-out falls"
    if case.has_learned:
        return f"{kind}, held-out rises"
    return kind


def _missing(case: Case) -> Iterator[str]:
    """Yield the kinds of evidence that a run lacks, and how to get each."""
    # A warm start imitates texts: evidence on rollouts and rewards does not apply to it.
    if case.has("warmstart/loss/mean") or not len(case.view.steps):
        return
    is_ours = case.view.trainer == "uptrend"
    is_trl = case.view.trainer == "trl"
    # Either of the two shows how far the policy moved. A KL of 0 throughout was not computed.
    kl = case.curve("kl/reference/mean")[1]
    # Few lines may be a run's first ones, where it is 0.
    may_be_zero = len(kl) > 0 and (case.has_rounded_zeros or case.is_excerpt)
    has_kl = kl.any() or may_be_zero or case.has("weights/update/norm")
    kinds = [
        (
            case.heldout is not None,
            "held-out tasks",
            "eval.tasks = 100" if is_ours else "an evaluation set",
            "whether it learns the task",
        ),
        (
            len(case.view.rollout_steps) > 0,
            "rollouts",
            "uptrend.bridge.trl.watch(trainer)" if is_trl else "a run directory",
            "tokens, masks, advantages and texts",
        ),
        (
            has_kl,
            "KL",
            "learning.kl.beta = 0.001" if is_ours else "a KL weight = 0.001",
            "how far the policy moved",
        ),
        (
            case.has("gradient/norm/before") or "gradient/norm/before" in case.view.nonfinite,
            "gradient norm",
            _column(case, "gradient/norm/before", "its curve"),
            "whether updates have anything to follow",
        ),
        (
            case.has("learner/entropy/mean"),
            "entropy",
            _column(case, "learner/entropy/mean", "its curve"),
            "whether it still explores",
        ),
        (
            len(case.cut_by_length) > 0,
            "endings",
            _column(case, "sampling/ended/length/share", "the share cut by length"),
            "whether answers fit their limit",
        ),
        (
            len(case.dead_groups) > 0,
            "dead groups",
            _column(case, "advantage/dead/share", "their share"),
            "how much there is to learn from",
        ),
    ]
    for is_there, kind, source, use in kinds:
        if not is_there:
            yield f"no {kind}: {source} would show {use}"


def _column(case: Case, metric: str, otherwise: str) -> str:
    """Return the name under which a run's trainer logs a metric; `otherwise` if none is known."""
    trainer = case.view.trainer
    name = metric_name(metric, trainer) if trainer in METRIC_DIALECTS else ""
    return name or otherwise


def _preflight_findings(view: RunView) -> Iterator[Finding]:
    """Yield the findings of the last preflight: nothing later is known until a step is recorded."""
    preflights = [event for event in view.events if event.get("event") == "preflight"]
    tables = preflights[-1].get("findings", ()) if preflights else ()
    for table in tables:
        # a damaged line, or one of another version
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            finding = from_finding_table(table)
            if finding.id in CATALOGUE:
                yield finding


def _excluded_causes(view: RunView) -> set[str]:
    """Return causes that a probe has excluded, whatever records look like: by an `acquitted` event,
    or by gold answers that preflight tried and that were paid.
    """
    excluded: set[str] = set()
    for event in view.events:
        if event.get("event") == "acquitted":
            excluded.add(str(event.get("id")))
        elif event.get("event") == "preflight":
            golds = [probe for probe in event.get("probes", ()) if probe.get("name") == "gold"]
            # With several sources there is one for each.
            if golds and all(gold.get("ok") and not gold.get("skipped") for gold in golds):
                excluded.add("reward.gold-rejected")
    return excluded
