"""Write `doctor/findings/likelihoods.toml`, which the differential reads: what trial runs with and
without each cause looked like, what public threads had, and how sure first findings may be.

    python -m benchmarks.faults.blind.likelihood .faults/a .faults/own --threads threads.jsonl
    python -m benchmarks.faults.blind.likelihood --check .faults/b           stated against right
    python -m benchmarks.faults.blind.likelihood --calibrate .faults/b       and writes that down

The folders hold runs of a blind split, or the sample of our own faults. A thread has `our_id`: a
cause, several with `; ` between them, NONE, or NOT-A-FAULT. Calibration uses runs that no rule was
fitted to. Runs whose fault is inert are left out, and twins.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.faults.blind.score import changes
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.scalars import write_trainer_state

from uptrend.bridge.importers import read_views
from uptrend.doctor.catalogue import CATALOGUE, LIKELIHOODS_FILE, right_share
from uptrend.doctor.check import alarms
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.differential import CHECKED_IDS
from uptrend.records import Finding, RecordError, Report, Run, RunView, view_of

SOURCES = ("records", "scalars")
HEAD = """\
# Written by benchmarks/faults/blind/likelihood.py. In runs that had a cause (looked) and others (without): how often
# its checks saw a sign of it, where they could look. Links: how often the cause was among those that another finding
# is explained by, resembles or is noted beside, and how often by chance. Later: findings behind a wrong first one.
# Threads: public ones whose cause was established. Calibration: first findings of runs that no rule was fitted to.
"""
# Bounds of the stated probabilities that are compared with the share of right ones.
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Trial:
    """One run of a trial as one source shows it."""

    name: str
    cause: str | None
    right: frozenset[str]
    """Ids that name the cause as rightly; empty for a run without a fault."""
    source: str
    report: Report
    probes: dict[str, bool]
    """Probes of preflight that were asked, and whether they passed."""


def trials_of(folder: Path) -> Iterator[Trial]:
    """Yield every run of a folder by records and by scalars."""
    for place in sorted(path.parent for path in folder.glob("*/case.json")):
        case = json.loads((place / "case.json").read_text())
        is_own = "fault" in case
        if not is_own and _is_left_out(place):
            continue
        cause = case["fault"] if is_own else case["cause"]
        if is_own:
            right = FAULTS[cause].right if cause else frozenset[str]()
        else:
            right = frozenset({cause, *case["also"]} - {None})
        try:
            view = view_of(Run(place / "run"))
            probes = _probes(place, view)
            yield Trial(place.name, cause, right, "records", diagnose(view), probes)
            log = place / "trainer_state.json"
            if not log.exists():
                write_trainer_state(Run(place / "run"), log)
            longest = max(read_views(log), key=lambda view: len(view.steps))
            yield Trial(place.name, cause, right, "scalars", diagnose(longest), {})
        except (RecordError, ValueError, KeyError) as error:
            print(f"{place.name}: left out: {error}")


def _is_left_out(place: Path) -> bool:
    name, kind, _ = place.name.split("~")
    if kind == "twin":
        return True
    twin = next(iter(sorted(place.parent.glob(f"{name}~twin~*"))), None)
    return kind == "planted" and twin is not None and not changes(twin, place)


def _probes(place: Path, view: RunView) -> dict[str, bool]:
    file = place / "preflight.json"
    if file.exists():
        rows = json.loads(file.read_text())["probes"]
    else:
        events = [event for event in view.events if event.get("event") == "preflight"]
        rows = events[-1]["probes"] if events else []
    return {row["name"]: bool(row["ok"]) for row in rows if not row.get("skipped")}


def listed(report: Report) -> list[Finding]:
    """Return causes and symptoms."""
    return [finding for cause in report.findings for finding in (cause, *cause.explains)]


def count(trials: Sequence[Trial]) -> dict[str, Counter[str]]:
    """Count by the dotted name of a table."""
    tables: dict[str, Counter[str]] = {}

    def add(table: str, **counts: float) -> None:
        tables.setdefault(table, Counter()).update(counts)

    for trial in trials:
        report = trial.report
        alarm_ids = {finding.id for finding in alarms(listed(report))}
        lacking = {lack.id for lack in report.cannot_tell}
        for id, cause in CATALOGUE.items():
            if id not in CHECKED_IDS or id in lacking:
                continue
            # A fault that another id names as rightly is neither with nor without that one.
            is_seen = int(id in alarm_ids)
            for table in (f"kinds.{cause.kind}", f'causes."{id}"'):
                place = f"signs.{trial.source}.{table}"
                if id == trial.cause:
                    add(place, looked=1, seen=is_seen)
                elif id not in trial.right:
                    add(place, without=1, false=is_seen)
        if not trial.cause:
            continue
        _count_links(trial, add)
        first, *later = alarms(report.findings) or [None]
        if first is not None and first.id not in trial.right and later:
            for finding in later:
                add(f"later.{trial.source}", named=1, right=int(finding.id in trial.right))
        probe = CATALOGUE[trial.cause].experiment.probe
        if probe in trial.probes:
            add("probes", asked=1, passed=int(trial.probes[probe]))
    return tables


def _count_links(trial: Trial, add: Any) -> None:
    """Count where a run's cause stands to what else was found in it."""
    found = listed(trial.report)
    alarm_ids = {finding.id for finding in alarms(found)}
    notes = {finding.id for finding in found} - alarm_ids
    if trial.cause in alarm_ids:
        return
    explaining = {
        id for id, cause in CATALOGUE.items() if alarm_ids & {*cause.explains, *cause.leads_to}
    }
    resembling = {rival.id for f in alarms(found) for rival in f.rivals if rival.id in CATALOGUE}
    groups = {"explains": explaining, "rivals": resembling - explaining, "notes": notes}
    for link, ids in groups.items():
        candidates = ids - alarm_ids
        if candidates:
            hits = int(trial.cause in candidates)
            add(f"links.{link}", hits=hits, expected=round(len(candidates) / len(CATALOGUE), 3))


