"""From a hypothesis to its verdict: the specification frozen, arms × seeds run, faulty arms
refused, the verdict.

A cure can be tested only on a control that has the cause. The doctor therefore reads the finished
runs for signs of the cause that the hypothesis is about. What a cause's page says it explains
counts as a sign of it too, if it is a warning or worse.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.doctor.checks import ALL_CHECKS
from uptrend.doctor.diagnose import diagnose
from uptrend.lab import judge, measure, plan, refuse, specification
from uptrend.lab.journal.stored import RUNS_FILE, VERDICT_FILE, read_verdict, write
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import Launcher, PlannedRun
from uptrend.lab.refuse import allowed_ids, faults
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

FindFaults = Callable[[Run, set[str]], list[str]]


@dataclass(frozen=True)
class Signs:
    """The doctor's answer on one run about one cause."""

    ids: tuple[str, ...]  # the cause itself, and alarms that it explains
    unseen: str = ""  # reason why the doctor could not tell, where there is no sign


@dataclass(frozen=True)
class Health:
    """State of a control before any cure; both texts are empty if it has the cause, or if no cause
    is named.
    """

    healthy: str = ""  # evidence that there is nothing to cure
    unseen: str = ""  # reason why the doctor can't tell that


def signs_of(run: Run, cause: str) -> Signs:
    """Return the signs of a cause in a finished run: by its records, and by the probes that ran
    before it.
    """
    report = diagnose(view_of(run))
    severities: dict[str, Severity] = {}
    for finding in report.findings:
        for part in (finding, *finding.explains):
            severities[part.id] = part.severity
    finished_probes: set[str] = set()
    for event in run.events:
        if event.get("event") != "preflight":
            continue
        for row in event["findings"]:
            severities[row["id"]] = Severity(row["severity"])
        for probe in event.get("probes", ()):
            if not probe.get("skipped"):
                finished_probes.add(probe["name"])

    symptoms = all_symptoms(cause, severities.keys())
    signs: list[str] = []
    for id, severity in severities.items():
        if id == cause or (id in symptoms and severity is not Severity.NOTE):
            signs.append(id)
    if signs:
        return Signs(tuple(sorted(signs)))

    if CATALOGUE[cause].experiment.probe in finished_probes:
        return Signs(())  # it would have found the cause
    needs = {lack.id: lack.needs for lack in report.cannot_tell}
    if cause in needs:
        return Signs((), needs[cause])
    if not any(cause in check.ids for check in ALL_CHECKS):
        return Signs((), "a run's records do not show it")
    return Signs(())


def health_of_control(hypothesis: Hypothesis, signs: Mapping[str, Sequence[Signs]]) -> Health:
    """Judge by the signs in each arm's finished runs whether the control has the cause that a
    hypothesis is about.
    """
    name = hypothesis.control.name
    cause = hypothesis.cause
    control = signs.get(name, ())
    if not control or any(run.ids for run in control):
        return Health()
    for arm in hypothesis.treated:
        # Where an arm has the cause and the control has not, the claim is that the arm brings it
        # about.
        if any(cause in run.ids for run in signs.get(arm.name, ())):
            return Health()
    for run in control:
        if run.unseen:
            return Health(
                unseen=f"the doctor could not tell whether {name} has {cause}: {run.unseen}"
            )
    runs = plural(len(control), "finished run")
    return Health(healthy=f"the doctor finds no sign of {cause} in {runs} of {name}")


