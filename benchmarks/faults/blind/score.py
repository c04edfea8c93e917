"""Score a blind split: the doctor on records and on scalars alone, preflight, and the peers, run by
run.

    python -m benchmarks.faults.blind.score DIR                 prints the tables
    python -m benchmarks.faults.blind.score DIR --json FILE     and keeps what was said of each run
    PEERS_PYTHON=peers/bin/python …                             has the peers read the same runs

A run counts where its fault does something. It is inert if, beside its healthy twin under the same
seed, it trains and evaluates the same tasks, the learner is given the same tokens, masks, rewards
and advantages at the first step (but for 5% of rollouts), and no mean over the run (reward, right
answers, entropy, length, dead groups, gradient, update, KL, held-out scores) differs by more than
10% and three standard errors. A healthy run counts unless its held-out accuracy falls beyond doubt
(exact test on the tasks that changed sides, 1%).
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.faults.mapping import PEERS
from benchmarks.faults.scalars import write_trainer_state
from scipy.stats import binomtest

from uptrend.bridge.importers import read_views
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Finding, RecordError, Run, RunView, view_of

FEW, CHANGED, ERRORS = 0.05, 0.1, 3.0
"""Share of the first step's rollouts; change of a metric's mean, and its standard errors, that
count as a change.
"""
GIVEN = (
    "ids",
    "roles",
    "weights",
    "attended",
    "reward",
    "advantages",
    "sampler",
    "learner",
    "reference",
    "error",
)
"""Columns that say what the learner is given."""
MEASURED = (
    "reward/mean", "reward/correct/share", "learner/entropy/mean", "sampling/length/mean", "advantage/dead/share",
    "gradient/norm/before", "weights/update/norm", "kl/reference/mean", "accuracy", "reward",
)  # fmt: skip
"""Metrics that show what a run comes to."""


@dataclass(frozen=True)
class Said:
    """One finding, as far as it is scored."""

    id: str
    severity: str
    basis: str
    confidence: str
    is_right: bool


@dataclass(frozen=True)
class Scored:
    """What was said of one run."""

    case: str
    seed: int
    through: str
    cause: str | None
    kind: str
    """planted, healthy or twin."""
    inert: bool
    records: tuple[Said, ...]
    """Warnings and critical findings of `uptrend doctor RUN`, in order."""
    scalars: tuple[Said, ...]
    """The same from the log of scalars."""
    preflight: tuple[Said, ...] | None
    """The same from preflight; None where there is none, as under TRL."""
    peers: Mapping[str, Sequence[tuple[str, bool]]]
    """Their alarms, and whether each offers the right cause as a reason."""
    seconds: float
    """Time that the doctor took to read the records."""
    notes: tuple[str, ...] = ()
    """Ids of notes on the records."""
    error: str = ""
    """Why the run could not be made or read."""


def score_all(folder: Path) -> list[Scored]:
    """Score every run of a folder."""
    places = sorted(path.parent for path in folder.glob("*/case.json"))
    for place in places:
        _write_scalars(place)
    if python := os.environ.get("PEERS_PYTHON"):
        subprocess.run(
            [python, str(Path(__file__).parents[1] / "peers.py"), str(folder)], check=True
        )
    return [score_one(place) for place in places]


def score_one(place: Path) -> Scored:
    """Score one run."""
    case = json.loads((place / "case.json").read_text())
    kind = place.name.split("~")[1]
    right = {case["cause"], *case["also"]} - {None} if kind == "planted" else set()
    began, view, error = time.perf_counter(), None, ""
    try:
        view = view_of(Run(place / "run"))
        found = list(diagnose(view).findings)
    except RecordError as failure:
        found, error = [], f"{failure} {case['error'].strip().rpartition(chr(10))[2]}".strip()
    seconds = time.perf_counter() - began
    told = next((e for e in view.events if e.get("event") == "preflight"), None) if view else None
    before = None if told is None else _said_before(told["findings"], right)
    peers_file = place / "peers.json"
    peers = json.loads(peers_file.read_text()) if peers_file.exists() else {}
    offered = {
        name: [
            (alarm, bool(right & set(PEERS[name].get(alarm, ()))))
            for alarm in peers[name]["alarms"]
        ]
        for name in PEERS
        if name in peers
    }
    pair = [
        next(iter(sorted(place.parent.glob(f"{case['case']}~{word}~*"))), None)
        for word in ("twin", "planted")
    ]
    inert = (
        kind == "planted"
        and pair[0] is not None
        and pair[1] is not None
        and not changes(pair[0], pair[1])
    )
    doubtful = kind != "planted" and view is not None and falls(view)
    return Scored(
        case["case"], case["seed"], case["through"], case["cause"], kind, inert or doubtful, _said(found, right),
        _said(_of_scalars(place), right), before, offered, seconds,
        tuple(f.id for f in found if f.severity == "note"), error,
    )  # fmt: skip


def _write_scalars(place: Path) -> None:
    """Write what TRL would have logged; TRL's own runs have it."""
    file, run = place / "trainer_state.json", place / "run"
    if not file.exists() and (run / "metrics.jsonl").exists():
        try:
            write_trainer_state(Run(run), file)
        except Exception as error:  # a run that ended at once has nothing to log
            print(f"{place.name}: no scalars: {error!r}")