def threads_of(path: Path) -> dict[str, Any]:
    """Count the causes of public threads; one of several counts in parts."""
    causes: Counter[str] = Counter()
    lines = path.read_text().splitlines()
    for line in lines:
        ids = json.loads(line)["our_id"].split("; ")
        for id in ids:
            causes[id] += 1 / len(ids)
    outside = {"without_page": causes.pop("NONE", 0), "no_fault": causes.pop("NOT-A-FAULT", 0)}
    return {"total": len(lines), **outside, "causes": dict(sorted(causes.items()))}


def calibration_of(trials: Iterable[Trial]) -> dict[str, Counter[str]]:
    """Sum what first findings of runs that do not learn were stated to be worth before calibration,
    and count the right ones.
    """
    tables: dict[str, Counter[str]] = {}
    for trial in trials:
        found = alarms(trial.report.findings)
        if trial.report.differential is None or not found:
            continue
        stated = right_share(found[0].id, found[0].basis, trial.source)
        is_right = int(found[0].id in trial.right)
        table = tables.setdefault(f"calibration.{trial.source}", Counter())
        table.update({"runs": 1, "stated": round(stated, 3), "right": is_right})
    return tables


def check(trials: Sequence[Trial]) -> None:
    """Print how often causes were right, by the probability that was stated of each."""
    for source in SOURCES:
        pairs: list[tuple[float, bool]] = []
        ranks: list[int] = []
        for trial in trials:
            differential = trial.report.differential
            if trial.source != source or differential is None:
                continue
            ids = [suspect.id for suspect in differential.suspects]
            pairs += [(s.probability, s.id in trial.right) for s in differential.suspects]
            if trial.right:
                ranks.append(min((ids.index(id) for id in trial.right if id in ids), default=99))
        print(f"{source}: {len(ranks)} runs with a fault that do not learn; the cause is")
        for places in (1, 3, 5, 10, 20):
            print(f"  among the first {places}: {sum(rank < places for rank in ranks)}")
        for low, high in pairwise(BINS):
            chosen = [pair for pair in pairs if low <= pair[0] < high]
            if chosen:
                stated, right = np.mean(chosen, axis=0)
                print(
                    f"  stated {low:.0%} to {high:.0%}: {len(chosen)} causes, on average"
                    f" {stated:.1%} stated and {right:.1%} right"
                )


def write(tables: dict[str, Any]) -> None:
    """Write the file."""
    lines = [HEAD]
    for table, counts in sorted(tables.items()):
        words: list[str] = []
        for key, value in counts.items():
            name = f'"{key}"' if "." in key else key
            number = round(value, 3)
            words.append(f"{name} = {int(number) if number == int(number) else number}")
        lines.append(f"{table} = {{ {', '.join(words)} }}")
    LIKELIHOODS_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LIKELIHOODS_FILE}: {len(tables)} tables")


def main() -> None:
    """Measure, calibrate or check."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults.blind.likelihood", description=__doc__
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--threads", type=Path)
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    if options.folders:
        trials = [trial for folder in options.folders for trial in trials_of(folder)]
        tables: dict[str, Any] = dict(count(trials))
        if options.threads:
            threads = threads_of(options.threads)
            tables["threads.causes"] = threads.pop("causes")
            tables["threads.counts"] = threads
        write(tables)
    if options.calibrate:
        added = calibration_of(trials_of(options.calibrate))
        kept = LIKELIHOODS_FILE.read_text(encoding="utf-8").removeprefix(HEAD).strip()
        lines = [line for line in kept.splitlines() if not line.startswith("calibration.")]
        for table, counts in sorted(added.items()):
            words = ", ".join(f"{key} = {round(value, 1)}" for key, value in counts.items())
            lines.append(f"{table} = {{ {words} }}")
        LIKELIHOODS_FILE.write_text(HEAD + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
        print("\n".join(lines[-len(added) :]))
    if options.check:
        check(list(trials_of(options.check)))


if __name__ == "__main__":
    main()
