"""Differential of a run that does not learn: every cause is supported, possible or excluded, with
its evidence and a probability; and the tests that split what remains. No torch.

The probability of a finding is the share in which such findings were right in trials. What is left
is divided among the causes that no finding names: by how often public threads had each, times how
often a trial run that had it looks like this one. One cause is assumed.
"""

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import (
    CATALOGUE,
    KIND_WEIGHT,
    Cause,
    Condition,
    complete_fix,
    measured,
    resolve_experiment,
    right_share,
    settings_by_name,
    settings_in_force,
)
from uptrend.doctor.check import Outcomes, alarms
from uptrend.doctor.checks import ALL_CHECKS
from uptrend.present.formatting import assignments, number, plural, shell_assignment
from uptrend.records import (
    CannotTell,
    Differential,
    Finding,
    Fix,
    Multiplied,
    NextStep,
    Standing,
    Suspect,
)
from uptrend.records.dialects import TRAINER_NAMES

EXPERIMENTS_FILE = Path(__file__).parent / "experiments.toml"
# Public threads that weigh as much as none for a cause that no thread had.
PRIOR_THREADS = 0.5
# Odds that records leave to a cause, below which it is excluded.
MAX_EXCLUDED_ODDS = 0.1
# Most that all findings together may claim: a cause that no page describes is always possible.
MAX_FOUND_SHARE = 0.97
# Information of a test as a part of the best one's, from which the cheaper of them is taken.
MIN_GAIN_SHARE = 0.5
# Tests that are listed, the information in bits below which there is nothing to split, and metrics
# that a sentence quotes.
MAX_NEXT_STEPS = 5
MIN_GAIN_BITS = 0.05
MAX_METRICS_QUOTED = 3
STEP_SECONDS_METRIC = "seconds/step"
# Length of a run; alone it tests nothing.
STEPS_KEY = "learning.steps"
CHECKED_IDS = frozenset(id for check in ALL_CHECKS for id in check.ids)


def differential(
    case: Case, outcomes: Outcomes, causes: Sequence[Finding], acquitted: Set[str]
) -> Differential | None:
    """Return the differential of a run; None for one that learns, or that has no steps to judge.

    `causes` are its findings in order, `acquitted` the ids that a probe excluded.
    """
    view = case.view
    is_judged = view.info.get("kind") != "replay" and not case.has("warmstart/loss/mean")
    if case.is_learning or case.has_learned or not len(view.steps) or not is_judged:
        return None
    evidence = _Evidence(case, outcomes, causes, acquitted)
    supported = [_supported(finding, share) for finding, share in evidence.shares]
    left = 1.0 - sum(suspect.probability for suspect in supported)

    others = [cause for id, cause in CATALOGUE.items() if id not in evidence.alarm_ids]
    weights = {cause.id: prior(cause.id) * evidence.odds(cause) for cause in others}
    weight_elsewhere = prior_elsewhere()
    total = weight_elsewhere + sum(weights.values())
    rest = [
        Suspect(
            cause.id,
            evidence.standing(cause),
            left * weights[cause.id] / total,
            tuple(evidence.sentences(cause)),
        )
        for cause in others
    ]
    rest.sort(key=lambda suspect: (suspect.standing is Standing.EXCLUDED, -suspect.probability))
    suspects = (*supported, *rest)
    elsewhere = left * weight_elsewhere / total
    return Differential(suspects, elsewhere, tuple(_next_steps(evidence, suspects, elsewhere)))


def prior(id: str) -> float:
    """Return the weight of a cause before any evidence: its public threads."""
    return float(measured("threads", "causes").get(id, 0.0)) + PRIOR_THREADS


def prior_elsewhere() -> float:
    """Return the weight of causes without a page, and of runs without a fault."""
    threads = measured("threads", "counts")
    return float(threads.get("without_page", 0) + threads.get("no_fault", 0)) + PRIOR_THREADS


def shares_of(causes: Sequence[Finding], source: str) -> list[tuple[Finding, float]]:
    """Return each cause that asks for action with its probability, never above the one before.

    The first has the share of such findings that were right; each later one, what trials have left
    to a finding behind a wrong one.
    """
    later = measured("later", source)
    later_share = (later.get("right", 0) + 1) / (later.get("named", 0) + 2)
    shares: list[tuple[Finding, float]] = []
    left = MAX_FOUND_SHARE
    probability = 1.0
    for finding in alarms(causes):
        share = later_share
        if not shares:
            share = calibrated(right_share(finding.id, finding.basis, source), source)
        probability = min(probability, left * share)
        left -= probability
        shares.append((finding, probability))
    return shares