def _of_scalars(place: Path) -> list[Finding]:
    try:
        views = read_views(place / "trainer_state.json")
    except RecordError:
        return []
    return [
        f
        for view in sorted(views, key=lambda v: -len(v.steps))[:1]
        for f in diagnose(view).findings
    ]


def _said(findings: Sequence[Finding], right: set[Any]) -> tuple[Said, ...]:
    alarms = [f for f in findings if f.severity != "note"]
    return tuple(
        Said(f.id, str(f.severity), str(f.basis), str(f.confidence), f.id in right) for f in alarms
    )


def _said_before(told: Sequence[Mapping[str, Any]], right: set[Any]) -> tuple[Said, ...]:
    alarms = [f for f in told if f["severity"] != "note" and not f.get("symptom_of")]
    return tuple(
        Said(f["id"], f["severity"], f["basis"], f["confidence"], f["id"] in right) for f in alarms
    )


@cache
def changes(twin: Path, planted: Path) -> bool:
    """Tell whether a fault does something, beside the same run without it: to its first step, or to
    its course.
    """
    if any(_first_step(twin, kind) != _first_step(planted, kind) for kind in ("tasks", "held out")):
        return True
    before, after = (_first_step(place, "rollouts") for place in (twin, planted))
    if (
        len(before) != len(after)
        or np.mean([a != b for a, b in zip(before, after, strict=True)] or [0]) >= FEW
    ):
        return True
    sides = [_measured(place) for place in (twin, planted)]
    for name in sides[0].keys() | sides[1].keys():
        one, two = (np.array(side.get(name, []), float) for side in sides)
        one, two = one[np.isfinite(one)], two[np.isfinite(two)]
        if min(len(one), len(two)) < 2:
            if len(one) != len(two) or (len(one) and abs(two[0] - one[0]) > CHANGED * abs(one[0])):
                return True
            continue
        off, error = (
            abs(two.mean() - one.mean()),
            np.hypot(one.std() / len(one) ** 0.5, two.std() / len(two) ** 0.5),
        )
        if off > CHANGED * abs(one.mean()) and off > ERRORS * error:
            return True
    return False


