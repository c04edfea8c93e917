"""From a hypothesis to its verdict: the specification frozen, arms × seeds run, faulty arms
refused, the verdict.

A cure is tested on what is ill: the doctor reads the finished runs, as it does for whoever asks,
for signs of the cause that the hypothesis is about. What a cause's page says it explains counts as
a sign of it, where it asks for something to be done.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.doctor.checks import ALL_CHECKS
from uptrend.doctor.diagnose import diagnose
from uptrend.lab import judge, measure, plan, refuse, specification
from uptrend.lab.journal.stored import RUNS_FILE, VERDICT_FILE, read_verdict, write
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import Launcher, PlannedRun
from uptrend.lab.refuse import allowed, faults
from uptrend.lab.workers import Outcome, Progress, Workers
from uptrend.present.formatting import plural
from uptrend.records import (
    Confidence,
    Hypothesis,
    Measured,
    Run,
    Severity,
    Status,
    Verdict,
    view_of,
)
from uptrend.records.files import parse_json, read_file

Faults = Callable[[Run, set[str]], list[str]]


@dataclass(frozen=True)
class Signs:
    """The doctor's answer on one run about one cause."""

    found: tuple[str, ...]  # the cause itself, and alarms that it explains
    unseen: str = ""  # reason why the doctor could not tell, where it found nothing


@dataclass(frozen=True)
class Health:
    """State of a control before any cure; both are empty where it has the cause, or where no cause
    is named.
    """

    healthy: str = ""  # evidence that there is nothing to cure
    unseen: str = ""  # reason why that could not be told


def signs_of(run: Run, cause: str) -> Signs:
    """Return the signs of a cause in a finished run: by its records, and by the probes that were
    asked before it.
    """
    report = diagnose(view_of(run))
    severity = {each.id: each.severity for top in report.findings for each in (top, *top.explains)}
    probed = set[str]()
    for event in run.events:
        if event.get("event") == "preflight":
            severity |= {
                finding["id"]: Severity(finding["severity"]) for finding in event["findings"]
            }
            probed |= {
                probe["name"] for probe in event.get("probes", ()) if not probe.get("skipped")
            }
    alarms = {id for id, how_bad in severity.items() if how_bad is not Severity.NOTE}
    found = ({cause} & severity.keys()) | (all_symptoms(cause, severity.keys()) & alarms)
    if found:
        return Signs(tuple(sorted(found)))
    if CATALOGUE[cause].experiment.probe in probed:
        return Signs(())
    lacking = {lack.id: lack.needs for lack in report.cannot_tell}
    if not any(cause in check.ids for check in ALL_CHECKS):
        lacking.setdefault(cause, "a run's records do not show it")
    return Signs((), lacking.get(cause, ""))


def health_of_control(hypothesis: Hypothesis, signs: Mapping[str, Sequence[Signs]]) -> Health:
    """Judge by the signs in each arm's finished runs whether the control has the cause that a
    hypothesis is about.
    """
    control = signs.get(hypothesis.control.name, ())
    # Where an arm has the cause and the control has not, the claim is that the arm brings it about.
    is_caused = any(
        hypothesis.cause in run.found
        for arm in hypothesis.treated
        for run in signs.get(arm.name, ())
    )
    if not control or is_caused or any(run.found for run in control):
        return Health()
    unseen = next((run.unseen for run in control if run.unseen), "")
    if unseen:
        return Health(
            unseen=f"the doctor could not tell whether {hypothesis.control.name} has"
            f" {hypothesis.cause}: {unseen}"
        )
    runs = plural(len(control), "finished run")
    return Health(
        healthy=f"the doctor finds no sign of {hypothesis.cause} in {runs} of"
        f" {hypothesis.control.name}"
    )