def calibrated(share: float, source: str) -> float:
    """Return a share of right first findings as it held in runs that no rule was fitted to."""
    counts = measured("calibration", source)
    stated = counts.get("stated", 0.0)
    if not stated:
        return share
    # Shrunk toward 1 with the weight of KIND_WEIGHT runs that were as sure as stated.
    factor = (counts["right"] + KIND_WEIGHT) / (stated + KIND_WEIGHT)
    return min(MAX_FOUND_SHARE, share * float(factor))


def _supported(finding: Finding, share: float) -> Suspect:
    sentences = [finding.summary]
    if finding.explains:
        symptoms = ", ".join(symptom.id for symptom in finding.explains)
        sentences.append(f"It explains {symptoms}.")
    return Suspect(finding.id, Standing.SUPPORTED, share, tuple(sentences))


class _Evidence:
    """What a run says for and against each cause."""

    def __init__(
        self, case: Case, outcomes: Outcomes, causes: Sequence[Finding], acquitted: Set[str]
    ) -> None:
        self.case = case
        self.known = settings_in_force(case.view)
        self.source = "records" if case.view.rollout_steps else "scalars"
        self.shares = shares_of(causes, self.source)
        self.alarm_ids = {finding.id for finding, _ in self.shares}
        self._acquitted = acquitted
        self._lacking = {o.id: o.needs for o in outcomes if isinstance(o, CannotTell)}
        self._seen_ids = {o.id for o in outcomes if isinstance(o, Finding)}
        # The cause that explains each finding which is folded under another as a symptom.
        self._folded = {symptom.id: cause for cause in causes for symptom in cause.explains}
        self._notes = {
            finding.id: finding for finding in causes if finding.id not in self.alarm_ids
        }
        self._alarms = [*alarms(causes), *self._folded_findings(causes)]
        self.passed_probes = _passed_probes(case)

    def _folded_findings(self, causes: Sequence[Finding]) -> Iterator[Finding]:
        for cause in alarms(causes):
            yield from alarms(cause.explains)

    def refusals(self, cause: Cause) -> Iterator[str]:
        """Yield the facts that exclude a cause by themselves."""
        for condition in cause.conditions:
            value = self._metric(condition) if condition.is_metric else self.known(condition.name)
            if value is not None and not condition.holds(value):
                yield condition.refusal(value)
        if cause.id in self._acquitted:
            yield "A probe of this run excluded it."

    def is_refused(self, cause: Cause) -> bool:
        """Return True if a fact excludes a cause by itself."""
        return any(self.refusals(cause))

    def _metric(self, condition: Condition) -> float | None:
        """Return the highest value of a metric that must have been above a limit, else its last
        level; None where it was not computed.
        """
        summary = self.case.summary(condition.name)
        if summary is None or not summary.values.any():
            return None
        return float(summary.values.max()) if condition.relation == "above" else summary.last

    def needs_of(self, id: str) -> str:
        """Return why a cause can't be judged; empty if it can."""
        return self._lacking.get(id, "")

    def is_unseen(self, cause: Cause) -> bool:
        """Return True if every check of a cause could look, and none saw a sign."""
        return (
            cause.id in CHECKED_IDS
            and cause.id not in self._seen_ids
            and cause.id not in self._lacking
        )

    def odds(self, cause: Cause) -> float:
        """Return how many times as likely this run's evidence is with a cause as without it."""
        if self.is_refused(cause):
            return 0.0
        odds = self._odds_against(cause)
        if self.alarms_explained_by(cause):
            odds *= lift("explains")
        elif self.alarms_like(cause):
            odds *= lift("rivals")
        if cause.id in self._notes:
            odds *= lift("notes")
        return odds

    def _odds_against(self, cause: Cause) -> float:
        """Return the odds that signs which did not show, and probes that passed, leave to it."""
        odds = 1.0
        if self.is_unseen(cause) and cause.in_scalars:
            odds *= MAX_EXCLUDED_ODDS / 2  # a log alone would have shown it for certain
        elif self.is_unseen(cause):
            odds *= odds_unseen(cause, self.source)
        if cause.experiment.probe in self.passed_probes:
            odds *= odds_passed()
        return odds

    def standing(self, cause: Cause) -> Standing:
        """Return the standing of a cause that no finding names."""
        if self.is_refused(cause) or self._odds_against(cause) <= MAX_EXCLUDED_ODDS:
            return Standing.EXCLUDED
        return Standing.POSSIBLE

    def alarms_explained_by(self, cause: Cause) -> list[Finding]:
        """Return the alarms that a cause would explain."""
        ids = {*cause.explains, *cause.leads_to}
        return [finding for finding in self._alarms if finding.id in ids]

    def alarms_like(self, cause: Cause) -> list[Finding]:
        """Return the alarms that look the same as a cause would."""
        return [f for f in self._alarms if any(rival.id == cause.id for rival in f.rivals)]

    def sentences(self, cause: Cause) -> Iterator[str]:
        """Yield what speaks against a cause, for it, and what is lacking."""
        yield from self.refusals(cause)
        if cause.id in self._folded:
            yield f"It was seen, as a symptom of {self._folded[cause.id].id}."
        elif cause.id in self._notes:
            yield self._notes[cause.id].summary
        elif cause.id in self._lacking:
            yield f"Can't be judged: {self._lacking[cause.id]}."
        elif self.is_unseen(cause):
            yield self._unseen(cause)
        elif cause.id not in CHECKED_IDS:
            yield "No record shows it."
        probe = cause.experiment.probe
        if probe in self.passed_probes:
            yield f"Preflight's probe {probe} passed: {self.passed_probes[probe]}."
        for finding in self.alarms_explained_by(cause)[:1]:
            yield f"It would explain {finding.id}."
        for finding in self.alarms_like(cause)[:1]:
            difference = next(r.tells_apart for r in finding.rivals if r.id == cause.id)
            yield f"It looks like {finding.id}; then {difference}."

    def _unseen(self, cause: Cause) -> str:
        """Return what was looked at without a sign, with its values, and what that is worth."""
        quoted: list[str] = []
        for metric in cause.metrics:
            summary = self.case.summary(metric)
            if summary is not None and len(quoted) < MAX_METRICS_QUOTED:
                quoted.append(f"{metric} {number(summary.last)}")
        if quoted:
            looked = f"{', '.join(quoted)} at the end"
        elif self.source == "records":
            looked = f"the rollouts of {plural(len(self.case.steps_read), 'step')}"
        else:
            looked = "what was logged"
        counts = measured("signs", self.source, "causes", cause.id)
        trials = ""
        if counts.get("looked"):
            trials = f"; it shows in {counts['seen']} of {counts['looked']} trial runs that had it"
        return f"No sign in {looked}{trials}."


