"""From a view of a run to the doctor's report. No torch."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.check import PROOF, alarms, rank
from uptrend.doctor.checks import run_checks
from uptrend.doctor.checks.rewards import TOP
from uptrend.doctor.report import from_finding_table
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.drawing import thin_curve
from uptrend.records import CannotTell, Finding, Report, RunView
from uptrend.records.directory import END_EVENTS, START_EVENTS

# Alarms beside which a rising reward does not show that the task is learned.
DOUBTS = (
    "kl.runaway data.memorized data.leak task.evaluator-exposed reward.hackable reward.misaligned"
)
REJECTIONS = ("reward.gold-rejected", "reward.strict-parser")
PAID_ALONE = {*DOUBTS.split(), "reward.component-dominates", "reward.length-hacking"}


def diagnose(view: RunView) -> Report:
    """Run every check on a run, and put what they found in order; of a run that preflight refused,
    repeat why.
    """
    case = Case(view)
    outcomes = run_checks(case)
    if not len(view.steps):
        outcomes += _preflight_findings(view)
    acquitted = _acquitted(view)
    # A probe says gold answers in a few forms; rollouts that prove the opposite say more.
    acquitted -= {
        o.id for o in outcomes if isinstance(o, Finding) and o.basis is PROOF and o.id in REJECTIONS
    }
    findings = rank(o for o in outcomes if isinstance(o, Finding) and o.id not in acquitted)
    seen = {f.id: f for top in findings for f in (top, *top.explains)}
    lacking = {o.id: o for o in outcomes if isinstance(o, CannotTell) and o.id not in seen}
    damage = [
        f"The rollouts of step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))} are {why} and"
        " were left out."
        for why, steps in (
            ("damaged", case.damaged_steps),
            ("too large to be read", case.large_steps),
        )
        if steps
    ]
    refusal = _refusal(view)
    if refusal:
        trend = replace(case.trend, sentence=refusal, headline="not started")
    else:
        trend = replace(case.trend, headline=_headline(case, seen.values()))
    return Report(
        source=view.source,
        trainer=view.trainer,
        name=view.name,
        steps=len(view.steps),
        step=int(view.steps[-1]) if len(view.steps) else 0,
        trend=trend,
        findings=findings,
        cannot_tell=() if refusal else tuple(lacking[id] for id in sorted(lacking)),
        missing=tuple(_missing(case)),
        notes=(*view.notes, *damage),
        unknown=tuple(sorted(view.unknown)),
        curve=thin_curve(*view.curve(REWARD_METRIC)),
    )


def _refusal(view: RunView) -> str:
    """Return why preflight did not let a run begin; empty for a run that began."""
    endings = [event for event in view.events if event.get("event") in (*START_EVENTS, *END_EVENTS)]
    if len(view.steps) or not endings or endings[-1].get("stopped_by") != "preflight":
        return ""
    return f"Preflight did not let it begin. {endings[-1].get('reason', '')}".rstrip()


def _headline(case: Case, findings: Iterable[Finding]) -> str:
    """Return the trend in words, qualified by what else is seen."""
    kind = case.trend.kind
    change = case.heldout
    found = {finding.id for finding in alarms(findings)}
    if "run.nonfinite" in found:
        return f"{kind}, then NaN"
    is_left = change is not None and (
        change.fell or (change.effect <= 0 and change.interval and change.last < TOP)
    )
    if case.is_learning:
        return "reward rises, task not shown" if is_left or found & PAID_ALONE else str(kind)
    if change is not None and (change.fell or case.has_learned):
        return f"{kind}, held-out {'falls' if change.fell else 'rises'}"
    return str(kind)


def _missing(case: Case) -> list[str]:
    """Say which kinds of evidence a run lacks, and how to get each."""
    ours = case.view.trainer == "uptrend"
    is_trl = case.view.trainer == "trl"
    moved = case.curve("kl/reference/mean")[1].any() or case.has("weights/update/norm")
    kinds = [
        (
            case.heldout,
            "held-out tasks",
            "eval.tasks = 100" if ours else "an evaluation set",
            "whether it learns the task",
        ),
        (
            case.view.rollout_steps,
            "rollouts",
            "uptrend.bridge.trl.watch(trainer)" if is_trl else "a run directory",
            "tokens, masks, advantages and texts",
        ),
        (
            moved,
            "KL",
            f"{'learning.kl.beta' if ours else 'a KL weight'} = 0.001",
            "how far the policy moved",
        ),
        (case.has("learner/entropy/mean"), "entropy", "its curve", "whether it still explores"),
        (
            len(case.cut_by_length),
            "endings",
            "the share cut by length",
            "whether answers fit their limit",
        ),
        (len(case.dead_groups), "dead groups", "their share", "how much there is to learn from"),
    ]
    if case.has("warmstart/loss/mean") or not len(case.view.steps):
        return []
    return [
        f"no {what}: {how} would show {shown}"
        for is_there, what, how, shown in kinds
        if not is_there
    ]


def _preflight_findings(view: RunView) -> Iterator[Finding]:
    """Yield what the last preflight found: until a step is recorded, nothing is known later than
    that.
    """
    preflights = [event for event in view.events if event.get("event") == "preflight"]
    for table in preflights[-1].get("findings", ()) if preflights else ():
        # a damaged line, or one of another version
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            finding = from_finding_table(table)
            if finding.id in CATALOGUE:
                yield finding


def _acquitted(view: RunView) -> set[str]:
    """Return causes that a probe has excluded, whatever records look like: gold in another format
    was not rejected.
    """
    excluded = set[str]()
    for event in view.events:
        if event.get("event") == "acquitted":
            excluded.add(str(event.get("id")))
        for probe in event.get("probes", ()) if event.get("event") == "preflight" else ():
            if probe.get("name") == "gold" and probe.get("ok") and not probe.get("skipped"):
                excluded.add("reward.gold-rejected")
    return excluded
