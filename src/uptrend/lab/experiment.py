"""From a hypothesis to its verdict: the specification frozen, arms × seeds made, faulty arms refused, the verdict."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any

from uptrend.doctor.report import plain
from uptrend.lab import judge, measure, plan, refuse, specification
from uptrend.lab.family import relatives
from uptrend.lab.faults import allowed, faults
from uptrend.lab.launcher import Launcher, PlannedRun
from uptrend.lab.notebook import Notebook
from uptrend.lab.times import ended_at, seconds_of
from uptrend.lab.workers.work import Outcome, Progress, Workers
from uptrend.records import Confidence, Hypothesis, Measured, Run, Status, Verdict
from uptrend.records.lines import write_whole

RUNS = "runs.json"
SCHEMA = 1


class ExperimentRuns:
    """One hypothesis's runs, as far as they are made."""

    def __init__(
        self,
        notebook: Notebook,
        h: Hypothesis,
        launcher: Launcher,
        *,
        makes_runs: bool = True,
        examine: Callable[[Run, set[str]], list[str]] = faults,
    ) -> None:
        self._faults = examine
        refuse.check(h, notebook.folder)
        self.notebook = notebook
        self.specification = specification.freeze(notebook, h, launcher)
        now = specification.describe(notebook, h, launcher, like=self.specification)
        self.changes = specification.changed(self.specification, now)
        self.h = self.specification.hypothesis_of(h)
        self.planned_runs = [] if self.changes else self._plan()
        then, by = self.specification.uptrend, now.uptrend
        if makes_runs and then != by and not all(plan.is_finished(planned) for planned in self.planned_runs):
            # Runs of two versions can't be compared; those of the first one alone can still be judged.
            self.changes, self.planned_runs = [*self.changes, f"uptrend {then} → {by}"], []
        self.outcomes: dict[str, Outcome] = {}
        self.refused: dict[str, str] = {}
        self.decided: Status | None = None
        self.seeds_used = self.h.seeds
        self._measured: dict[str, Measured] = {}
        self._examined = set[str]()

    def _plan(self) -> list[PlannedRun]:
        frozen, lab = self.specification, self.notebook.folder
        return plan.planned_runs(self.h, frozen.resolved(), lab, allowed(self.h), made_by=frozen.uptrend)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict should know besides."""
        told = [f"since the first step: {change}" for change in self.changes]
        if self.specification.before:
            times = "once" if self.specification.before == 1 else f"{self.specification.before} times"
            told.append(f"begun anew {times}; what had been found before is kept under before-N")
        if self.specification.more:
            seeds = ", ".join(map(str, self.specification.more))
            told.append(f"seeds {seeds} were added after results could be seen; judged by the confidence sequence")
        return tuple(told)

    @property
    def is_over(self) -> bool:
        """Whether no further run could change the verdict."""
        treated = [arm.name for arm in self.h.treated]
        return bool(
            self.changes
            or self.decided
            or self.h.control.name in self.refused
            or all(name in self.refused for name in treated)
            or all(planned.hash in self.outcomes or planned.arm in self.refused for planned in self.planned_runs)
        )

    def wants(self, planned: PlannedRun) -> bool:
        """Whether a run could still change the verdict."""
        mine = any(planned.hash == own.hash and own.arm not in self.refused for own in self.planned_runs)
        return mine and not self.is_over

    def take(self, outcome: Outcome) -> None:
        """Take in how a run ended, and see what follows from it."""
        for planned in self.planned_runs:
            if planned.hash == outcome.planned.hash:
                self._take(planned, replace(outcome, planned=planned))
                self.write_runs()

    def _take(self, planned: PlannedRun, outcome: Outcome) -> None:
        self.outcomes[planned.hash] = outcome
        if outcome.status == "refused":
            self.refused[planned.arm] = f"the cheap probes found {outcome.reason}"
        else:
            self._examine(planned.arm)
        if self.h.stops_early and not self.specification.more and not self.refused:
            self.decided = self.decided or self._is_decided()

    def _examine(self, arm: str) -> None:
        """Have the doctor look at an arm's first run by the order of seeds: the same one however work is shared out."""
        own = [planned for planned in self.planned_runs if planned.arm == arm]
        first = next((planned for planned in own if self._ended(planned) != "failed"), None)
        if first is None or self._ended(first) != "finished" or first.hash in self._examined:
            return
        self._examined.add(first.hash)
        found = self._faults(Run(first.folder), set(first.allows))
        if found:
            self.refused[arm] = f"the doctor found {found[0]} (in {first.folder.name})"

    def _ended(self, planned: PlannedRun) -> str | None:
        return self.outcomes[planned.hash].status if planned.hash in self.outcomes else None

    def _is_decided(self) -> Status | None:
        """What the confidence sequence says of whole seeds in their order; looked at after each of them."""
        for count in range(2, len(self.h.seeds)):
            measured = self.measured(self.h.seeds[:count])
            if measured is None:
                return None
            said = judge.is_decided(self.h, measured)
            if said is not None:
                self.seeds_used = self.h.seeds[:count]
                return said
        return None

    def measured(self, seeds: Iterable[int]) -> list[Measured] | None:
        """Every arm at these seeds; none where a run is still to come."""
        chosen = [e for seed in seeds for e in self.planned_runs if e.seed == seed]
        if any(e.hash not in self.outcomes for e in chosen):
            return None
        return [self._measure(e) for e in chosen if self.outcomes[e.hash].status == "finished"]

    def _measure(self, planned: PlannedRun) -> Measured:
        if planned.hash not in self._measured:
            run, lab = Run(planned.folder), self.notebook.folder
            self._measured[planned.hash] = measure.measure(run, self.h.metric, planned.arm, planned.seed, lab)
        return self._measured[planned.hash]

    def judge(self) -> Verdict:
        """The verdict from what is there."""
        finished = [e for e in self.planned_runs if self._status(e) == "finished" and e.arm not in self.refused]
        measured = [self._measure(e) for e in finished if e.seed in self.seeds_used]
        verdict = judge.judge(
            self.h,
            self._measured_before() if self.changes else measured,
            stopped_early=self.decided is not None or bool(self.specification.more) or self._waits,
            refused=self.refused,
            void=specification.void(self.changes),
        )
        return replace(self._marked(verdict), specification=self.specification.hash)

    @property
    def _waits(self) -> bool:
        """Whether a run is still to come: who judges before it has looked early, if only by half a pair."""
        return any(self._status(planned) == "waiting" for planned in self.planned_runs)

    def _measured_before(self) -> list[Measured]:
        """The figures of runs that were made before the specification changed; they decide nothing any more."""
        names, found = {arm.name for arm in self.h.arms}, []
        for row in self.rows():
            if row["status"] == "finished" and row["arm"] in names:
                run = Run(self.notebook.folder / row["folder"])
                found.append(measure.measure(run, self.h.metric, row["arm"], row["seed"], self.notebook.folder))
        return found

    def _marked(self, verdict: Verdict) -> Verdict:
        """With what takes from its weight: criteria that were written after their runs had been seen."""
        seen = specification.seen_before(self.notebook, self.h.id) | self._older_pairs()
        again = sum(planned.hash in seen for planned in self.planned_runs)
        if not again or verdict.status is Status.INCONCLUSIVE:
            return verdict
        because = f"{again} of {len(self.planned_runs)} runs had been seen before these criteria were written"
        return replace(verdict, confidence=Confidence.LOW, because=because)

    def _older_pairs(self) -> set[str]:
        """Runs of both sides that had ended when the criteria were written, made by a sweep or another hypothesis."""
        written = datetime.fromisoformat(self.specification.written).timestamp()
        older = [e for e in self.planned_runs if self._ended(e) == "finished" and ended_at(Run(e.folder)) < written]
        sides = [{e.seed for e in older if (e.arm == self.h.control.name) is side} for side in (True, False)]
        return {planned.hash for planned in older if planned.seed in sides[0] & sides[1]}

    def _status(self, planned: PlannedRun) -> str:
        if planned.hash in self.outcomes:
            return self.outcomes[planned.hash].status
        if planned.arm in self.refused:
            return "refused"
        return "skipped" if self.is_over else "waiting"

    def rows(self) -> list[dict[str, Any]]:
        """Every run with how it stands, in the order in which they are made."""
        if self.changes:
            return self.rows_before()
        rows = []
        for planned in self.planned_runs:
            outcome = self.outcomes.get(planned.hash)
            status = self._status(planned)
            has_run = (planned.folder / "run.json").exists()
            measured = self._measure(planned) if status == "finished" else None
            rows.append(
                {
                    "arm": planned.arm,
                    "seed": planned.seed,
                    "hash": planned.hash,
                    "folder": planned.folder.relative_to(self.notebook.folder).as_posix() if has_run else "",
                    "status": status,
                    "value": measured.value if measured else None,
                    "before": measured.before if measured else None,
                    "seconds": seconds_of(Run(planned.folder)) if has_run else None,
                    "reason": outcome.reason if outcome else self.refused.get(planned.arm, ""),
                }
            )
        return rows

    def rows_before(self) -> list[dict[str, Any]]:
        """The same as it was written down last."""
        path = self.notebook.results(self.h.id) / RUNS
        return list(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.exists() else []

    def write_runs(self) -> None:
        """Write runs.json, whole."""
        table = {"schema": SCHEMA, "specification": self.specification.hash, "runs": self.rows()}
        text = json.dumps(plain(table), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(self.notebook.results(self.h.id) / RUNS, text.encode())


def together(
    experiments: Sequence[ExperimentRuns], launcher: Launcher, workers: Workers, watch: Progress
) -> list[Verdict]:
    """Make the runs of several hypotheses side by side, each run once, and judge them as one family."""
    unique = plan.shared(planned for experiment in experiments for planned in experiment.planned_runs)
    for experiment in experiments:
        experiment.planned_runs = [replace(e, folder=unique[e.hash].folder) for e in experiment.planned_runs]
        if not experiment.changes:
            experiment.notebook.set_status(experiment.h.id, Status.TESTING, None)
            experiment.write_runs()

    def wanted(planned: PlannedRun) -> bool:
        return any(experiment.wants(planned) for experiment in experiments)

    in_turn = sorted(unique.values(), key=lambda planned: planned.seed)  # whole seeds of every hypothesis first
    with closing(workers.run(in_turn, launcher, wanted, watch)) as outcomes:
        for outcome in outcomes:
            for experiment in experiments:
                experiment.take(outcome)
            watch.ended(outcome)
            if all(experiment.is_over for experiment in experiments):
                break
    return judge_all(experiments)


def judge_all(experiments: Sequence[ExperimentRuns]) -> list[Verdict]:
    """Every hypothesis's verdict; of several at once, or judged together before, adjusted for their number."""
    verdicts = [experiment.judge() for experiment in experiments]
    family = relatives(experiments[0].notebook, {experiment.h.id for experiment in experiments}) if experiments else []
    return judge.adjust([*verdicts, *family])[: len(verdicts)]


def run(notebook: Notebook, h: Hypothesis, launcher: Launcher, workers: Workers, watch: Progress) -> Verdict:
    """Run one hypothesis to its verdict."""
    return together([ExperimentRuns(notebook, h, launcher)], launcher, workers, watch)[0]