def odds_unseen(cause: Cause, source: str) -> float:
    """Return how many times as likely it is with a cause as without it that its check sees
    nothing.
    """
    kind = measured("signs", source, "kinds", cause.kind)
    counts = measured("signs", source, "causes", cause.id)
    seen = _shrunk(counts, kind, "seen", "looked")
    false = _shrunk(counts, kind, "false", "without")
    return (1 - seen) / (1 - false)


def _shrunk(counts: Mapping[str, Any], kind: Mapping[str, Any], hits: str, runs: str) -> float:
    """Return the share of a cause's runs, with its kind's share at the weight of KIND_WEIGHT runs;
    the kind's by the rule of succession.
    """
    kind_share = (kind.get(hits, 0) + 1) / (kind.get(runs, 0) + 2)
    return float(
        (counts.get(hits, 0) + KIND_WEIGHT * kind_share) / (counts.get(runs, 0) + KIND_WEIGHT)
    )


def odds_passed() -> float:
    """Return the odds that a probe which passed leaves to its cause: the share of trial runs with a
    cause in which it passed, since without the cause it always does.
    """
    counts = measured("probes")
    return float((counts.get("passed", 0) + 1) / (counts.get("asked", 0) + 2))


def lift(link: str) -> float:
    """Return how many times as often as by chance the cause is among those that a finding links to:
    those that explain it, its rivals, or notes.
    """
    counts = measured("links", link)
    return float((counts.get("hits", 0) + 1) / (counts.get("expected", 0) + 1))


def _passed_probes(case: Case) -> dict[str, str]:
    """Return the figures of preflight's probes that reported nothing, by name; of a probe that asks
    each of several sources, only if it reported nothing in any.
    """
    figures: dict[str, str] = {}
    for event in case.view.events:
        if event.get("event") != "preflight":
            continue
        probes: dict[str, list[Mapping[str, Any]]] = {}
        for probe in event.get("probes", ()):
            probes.setdefault(str(probe.get("name")), []).append(probe)
        for name, results in probes.items():
            if not all(probe.get("ok") for probe in results):
                figures.pop(name, None)  # it passed in an earlier preflight, and no longer
            elif not any(probe.get("skipped") for probe in results):
                figures[name] = str(results[0].get("figure") or "nothing found")
    return figures


@dataclass(frozen=True)
class _Test:
    """An experiment that decides causes."""

    name: str
    sentence: str
    command: str
    ids: frozenset[str]
    steps: int
    names_each: bool
    """True if it says which of its causes it is, False if only whether it is one of them."""


