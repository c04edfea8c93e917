"""Observer that writes a run's logs/train.log: one line per step, and whatever else a person should know of."""

import time
from collections import defaultdict
from typing import Any

from uptrend.present.formatting import duration, estimate, number, percent, plural, visible
from uptrend.records import Run, RunDirectory
from uptrend.records.directory import STARTS, parse_line
from uptrend.training.observer import StepRecord

# Figures of a step's line, where the step has them.
FIGURES = {
    "loss": "warmstart/loss/mean", "reward": "reward/mean", "dead groups": "advantage/dead/share",
    "length": "sampling/length/mean", "commands": "commands/rollout/mean", "command errors": "commands/error/share",
    "ended by time": "sampling/ended/time-limit/share", "KL": "kl/reference/mean", "entropy": "learner/entropy/mean",
    "gradient": "gradient/norm/before", "tokens/s": "time/tokens/per_second",
}  # fmt: skip
NAMED = 5  # rollouts with the same error that are named


def count_epochs(run: Run) -> str:
    """Say how often a run comes to each of its tasks: 40 examples, 4 per step, 10 steps per epoch, 20 epochs."""
    stages = [] if run.info.get("kind") else (run.info.get("tasks") or {}).get("stages", [])
    groups, told = run.config.get("sampling", {}).get("groups", 1), list[str]()
    ends = [*(stage["start"] for stage in stages[1:]), (run.steps or 0) + 1]
    for stage, end in zip(stages, ends, strict=True) if stages else ():
        steps = max(1, stage["count"] // groups)  # what is left of an epoch is not drawn: no step repeats a task
        epochs = number(max(0, end - stage["start"]) / steps)
        counted = f"{plural(stage['count'], 'example')}, {groups} per step, {plural(steps, 'step')} per epoch"
        begins = f"from step {stage['start']} on " if told else ""
        told.append(f"{begins}{counted}, {epochs} epoch{'' if epochs == '1' else 's'}")
    return "; ".join(told)


class RunLog:
    """Observer that logs steps, failed rollouts, retries, evaluations and events, each line at once."""

    def before(self, run: Run) -> None:
        """Log what the run is, and its events since it started or resumed."""
        self._directory, self._steps, self._began = RunDirectory(run.path), run.steps or 0, time.monotonic()
        self._first, self._read = run.last_step, 0
        events = run.events
        began = max((at for at, event in enumerate(events) if event["event"] in STARTS), default=0)
        for event in events[began:]:
            self._tell(event)
        self._read = (run.path / "events.jsonl").stat().st_size if events else 0
        self._directory.log(f"{run.name}: {run.config['model']['name']} on {run.config['tasks']['name']}")
        for text in (count_epochs(run), *(f"note: {note}" for note in run.info.get("notes", ()))):
            if text:
                self._directory.log(text)

    def step(self, record: StepRecord) -> None:
        """Log a step with its failures, and the evaluation after it."""
        self._pass_on()
        line = record.metrics
        if line:
            shown = [f"{name} {number(line[key])}" for name, key in FIGURES.items() if line.get(key) is not None]
            done = record.step - self._first
            left = (time.monotonic() - self._began) / max(1, done) * (self._steps - record.step)
            shown += [
                f"{duration(line.get('seconds/step'))} per step",
                *([f"{duration(left)} left"] if left > 0 else []),
            ]
            self._directory.log(f"step {record.step}/{self._steps}  {'  '.join(shown)}")
        else:
            self._began = time.monotonic()  # the evaluation before the first step says nothing about the pace
        # The columns of rollouts are made when they are first read: not here, unless there is something to say.
        if line.get("sampling/failed/count") or line.get("commands/sandbox_failures/count"):
            self._tell_failures(record)
        for label, held in {"held-out": record.evaluation, **record.sets}.items():
            if held is not None:
                accuracy = estimate(held.accuracy, held.low, held.high)
                parts = [f"{label} after step {held.step}: {accuracy} of {held.tasks} tasks"]
                parts += [
                    f"{name} {percent(share)}" for name, share in held.by_family.items() if len(held.by_family) > 1
                ]
                parts += [f"{held.failed} failed"] if held.failed else []
                self._directory.log(", ".join(parts))

    def after(self, run: Run) -> None:
        """Log the last events, the run's end among them."""
        del run
        self._pass_on()

    def _tell_failures(self, record: StepRecord) -> None:
        failed = defaultdict[str, list[str]](list)
        for r in record.rollouts:
            if r.error is not None:
                failed[r.error].append(r.name)
            if r.sandbox_failures and r.reward is not None:
                self._directory.log(f"rollout {r.name}: played again, {plural(r.sandbox_failures, 'sandbox failure')}")
        for error, names in failed.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            self._directory.log(f"failed: {', '.join(names[:NAMED])}{more}: {visible(error)}")

    def _pass_on(self) -> None:
        """Log the events that were written since the last time."""
        path = self._directory.path / "events.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        for line in new.splitlines():
            if (event := parse_line(line, path.name)) is not None:
                self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        fields = {key: value for key, value in event.items() if key not in ("event", "time")}
        at = event.get("time") if isinstance(event.get("time"), int | float) else None
        told = [f"{key} {value}" for key, value in fields.items() if isinstance(value, str | int | float)]
        told += [f"{found['severity']} {found['id']}" for found in fields.get("findings", ())]
        self._directory.log(visible(f"{event['event']}: {', '.join(told)}"), at)