def _first_step(place: Path, kind: str) -> list[Any]:
    """Return what the learner is given at the first step, rollout by rollout; or the tasks of the
    first steps.
    """
    try:
        run = Run(place / "run")
        if kind == "held out":
            step = int(run.eval_lines[0]["step"]) if run.eval_lines else None
            return (
                [] if step is None else view_of(run).read_heldout(step).column("task").to_pylist()
            )
        steps = sorted(view_of(run).rollout_steps)[:3]
        if kind == "tasks":
            return [
                task for step in steps for task in run.rollouts(step).column("task").to_pylist()
            ]
        table = run.rollouts(steps[0])
        columns = [table.column(name).to_pylist() for name in GIVEN if name in table.column_names]
        return [str(_rounded(row)) for row in zip(*columns, strict=True)]
    except (RecordError, IndexError, KeyError):
        return []


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _measured(place: Path) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for file in ("metrics", "evals"):
        path = place / "run" / f"{file}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            for name, value in json.loads(line).items():
                if name in MEASURED and isinstance(value, int | float):
                    values.setdefault(f"{file}:{name}", []).append(float(value))
    return values


def falls(view: RunView) -> bool:
    """Tell whether held-out accuracy falls beyond doubt from the first evaluation to the last."""
    steps = [int(line["step"]) for line in view.evals if "step" in line]
    if len(steps) < 2:
        return False
    sides = []
    for step in (steps[0], steps[-1]):
        try:
            table = view.read_heldout(step)
        except (OSError, KeyError, RecordError):
            return False
        pairs = zip(
            table.column("task").to_pylist(), table.column("correct").to_pylist(), strict=True
        )
        sides.append({task: bool(right) for task, right in reversed(list(pairs))})
    moves = [
        int(sides[1][task]) - int(sides[0][task]) for task in sides[0].keys() & sides[1].keys()
    ]
    down, moved = moves.count(-1), moves.count(-1) + moves.count(1)
    return bool(moved and binomtest(down, moved, alternative="greater").pvalue < 0.01)


Flag = Callable[[Scored], bool]
Group = list[Scored]


def tables(scored: Group) -> str:
    """Return the figures in Markdown."""
    planted = [s for s in scored if s.kind == "planted"]
    counted, healthy = (
        [s for s in planted if not s.inert],
        [s for s in scored if s.kind == "healthy"],
    )
    well, twins = (
        [s for s in healthy if not s.inert],
        [s for s in scored if s.kind == "twin" and not s.inert],
    )
    ours = [s for s in counted if s.through == "uptrend"]
    theirs = [s for s in counted if s.through == "trl"]
    rows: list[tuple[str, list[tuple[Group, Flag] | None]]] = [
        ("noticed", [(g, lambda s: bool(s.records)) for g in (ours, theirs, counted)]),
        ("right cause first", [(g, lambda s: _first(s.records)) for g in (ours, theirs, counted)]),
        ("right cause among three", [(g, lambda s: _among(s.records)) for g in (ours, theirs, counted)]),
        ("named by preflight or doctor", [
            (g, lambda s: _among(s.records) or any(f.is_right for f in s.preflight or ()))
            for g in (ours, theirs, counted)]),
        ("named by preflight", [(ours, lambda s: any(f.is_right for f in s.preflight or ())), None, None]),
        ("scalars alone: noticed", [(g, lambda s: bool(s.scalars)) for g in (ours, theirs, counted)]),
        ("… right cause first", [(g, lambda s: _first(s.scalars)) for g in (ours, theirs, counted)]),
        ("… right cause among three", [(g, lambda s: _among(s.scalars)) for g in (ours, theirs, counted)]),
        ("… a wrong critical finding", [(g, _wrong_critical) for g in (ours, theirs, counted)]),
    ]  # fmt: skip
    for peer in PEERS:
        if any(peer in s.peers for s in counted):
            rows += [
                (f"{peer}: noticed", [(g, lambda s, p=peer: bool(s.peers.get(p))) for g in (ours, theirs, counted)]),
                (f"{peer}: right first, generously",
                 [(g, lambda s, p=peer: any(right for _, right in list(s.peers.get(p, ()))[:1]))
                  for g in (ours, theirs, counted)]),
            ]  # fmt: skip
    lines = ["| | Uptrend's records | TRL, watched | all |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(_cell(cell) for cell in cells)} |" for name, cells in rows]
    lines += ["", "| runs without a fault | warned | critical | by scalars alone | preflight |" + "".join(
        f" {peer} |" for peer in PEERS), "|---|---|---|---|---|" + "---|" * len(PEERS)]  # fmt: skip
    for name, group in (("healthy", well), ("twins of faults", twins)):
        cells = [
            (group, lambda s: bool(s.records)),
            (group, lambda s: any(f.severity == "critical" for f in s.records)),
            (group, lambda s: bool(s.scalars)),
            ([s for s in group if s.preflight is not None], lambda s: bool(s.preflight)),
            *(
                ([s for s in group if peer in s.peers], lambda s, p=peer: bool(s.peers[p]))
                for peer in PEERS
            ),
        ]
        lines.append(f"| {name} | {' | '.join(_cell(cell) for cell in cells)} |")
    left = [s for s in planted if s.inert], [s for s in healthy if s.inert]
    lines += [
        "",
        f"{len({s.case for s in counted})} faults in {len(counted)} runs and {len(well)} healthy runs count; "
        f"left out by measurement: {_names(left[0])} (inert), {_names(left[1])} (held-out accuracy fell).",
    ]
    lines += ["", *_calibration(counted, well)]
    return "\n".join([*lines, "", "What fell short:", "", *_shortcomings(counted, well)])