class ExperimentRuns:
    """One hypothesis's runs, as far as they are made.

    A run begins as "waiting" and ends by its outcome, as "finished", "failed" or "refused" (by the
    cheap probes). Without an outcome it is "refused" once its arm is, for a fault in another of the
    arm's runs, and else "skipped" once the experiment is over. That is so when no run could change
    the verdict any more: all have ended, the control or every other arm is refused, the answer was
    clear early, or the specification changed, which voids it.
    """

    def __init__(
        self,
        notebook: Notebook,
        hypothesis: Hypothesis,
        launcher: Launcher,
        makes_runs: bool = True,
        find_faults: FindFaults = faults,
    ) -> None:
        recorded = specification.read(notebook, hypothesis.id)
        n_added = len(recorded.more) if recorded else 0
        refuse.check(hypothesis, notebook.folder, makes_runs=makes_runs, more_seeds=n_added)
        self._find_faults = find_faults
        self.notebook = notebook

        frozen = specification.freeze(notebook, hypothesis, launcher)
        now = specification.describe(notebook, hypothesis, launcher, like=frozen)
        self.specification = frozen
        self.hypothesis = replace(hypothesis, seeds=(*hypothesis.seeds, *frozen.more))
        # Values beside its own in which an arm differs from the control, as sentences.
        self.side_effects = specification.side_effects(now)
        # Changes since the specification was frozen; with any, no run is planned.
        self.changes = specification.changed(frozen, now)
        self.planned_runs: list[PlannedRun] = []
        if not self.changes:
            self.planned_runs = self._plan()
        is_other_version = frozen.uptrend != now.uptrend
        if makes_runs and is_other_version and not all(map(plan.is_finished, self.planned_runs)):
            # Runs of two versions can't be compared; those of the first one alone can still be
            # judged.
            self.changes = [*self.changes, f"uptrend {frozen.uptrend} → {now.uptrend}"]
            self.planned_runs = []

        # Ends of runs, by hash.
        self.outcomes: dict[str, Outcome] = {}
        # Reason why an arm is refused, by name.
        self.refused: dict[str, str] = {}
        # The answer, where it was clear before the last seed, and the seeds that gave it.
        self.decided: Status | None = None
        self.seeds_used = self.hypothesis.seeds
        # What is computed once, by hash of the run.
        self._measured: dict[str, Measured] = {}
        self._signs: dict[str, Signs] = {}
        self._examined: set[str] = set()

    def _plan(self) -> list[PlannedRun]:
        """Plan the runs of the frozen specification."""
        return plan.planned_runs(
            self.hypothesis,
            self.specification.resolved(),
            self.notebook.folder,
            allowed_ids(self.hypothesis),
            made_by=self.specification.uptrend,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that a reader of the verdict needs."""
        notes = [f"since the first step: {change}" for change in self.changes]
        notes += self.side_effects
        n_restarts = self.specification.before
        if n_restarts:
            times = "once" if n_restarts == 1 else f"{n_restarts} times"
            notes.append(f"begun anew {times}; what had been found before is kept under before-N")
        if self.specification.more:
            seeds = ", ".join(map(str, self.specification.more))
            notes.append(
                f"seeds {seeds} were added after results could be seen; judged by the confidence"
                " sequence"
            )
        return tuple(notes)

    @property
    def is_over(self) -> bool:
        """True if no further run could change the verdict."""
        if self.changes or self.decided or self.hypothesis.control.name in self.refused:
            return True
        if all(arm.name in self.refused for arm in self.hypothesis.treated):
            return True
        return all(
            planned.hash in self.outcomes or planned.arm in self.refused
            for planned in self.planned_runs
        )

    def wants(self, planned: PlannedRun) -> bool:
        """Return True if a run could still change the verdict."""
        open_hashes = {own.hash for own in self.planned_runs if own.arm not in self.refused}
        return planned.hash in open_hashes and not self.is_over

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
            may_stop = self.hypothesis.stops_early and not self.decided
            if may_stop and not self.specification.more and not self.refused:
                self._decide_early()
            self.write_runs()

    def _examine(self, arm: str) -> None:
        """Have the doctor examine an arm's first run, and refuse the arm for a fault."""
        # First by the order of seeds: the same run however work is shared out.
        first: PlannedRun | None = None
        for planned in self.planned_runs:
            if planned.arm == arm and self._end_status(planned) != "failed":
                first = planned
                break
        if first is None or self._end_status(first) != "finished" or first.hash in self._examined:
            return
        self._examined.add(first.hash)
        run_faults = self._find_faults(Run(first.folder), set(first.allows))
        if run_faults:
            self.refused[arm] = f"the doctor found {run_faults[0]} (in {first.folder.name})"

    def _end_status(self, planned: PlannedRun) -> str | None:
        """Return the status with which a run ended; None before its end."""
        return self.outcomes[planned.hash].status if planned.hash in self.outcomes else None

    def _decide_early(self) -> None:
        """Apply the confidence sequence to whole seeds in their order, as far as all their runs
        have ended.
        """
        # Not with all seeds: then nothing is left to stop, and `judge` takes Student's interval,
        # which is narrower.
        for count in range(2, len(self.hypothesis.seeds)):
            seeds = self.hypothesis.seeds[:count]
            own = [planned for planned in self.planned_runs if planned.seed in seeds]
            if not all(planned.hash in self.outcomes for planned in own):
                return
            finished = [planned for planned in own if self._end_status(planned) == "finished"]
            measured = [self._measure(planned) for planned in finished]
            self.decided = judge.is_decided(self.hypothesis, measured)
            if self.decided:
                self.seeds_used = seeds
                return

    def _measure(self, planned: PlannedRun) -> Measured:
        """Return a finished run's figure; measured once."""
        if planned.hash not in self._measured:
            self._measured[planned.hash] = measure.measure(
                Run(planned.folder),
                self.hypothesis.metric,
                planned.arm,
                planned.seed,
                self.notebook.folder,
            )
        return self._measured[planned.hash]

    def judge(self) -> Verdict:
        """Return the verdict from the runs there are."""
        finished: list[PlannedRun] = []
        measured: list[Measured] = []
        is_waiting = False
        for planned in self.planned_runs:
            status = self._status(planned)
            is_waiting |= status == "waiting"
            if status == "finished" and planned.arm not in self.refused:
                finished.append(planned)
                if planned.seed in self.seeds_used:
                    measured.append(self._measure(planned))

        void = ""
        if self.changes:
            changes = "; ".join(self.changes)
            void = f"the specification changed after the first step: {changes}"
            measured = self._measured_before()
        # A run still to come makes this an early look, if only by half a pair.
        is_early = self.decided is not None or bool(self.specification.more) or is_waiting
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

        # Criteria that were written after their runs had been seen are no test of them.
        seen = (
            specification.seen_before(self.notebook, self.hypothesis.id)
            | self._hashes_of_older_pairs()
        )
        n_seen = sum(planned.hash in seen for planned in self.planned_runs)
        if not n_seen or verdict.status is Status.INCONCLUSIVE:
            return verdict
        because = (
            f"{n_seen} of {len(self.planned_runs)} runs had been seen before these criteria were"
            " written"
        )
        return replace(verdict, confidence=Confidence.LOW, because=because)

    def _measured_before(self) -> list[Measured]:
        """Return figures of the runs in runs.json, for a verdict that they no longer decide."""
        lab = self.notebook.folder
        arms = {arm.name for arm in self.hypothesis.arms}
        measured: list[Measured] = []
        for row in self.rows_before():
            if row["status"] == "finished" and row["arm"] in arms:
                run = Run(lab / row["folder"])
                metric = self.hypothesis.metric
                measured.append(measure.measure(run, metric, row["arm"], row["seed"], lab))
        return measured

    def _health(self, finished: Sequence[PlannedRun]) -> Health:
        """Return whether the control has what the arms are to cure, by the doctor."""
        if not self.hypothesis.cause:
            return Health()
        signs: dict[str, list[Signs]] = {}
        for planned in finished:
            signs.setdefault(planned.arm, []).append(self._signs_of(planned))
        return health_of_control(self.hypothesis, signs)

    def _signs_of(self, planned: PlannedRun) -> Signs:
        """Return the signs of the hypothesis's cause in a finished run; looked for once."""
        if planned.hash not in self._signs:
            # A replay has the rewards of its source, and the source has what they show.
            run = Run(planned.source.run) if planned.source else Run(planned.folder)
            self._signs[planned.hash] = signs_of(run, self.hypothesis.cause)
        return self._signs[planned.hash]

    def _hashes_of_older_pairs(self) -> set[str]:
        """Return hashes of runs that ended before the criteria were written, as those of a sweep or
        of another hypothesis did, if that is so of a seed's control and of an arm: only then was a
        difference to be seen.
        """
        written = datetime.fromisoformat(self.specification.written).timestamp()
        older: list[PlannedRun] = []
        control_seeds: set[int] = set()
        arm_seeds: set[int] = set()
        for planned in self.planned_runs:
            if self._end_status(planned) != "finished":
                continue
            events = Run(planned.folder).events
            ends = [event["time"] for event in events if event["event"] == "finished"]
            if ends and ends[-1] < written:
                older.append(planned)
                is_control = planned.arm == self.hypothesis.control.name
                side = control_seeds if is_control else arm_seeds
                side.add(planned.seed)
        paired_seeds = control_seeds & arm_seeds
        return {planned.hash for planned in older if planned.seed in paired_seeds}

    def _status(self, planned: PlannedRun) -> str:
        """Return the status of a run, made or not; the class lists them."""
        end_status = self._end_status(planned)
        if end_status:
            return end_status
        if planned.arm in self.refused:
            return "refused"
        return "skipped" if self.is_over else "waiting"

    def rows(self) -> list[dict[str, Any]]:
        """Return every run with its status, in the order in which they are made."""
        if self.changes:
            return self.rows_before()
        return [self._row(planned) for planned in self.planned_runs]

    def _row(self, planned: PlannedRun) -> dict[str, Any]:
        """Return a run's row of runs.json."""
        status = self._status(planned)
        folder = ""
        seconds = None
        if (planned.folder / "run.json").exists():
            folder = planned.folder.relative_to(self.notebook.folder).as_posix()
            seconds = seconds_of(Run(planned.folder))
        measured = self._measure(planned) if status == "finished" else None
        outcome = self.outcomes.get(planned.hash)
        return {
            "arm": planned.arm,
            "seed": planned.seed,
            "hash": planned.hash,
            "folder": folder,
            "status": status,
            "value": measured.value if measured else None,
            "before": measured.before if measured else None,
            "seconds": seconds,
            "reason": outcome.reason if outcome else self.refused.get(planned.arm, ""),
        }

    def rows_before(self) -> list[dict[str, Any]]:
        """Return the rows that were written last."""
        path = self.notebook.results(self.hypothesis.id) / RUNS_FILE
        return list(parse_json(read_file(path))["runs"]) if path.exists() else []

    def write_runs(self) -> None:
        """Write runs.json, whole."""
        table = {"specification": self.specification.hash, "runs": self.rows()}
        write(self.notebook.results(self.hypothesis.id) / RUNS_FILE, table, indent=1)


def run_experiments(
    experiments: Sequence[ExperimentRuns], launcher: Launcher, workers: Workers, watch: Progress
) -> list[Verdict]:
    """Make the runs of several hypotheses side by side, each run once, and judge them as one
    family.
    """
    all_runs: list[PlannedRun] = []
    for experiment in experiments:
        all_runs += experiment.planned_runs
    unique = plan.shared(all_runs)
    for experiment in experiments:
        own = experiment.planned_runs
        experiment.planned_runs = [
            replace(planned, folder=unique[planned.hash].folder) for planned in own
        ]
        if not experiment.changes:
            experiment.notebook.set_status(experiment.hypothesis.id, Status.TESTING, None)
            experiment.write_runs()

    def is_wanted(planned: PlannedRun) -> bool:
        return any(experiment.wants(planned) for experiment in experiments)

    # Whole seeds of every hypothesis first.
    by_seed = sorted(unique.values(), key=lambda planned: planned.seed)
    with closing(workers.run(by_seed, launcher, is_wanted, watch)) as outcomes:
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
    # Judged again alone, a hypothesis that was adjusted with others is still one of several.
    adjusted = _adjusted_verdicts(experiments)
    ids = {experiment.hypothesis.id for experiment in experiments}
    family: list[Verdict] = []
    if adjusted.keys() & ids:
        family = [verdict for id, verdict in adjusted.items() if id not in ids]
    return judge.adjust([*verdicts, *family])[: len(verdicts)]


def _adjusted_verdicts(experiments: Sequence[ExperimentRuns]) -> dict[str, Verdict]:
    """Read the verdicts on record that were adjusted as one family, by hypothesis."""
    paths: set[Path] = set()
    for experiment in experiments:
        folder = experiment.notebook.folder
        paths.update(folder.glob(f"experimental-results/h*/{VERDICT_FILE}"))
    adjusted: dict[str, Verdict] = {}
    for path in sorted(paths):
        recorded = read_verdict(path)
        if recorded is None:
            continue
        verdict, _ = recorded
        if any(comparison.p_adjusted is not None for comparison in verdict.comparisons):
            adjusted[path.parent.name] = verdict
    return adjusted


def seconds_of(run: Run) -> float | None:
    """Return the time that a run was worked at: from each beginning to the last event before the
    next one.
    """
    total = 0.0
    began: float | None = None
    last: float | None = None
    for event in run.events:
        time = event.get("time")
        if not isinstance(time, int | float):
            continue
        if event["event"] in ("started", "resumed"):
            if began is not None and last is not None:
                total += last - began
            began = time
        last = time
    if began is None or last is None:
        return None
    return round(total + last - began, 2)