def _next_steps(
    evidence: _Evidence, suspects: Sequence[Suspect], elsewhere: float
) -> Iterator[NextStep]:
    """Yield the cheapest test that splits what remains best, then the best one after it.

    `elsewhere` is the probability that no cause with a page is the run's.
    """
    remaining = {
        suspect.id: suspect.probability
        for suspect in suspects
        if suspect.standing is not Standing.EXCLUDED
    }
    tests = list(_tests(evidence, suspects))
    seconds = evidence.case.summary(STEP_SECONDS_METRIC)
    for _ in range(MAX_NEXT_STEPS):
        gains = {test: _gain(test, remaining, elsewhere) for test in tests}
        best = max(gains.values(), default=0.0)
        if best < MIN_GAIN_BITS:
            return
        good = [test for test in tests if gains[test] >= MIN_GAIN_SHARE * best]
        test = min(good, key=lambda test: (test.steps, -gains[test]))
        decided = sorted(test.ids & remaining.keys(), key=lambda id: -remaining[id])
        yield NextStep(
            test.name,
            test.sentence,
            test.command,
            tuple(decided),
            sum(remaining[id] for id in decided),
            test.steps,
            test.steps * seconds.last if seconds is not None else None,
        )
        # The next test is chosen for the case that this one found none of its causes.
        for id in decided:
            del remaining[id]
        tests.remove(test)


def _gain(test: _Test, remaining: Mapping[str, float], elsewhere: float) -> float:
    """Return the bits that a test is expected to tell."""
    total = elsewhere + sum(remaining.values())
    parts = [remaining[id] / total for id in test.ids if id in remaining]
    if not test.names_each:
        parts = [sum(parts)]
    parts.append(1.0 - sum(parts))
    return sum(-part * math.log2(part) for part in parts if part > 0)


@cache
def _experiments() -> Mapping[str, Any]:
    tables: dict[str, Any] = tomllib.loads(EXPERIMENTS_FILE.read_text(encoding="utf-8"))
    values = {name: table["set"] for name, table in tables.items() if "set" in table}
    for name, settings in settings_by_name(values).items():
        tables[name]["set"] = settings
    return tables


def _tests(evidence: _Evidence, suspects: Sequence[Suspect]) -> Iterator[_Test]:
    """Yield the tests that can be made on a run: those of several causes, and of its findings."""
    view = evidence.case.view
    for name, table in _experiments().items():
        if "set" in table:
            command = command_of(name, table["set"], evidence)
        else:
            command = table["command"].get(view.trainer, "").format(run=quote(view.source))
        ids = _settled(table["settles"], evidence, suspects)
        if command and ids:
            names_each = not isinstance(table["settles"], list)
            yield _Test(name, table["sentence"], command, ids, table["steps"], names_each)

    for finding, _ in evidence.shares:
        cause = CATALOGUE[finding.id].for_run(view)
        experiment = resolve_experiment(cause, evidence.known)
        for arm, values in experiment.arms.items():
            steps = experiment.steps or int(view.steps[-1])
            command = command_of(arm, values, evidence) if values else ""
            if command:
                ids = frozenset([finding.id])
                sentence = f"Test this claim: {experiment.claim}"
                yield _Test(f"{finding.id}: {arm}", sentence, command, ids, steps, True)
                break


def _settled(settles: Any, evidence: _Evidence, suspects: Iterable[Suspect]) -> frozenset[str]:
    """Return the causes that an experiment decides, by the `settles` of its table (its forms are
    described in experiments.toml).
    """
    if isinstance(settles, list):
        return frozenset(settles)
    ids: set[str] = set()
    for suspect in suspects:
        probe = CATALOGUE[suspect.id].experiment.probe
        if "probes" in settles and probe and probe not in evidence.passed_probes:
            ids.add(suspect.id)
        needs = evidence.needs_of(suspect.id)
        if any(word in needs for word in settles.get("needs", ())):
            ids.add(suspect.id)
    return frozenset(ids)


def command_of(name: str, values: Mapping[str, Any], evidence: _Evidence) -> str:
    """Return the command, or the settings of a run's own trainer, that change it; empty where all
    is in force or the trainer has no such setting.
    """
    view = evidence.case.view
    tested = {key: value for key, value in values.items() if key != STEPS_KEY}
    settings = _changes(values, evidence)
    if not settings or (tested and not _changes(tested, evidence)):
        return ""
    if view.trainer == "uptrend":
        if any(isinstance(value, Multiplied) for value in settings.values()):
            return ""  # a factor of a value that is not recorded
        sets = "".join(f" --set {shell_assignment(key, value)}" for key, value in settings.items())
        run_name = name.rpartition(": ")[2].replace(" ", "-")
        return f"uptrend train {quote(view.source)}{sets} --name {run_name}"
    if view.trainer in TRAINER_NAMES:
        return assignments(settings)
    return f"{assignments(settings)}  # in Uptrend's keys"


def _changes(values: Mapping[str, Any], evidence: _Evidence) -> Mapping[str, Any]:
    """Return values that are not in force, in the settings of a run's own trainer; in ours for one
    whose settings are not known.
    """
    trainer = evidence.case.view.trainer
    changes = complete_fix(Fix("", {"uptrend": values}), trainer, evidence.known).changes
    return changes.get(trainer if trainer in TRAINER_NAMES else "uptrend", {})