def _first(said: Sequence[Said]) -> bool:
    return bool(said) and said[0].is_right


def _among(said: Sequence[Said]) -> bool:
    return any(f.is_right for f in said[:3])


def _wrong_critical(s: Scored) -> bool:
    return any(f.severity == "critical" and not f.is_right for f in s.scalars)


def _cell(cell: tuple[Group, Flag] | None) -> str:
    if cell is None or not cell[0]:
        return "-"
    group, flag = cell
    hits = [flag(s) for s in group]
    low, high = interval([(s.case, hit) for s, hit in zip(group, hits, strict=True)])
    return f"{sum(hits)} of {len(hits)}, {np.mean(hits):.0%} ({low:.0%} to {high:.0%})"


def interval(hits: Sequence[tuple[str, bool]]) -> tuple[float, float]:
    """Return a 95% interval of a share: Wilson's, with as many observations as cases (seeds of one
    are alike).
    """
    from uptrend.stats.intervals import wilson

    share, cases = float(np.mean([hit for _, hit in hits])), len({case for case, _ in hits})
    return wilson(share * cases, cases)


def _names(group: Group) -> str:
    return ", ".join(sorted({s.case for s in group})) or "none"


def _calibration(counted: Group, well: Group) -> list[str]:
    """Return how often first findings of each confidence were right."""
    lines = [
        "| first finding's confidence | right, from records | right, from scalars |",
        "|---|---|---|",
    ]
    for level in ("high", "medium", "low"):
        cells = []
        for source in ("records", "scalars"):
            first = [
                (s.case, getattr(s, source)[0]) for s in (*counted, *well) if getattr(s, source)
            ]
            chosen = [(case, f.is_right) for case, f in first if f.confidence == level]
            count = sum(right for _, right in chosen)
            cells.append(
                f"{count} of {len(chosen)}" + (f" ({count / len(chosen):.0%})" if chosen else "")
            )
        lines.append(f"| {level} | {' | '.join(cells)} |")
    return lines


def _shortcomings(counted: Group, well: Group) -> list[str]:
    lines = []
    for s in (*counted, *well):
        told = (
            ", ".join(f.id for f in s.records[:3]) or f"silent{'; ' + s.error if s.error else ''}"
        )
        if s.kind == "planted" and not _first(s.records):
            before = "; preflight named it" if any(f.is_right for f in s.preflight or ()) else ""
            lines.append(f"- {s.case}, seed {s.seed} ({s.through}, {s.cause}): {told}{before}")
        elif s.kind == "healthy" and s.records:
            lines.append(f"- {s.case}, seed {s.seed} ({s.through}, healthy): {told}")
    return lines or ["Nothing."]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults.blind.score", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = score_all(asked.folder)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(s) for s in results], indent=1))
    print(tables(results))