class ExperimentRuns:
    """One hypothesis's runs, as far as they are made."""

    def __init__(
        self,
        notebook: Notebook,
        hypothesis: Hypothesis,
        launcher: Launcher,
        makes_runs: bool = True,
        examine: Faults = faults,
    ) -> None:
        recorded = specification.read(notebook, hypothesis.id)
        added = len(recorded.more) if recorded else 0
        refuse.check(hypothesis, notebook.folder, makes_runs=makes_runs, more_seeds=added)
        self._find_faults = examine
        self.notebook = notebook
        self.specification = frozen = specification.freeze(notebook, hypothesis, launcher)
        now = specification.describe(notebook, hypothesis, launcher, like=frozen)
        self.changes = specification.changed(frozen, now)
        self.hypothesis = replace(hypothesis, seeds=(*hypothesis.seeds, *frozen.more))
        self.planned_runs = list[PlannedRun]()
        if not self.changes:
            arms = frozen.resolved()
            folder = notebook.folder
            by = frozen.uptrend
            self.planned_runs = plan.planned_runs(
                self.hypothesis, arms, folder, allowed(self.hypothesis), made_by=by
            )
        if (
            makes_runs
            and frozen.uptrend != now.uptrend
            and not all(map(plan.is_finished, self.planned_runs))
        ):
            # Runs of two versions can't be compared; those of the first one alone can still be
            # judged.
            self.changes = [*self.changes, f"uptrend {frozen.uptrend} → {now.uptrend}"]
            self.planned_runs = []
        self.outcomes: dict[str, Outcome] = {}
        self.refused: dict[str, str] = {}
        self.decided: Status | None = None
        self.seeds_used = self.hypothesis.seeds
        self._measured: dict[str, Measured] = {}
        self._signs: dict[str, Signs] = {}
        self._examined = set[str]()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that a reader of the verdict needs."""
        told = [f"since the first step: {change}" for change in self.changes]
        if count := self.specification.before:
            times = "once" if count == 1 else f"{count} times"
            told.append(f"begun anew {times}; what had been found before is kept under before-N")
        if more := ", ".join(map(str, self.specification.more)):
            told.append(
                f"seeds {more} were added after results could be seen; judged by the confidence"
                " sequence"
            )
        return tuple(told)

    @property
    def is_over(self) -> bool:
        """True if no further run could change the verdict."""
        return bool(
            self.changes
            or self.decided
            or self.hypothesis.control.name in self.refused
            or all(arm.name in self.refused for arm in self.hypothesis.treated)
            or all(
                planned.hash in self.outcomes or planned.arm in self.refused
                for planned in self.planned_runs
            )
        )

    def wants(self, planned: PlannedRun) -> bool:
        """Return True if a run could still change the verdict."""
        mine = any(
            planned.hash == own.hash and own.arm not in self.refused for own in self.planned_runs
        )
        return mine and not self.is_over

    def take(self, outcome: Outcome) -> None:
        """Take in the end of a run: refuse its arm for a fault, and stop early if the answer is
        clear.
        """
        for planned in self.planned_runs:
            if planned.hash != outcome.planned.hash:
                continue
            self.outcomes[planned.hash] = replace(outcome, planned=planned)
            if outcome.status == "refused":
                self.refused[planned.arm] = f"the cheap probes found {outcome.reason}"
            else:
                self._examine(planned.arm)
            if (
                self.hypothesis.stops_early
                and not self.specification.more
                and not self.refused
                and not self.decided
            ):
                self._look()
            self.write_runs()

    def _examine(self, arm: str) -> None:
        # Have the doctor look at an arm's first run by the order of seeds: the same one however
        # work is shared out.
        own = [planned for planned in self.planned_runs if planned.arm == arm]
        first = next((planned for planned in own if self._ended(planned) != "failed"), None)
        if first is None or self._ended(first) != "finished" or first.hash in self._examined:
            return
        self._examined.add(first.hash)
        if found := self._find_faults(Run(first.folder), set(first.allows)):
            self.refused[arm] = f"the doctor found {found[0]} (in {first.folder.name})"

    def _ended(self, planned: PlannedRun) -> str | None:
        return self.outcomes[planned.hash].status if planned.hash in self.outcomes else None

    def _look(self) -> None:
        # Ask the confidence sequence about whole seeds in their order, as far as all their runs
        # have ended.
        for count in range(2, len(self.hypothesis.seeds)):
            seeds = self.hypothesis.seeds[:count]
            chosen = [planned for planned in self.planned_runs if planned.seed in seeds]
            if self.decided or not all(planned.hash in self.outcomes for planned in chosen):
                return
            finished = [
                self._measure(planned) for planned in chosen if self._ended(planned) == "finished"
            ]
            self.decided = judge.is_decided(self.hypothesis, finished)
            self.seeds_used = seeds if self.decided else self.hypothesis.seeds

    def _measure(self, planned: PlannedRun) -> Measured:
        if planned.hash not in self._measured:
            run = Run(planned.folder)
            lab = self.notebook.folder
            self._measured[planned.hash] = measure.measure(
                run, self.hypothesis.metric, planned.arm, planned.seed, lab
            )
        return self._measured[planned.hash]

    def judge(self) -> Verdict:
        """Return the verdict from the runs there are."""
        statuses = {planned.hash: self._status(planned) for planned in self.planned_runs}
        finished = [
            e
            for e in self.planned_runs
            if statuses[e.hash] == "finished" and e.arm not in self.refused
        ]
        measured = [
            self._measure(planned) for planned in finished if planned.seed in self.seeds_used
        ]
        if self.changes:  # figures of the runs made before; they decide nothing any more
            names = {arm.name for arm in self.hypothesis.arms}
            lab = self.notebook.folder
            metric = self.hypothesis.metric
            rows = [
                row
                for row in self.rows_before()
                if row["status"] == "finished" and row["arm"] in names
            ]
            measured = [
                measure.measure(Run(lab / x["folder"]), metric, x["arm"], x["seed"], lab)
                for x in rows
            ]
        # A run still to come makes this an early look, if only by half a pair.
        changes = "; ".join(self.changes)
        is_early = (
            self.decided is not None
            or bool(self.specification.more)
            or "waiting" in statuses.values()
        )
        void = f"the specification changed after the first step: {changes}" if changes else ""
        health = self._health(finished)
        verdict = judge.judge(
            self.hypothesis,
            measured,
            stopped_early=is_early,
            refused=self.refused,
            void=void,
            healthy=health.healthy,
            unseen=health.unseen,
        )
        verdict = replace(verdict, specification=self.specification.hash)
        seen = specification.seen_before(self.notebook, self.hypothesis.id) | self._older_pairs()
        again = sum(planned.hash in seen for planned in self.planned_runs)
        if not again or verdict.status is Status.INCONCLUSIVE:
            return verdict
        # Criteria that were written after their runs had been seen are no test of them.
        because = (
            f"{again} of {len(self.planned_runs)} runs had been seen before these criteria were"
            " written"
        )
        return replace(verdict, confidence=Confidence.LOW, because=because)

    def _health(self, finished: Sequence[PlannedRun]) -> Health:
        # The doctor's word on whether the control has what the arms are to cure.
        if not self.hypothesis.cause:
            return Health()
        signs: dict[str, list[Signs]] = {}
        for planned in finished:
            signs.setdefault(planned.arm, []).append(self._signs_of(planned))
        return health_of_control(self.hypothesis, signs)

    def _signs_of(self, planned: PlannedRun) -> Signs:
        if planned.hash not in self._signs:
            # A replay has the rewards of its source, and the source has what they show.
            run = Run(planned.source.run) if planned.source else Run(planned.folder)
            self._signs[planned.hash] = signs_of(run, self.hypothesis.cause)
        return self._signs[planned.hash]

    def _older_pairs(self) -> set[str]:
        # Runs of both sides that ended before the criteria were written, made by a sweep or a
        # hypothesis.
        written = datetime.fromisoformat(self.specification.written).timestamp()
        ended = [e for e in self.planned_runs if self._ended(e) == "finished"]
        events = {
            e.hash: [x for x in Run(e.folder).events if x["event"] == "finished"] for e in ended
        }
        older = [e for e in ended if events[e.hash] and events[e.hash][-1]["time"] < written]
        sides = [
            {e.seed for e in older if (e.arm == self.hypothesis.control.name) is side}
            for side in (True, False)
        ]
        return {planned.hash for planned in older if planned.seed in sides[0] & sides[1]}

    def _status(self, planned: PlannedRun) -> str:
        missing = (
            "refused" if planned.arm in self.refused else "skipped" if self.is_over else "waiting"
        )
        return self._ended(planned) or missing

    def rows(self) -> list[dict[str, Any]]:
        """Return every run with its status, in the order in which they are made."""
        if self.changes:
            return self.rows_before()
        rows = []
        for planned in self.planned_runs:
            outcome = self.outcomes.get(planned.hash)
            status = self._status(planned)
            has_run = (planned.folder / "run.json").exists()
            measured = self._measure(planned) if status == "finished" else None
            folder = planned.folder.relative_to(self.notebook.folder).as_posix() if has_run else ""
            rows.append(
                {
                    "arm": planned.arm,
                    "seed": planned.seed,
                    "hash": planned.hash,
                    "folder": folder,
                    "status": status,
                    "value": measured.value if measured else None,
                    "before": measured.before if measured else None,
                    "seconds": seconds_of(Run(planned.folder)) if has_run else None,
                    "reason": outcome.reason if outcome else self.refused.get(planned.arm, ""),
                }
            )
        return rows

    def rows_before(self) -> list[dict[str, Any]]:
        """Return the rows that were written last."""
        path = self.notebook.results(self.hypothesis.id) / RUNS_FILE
        return list(parse_json(read_file(path))["runs"]) if path.exists() else []

    def write_runs(self) -> None:
        """Write runs.json, whole."""
        table = {"specification": self.specification.hash, "runs": self.rows()}
        write(self.notebook.results(self.hypothesis.id) / RUNS_FILE, table, indent=1)


def together(
    experiments: Sequence[ExperimentRuns], launcher: Launcher, workers: Workers, watch: Progress
) -> list[Verdict]:
    """Make the runs of several hypotheses side by side, each run once, and judge them as one
    family.
    """
    unique = plan.shared(
        planned for experiment in experiments for planned in experiment.planned_runs
    )
    for experiment in experiments:
        experiment.planned_runs = [
            replace(e, folder=unique[e.hash].folder) for e in experiment.planned_runs
        ]
        if not experiment.changes:
            experiment.notebook.set_status(experiment.hypothesis.id, Status.TESTING, None)
            experiment.write_runs()

    # whole seeds of every hypothesis first
    in_turn = sorted(unique.values(), key=lambda planned: planned.seed)
    making = workers.run(
        in_turn, launcher, lambda planned: any(e.wants(planned) for e in experiments), watch
    )
    with closing(making) as outcomes:
        for outcome in outcomes:
            for experiment in experiments:
                experiment.take(outcome)
            watch.ended(outcome)
            if all(experiment.is_over for experiment in experiments):
                break
    return judge_all(experiments)


def judge_all(experiments: Sequence[ExperimentRuns]) -> list[Verdict]:
    """Return every hypothesis's verdict; of several at once, or judged together before, adjusted
    for their number.
    """
    verdicts = [experiment.judge() for experiment in experiments]
    ids = {experiment.hypothesis.id for experiment in experiments}
    # Judged again alone, a hypothesis that was adjusted with others is still one of several.
    paths = {
        path
        for e in experiments
        for path in e.notebook.folder.glob(f"experimental-results/h*/{VERDICT_FILE}")
    }
    found = {path.parent.name: pair[0] for path in sorted(paths) if (pair := read_verdict(path))}
    adjusted = {
        id: v for id, v in found.items() if any(one.p_adjusted is not None for one in v.comparisons)
    }
    family = (
        [verdict for id, verdict in adjusted.items() if id not in ids]
        if adjusted.keys() & ids
        else []
    )
    return judge.adjust([*verdicts, *family])[: len(verdicts)]


def seconds_of(run: Run) -> float | None:
    """Return the time that a run was worked at: from each beginning to the last event before the
    next one.
    """
    total = 0.0
    began = None
    last = None
    for event in (event for event in run.events if isinstance(event.get("time"), int | float)):
        if event["event"] in ("started", "resumed"):
            total += last - began if began is not None and last is not None else 0.0
            began = event["time"]
        last = event["time"]
    return None if began is None or last is None else round(total + last - began, 2)
