"""From a hypothesis to its verdict, with runs that are made at once."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_workers import Watching

from quick_runs import UNLUCKY, QuickLauncher, QuickWorkers, right_of
from uptrend.lab import specification
from uptrend.lab.experiment import ExperimentRuns, run_experiments, seconds_of
from uptrend.lab.journal.stored import Entry, write
from uptrend.lab.notebook import Notebook
from uptrend.lab.refuse import allowed_ids, faults
from uptrend.lab.workers import Outcome
from uptrend.records import (
    Arm,
    Confidence,
    Hypothesis,
    LabError,
    Run,
    RunDirectory,
    Status,
    Verdict,
)

H = Hypothesis(
    "h01", "A greater rate learns more", "base.toml", (Arm("control", {}, True), Arm("fast", {"learning.lr": 8e-3})),
    seeds=(0, 1, 2, 3, 4), stops_early=False,
)  # fmt: skip


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    notebook = Notebook.init(tmp_path / "lab")
    recipe = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 1 }\neval = { every = 1 }\n'
    (notebook.folder / "base.toml").write_text(recipe)
    notebook.add(H, {})
    return notebook


def run(
    notebook: Notebook,
    *hs: Hypothesis,
    watch: Watching | None = None,
    examine: Any = faults,
    launcher: Any = None,
) -> list[Verdict]:
    launcher = launcher or QuickLauncher()
    experiments = [ExperimentRuns(notebook, h, launcher, find_faults=examine) for h in hs]
    return run_experiments(experiments, launcher, QuickWorkers(), watch or Watching())


def rows(notebook: Notebook, id: str = "h01") -> list[dict[str, Any]]:
    return list(json.loads((notebook.results(id) / "runs.json").read_text())["runs"])


def test_the_verdict_is_that_of_the_runs_in_pairs(notebook: Notebook) -> None:
    (verdict,) = run(notebook, H)
    expected = [(right_of(seed, 8e-3) - right_of(seed, 1e-5)) / 40 for seed in H.seeds]
    assert verdict.comparisons[0].differences == pytest.approx(expected)
    assert verdict.status is Status.VALIDATED
    found = specification.read(notebook, "h01")
    assert found is not None
    assert verdict.specification == found.hash
    assert [(row["arm"], row["seed"], row["status"]) for row in rows(notebook)][:3] == [
        ("control", 0, "finished"), ("fast", 0, "finished"), ("control", 1, "finished"),
    ]  # fmt: skip
    assert rows(notebook)[1]["value"] == right_of(0, 8e-3) / 40


def test_it_ends_when_the_confidence_sequence_is_clear_and_by_the_first_seeds_alone(
    notebook: Notebook,
) -> None:
    eager = replace(H, stops_early=True, seeds=tuple(range(8)))
    (verdict,) = run(notebook, eager)
    seeds = verdict.comparisons[0].seeds
    assert (verdict.stopped_early, verdict.status) == (True, Status.VALIDATED)
    assert 2 <= len(seeds) < 8
    assert seeds == tuple(range(len(seeds)))
    assert {row["status"] for row in rows(notebook)[-2:]} == {"skipped"}
    # The rest, made anyway, changes nothing: the order of seeds decides and not that of the work.
    patient = replace(eager, id="h02", stops_early=False)
    notebook.add(patient, {})
    run(notebook, patient)
    later = ExperimentRuns(notebook, eager, QuickLauncher())
    for planned in reversed(later.planned_runs):
        later.take(Outcome(planned, "finished", was_there=True))
    assert later.judge() == verdict


def test_an_experiment_goes_on_where_it_was_stopped(notebook: Notebook) -> None:
    class Stopping(Watching):
        def ended(self, outcome: Outcome) -> None:
            if outcome.planned.seed == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(notebook, H, watch=Stopping())
    done = sum(row["status"] == "finished" for row in rows(notebook))
    assert 0 < done < 10
    assert notebook.hypothesis("h01").status is Status.TESTING
    watch = Watching()
    (verdict,) = run(notebook, H, watch=watch)
    assert len(watch.begun) <= 10 - done
    assert verdict.comparisons[0].seeds == H.seeds
    one = ExperimentRuns(notebook, H, QuickLauncher())
    for planned in one.planned_runs[:-1]:  # half a pair that is still to come is an early look
        one.take(Outcome(planned, "finished", was_there=True))
    early = one.judge()
    assert (early.stopped_early, early.comparisons[0].seeds) == (True, (0, 1, 2, 3))


def test_what_is_changed_after_results_were_seen(notebook: Notebook) -> None:
    run(notebook, H)
    watch, changed = Watching(), replace(H, smallest=0.02)
    (verdict,) = run(notebook, changed, watch=watch)
    assert verdict.void == "the specification changed after the first step: smallest 0.05 → 0.02"
    assert (verdict.status, verdict.comparisons[0].seeds, watch.begun) == (
        Status.INCONCLUSIVE,
        H.seeds,
        [],
    )
    specification.extend(notebook, specification.freeze(notebook, H, QuickLauncher()), 2)
    one = ExperimentRuns(notebook, H, QuickLauncher())
    (verdict,) = run_experiments([one], QuickLauncher(), QuickWorkers(), Watching())
    assert (verdict.comparisons[0].seeds, verdict.stopped_early) == (tuple(range(7)), True)
    assert one.notes == (
        "seeds 5, 6 were added after results could be seen; judged by the confidence sequence",
    )
    specification.restart(notebook, "h01")
    one = ExperimentRuns(notebook, changed, QuickLauncher())
    (verdict,) = run_experiments([one], QuickLauncher(), QuickWorkers(), Watching())
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.LOW)
    assert verdict.because == "10 of 10 runs had been seen before these criteria were written"
    assert one.notes == ("begun anew once; what had been found before is kept under before-N",)


def test_an_experiment_of_two_seeds_that_was_run_before_they_were_refused_is_still_judged(
    notebook: Notebook,
) -> None:
    h, launcher = replace(H, seeds=(0, 1)), QuickLauncher()
    before = ExperimentRuns(notebook, h, launcher, makes_runs=False)
    (verdict,) = run_experiments([before], launcher, QuickWorkers(), Watching())
    assert (verdict.status, verdict.comparisons[0].seeds) == (Status.INCONCLUSIVE, (0, 1))
    assert verdict.because == "fewer than 5 paired seeds decide nothing"
    with pytest.raises(LabError, match="Write 5 seeds or more"):
        ExperimentRuns(notebook, h, launcher)
    specification.extend(notebook, before.specification, 3)
    (verdict,) = run(notebook, h)
    assert verdict.comparisons[0].seeds == (0, 1, 2, 3, 4)


def test_several_hypotheses_share_runs_and_stay_one_family(notebook: Notebook) -> None:
    other = replace(H, id="h02", arms=(Arm("base", {}, True), Arm("same", {"learning.lr": 1.1e-5})))
    notebook.add(other, {})
    watch = Watching()
    judged = run(notebook, H, other, watch=watch)
    assert len(watch.begun) == 15
    assert [verdict.hypothesis for verdict in judged] == ["h01", "h02"]
    assert all(verdict.comparisons[0].p_adjusted is not None for verdict in judged)
    assert rows(notebook, "h02")[0]["folder"] == rows(notebook)[0]["folder"]
    (alone,) = run(notebook, H)
    assert alone.comparisons[0].p_adjusted is None  # nothing is on record yet
    for verdict in judged:
        table = {**asdict(verdict), "entry": asdict(Entry("", "", ""))}
        write(notebook.results(verdict.hypothesis) / "verdict.json", table)
    (again,) = run(notebook, H)
    assert again == judged[0]
    assert again.comparisons[0].p_adjusted == pytest.approx(2 * again.comparisons[0].p)


def test_an_arm_that_the_cheap_probes_refuse_is_left_out(notebook: Notebook) -> None:
    h = replace(H, arms=(*H.arms, Arm("broken", {"model.name": "refuse"})), seeds=(0, 1), alpha=0.3)
    watch = Watching()
    (verdict,) = run(notebook, h, watch=watch)
    assert verdict.refused == {"broken": "the cheap probes found reward.constant: nothing to learn"}
    assert [comparison.arm for comparison in verdict.comparisons] == ["fast"]
    assert ("broken1", "") not in watch.begun
    assert [row["status"] for row in rows(notebook) if row["arm"] == "broken"] == [
        "refused",
        "refused",
    ]


def test_a_seed_whose_run_fails_is_left_out(notebook: Notebook) -> None:
    class Unlucky(QuickLauncher):
        def command(self, planned: Any) -> list[str]:
            return (
                ["python", UNLUCKY]
                if (planned.arm, planned.seed) == ("fast", 2)
                else super().command(planned)
            )

    (verdict,) = run(notebook, H, launcher=Unlucky())
    assert verdict.comparisons[0].seeds == (0, 1, 3, 4)
    (failed,) = [row for row in rows(notebook) if row["status"] == "failed"]
    assert (failed["arm"], failed["seed"], failed["reason"]) == (
        "fast",
        2,
        "it ended with exit code 1",
    )


def test_a_critical_fault_is_told_unless_it_is_allowed(make_run: Any) -> None:
    def probed(name: str, severity: str) -> Run:
        found = {
            "id": "mask.tool-trained",
            "severity": severity,
            "summary": "it learns its prompt",
            "symptom_of": None,
        }
        with RunDirectory.reopen(make_run(name)) as directory:
            directory.event("preflight", findings=[found], probes=[])
            directory.event("finished", step=20)
        return Run(directory.path)

    told = faults(probed("a", "critical"), set())
    assert [line.partition(":")[0] for line in told] == ["mask.tool-trained", "config.group-of-one"]
    assert faults(probed("b", "critical"), {"mask.tool-trained", "config.group-of-one"}) == []
    assert faults(probed("c", "warning"), {"config.group-of-one"}) == []
    assert allowed_ids(H) == ()
    ids = allowed_ids(replace(H, cause="kl.strangles", allows=("advantage.dead-groups-high",)))
    assert {"kl.strangles", "advantage.dead-groups-high"} <= set(ids)
    assert len(ids) == len(set(ids))


def test_an_arm_in_which_the_doctor_finds_a_fault_is_refused(notebook: Notebook) -> None:
    seen: list[str] = []

    def one_fault(run: Run, _: set[str]) -> list[str]:
        seen.append(run.name)
        return ["reward.constant: always 0"] if run.config["learning"]["lr"] == 8e-3 else []

    arms = (*H.arms, Arm("slow", {"learning.lr": 1e-3}))
    (verdict,) = run(notebook, replace(H, arms=arms, seeds=(0, 1), alpha=0.3), examine=one_fault)
    assert verdict.refused["fast"].startswith(
        "the doctor found reward.constant: always 0 (in quick-s0-"
    )
    assert [name[:9] for name in seen] == ["quick-s0-"] * 3
    assert [(one.arm, one.seeds) for one in verdict.comparisons] == [("slow", (0, 1))]


def write_events(run: Path, events: list[dict[str, Any]]) -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_seconds_are_those_of_all_stretches(make_run: Any) -> None:
    events = {"started": 0, "checkpoint": 5, "resumed": 100, "finished": 130}
    run = make_run("a")
    write_events(run, [{"event": name, "time": time} for name, time in events.items()])
    assert seconds_of(Run(run)) == 35


def finish_early(notebook: Notebook, is_early: Callable[[Run], bool]) -> None:
    """Date the end of some runs long back, that of the others to the year 2096."""
    for info in notebook.folder.rglob("run.json"):
        one = Run(info.parent)
        when = {"time": 0.0 if is_early(one) else 4e9}
        write_events(
            one.path,
            [event | when if event["event"] == "finished" else event for event in one.events],
        )


def test_runs_that_another_hypothesis_had_shown_bear_little(notebook: Notebook) -> None:
    run(notebook, H)
    finish_early(notebook, lambda run: "-s4-" not in run.name)
    again = replace(H, id="h02", smallest=0.02)
    new_arm = replace(H, id="h03", arms=(H.arms[0], Arm("faster", {"learning.lr": 9e-3})))
    for h in (again, new_arm):
        notebook.add(h, {})
    (verdict,) = run(notebook, again)
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.LOW)
    assert verdict.because == "8 of 10 runs had been seen before these criteria were written"
    finish_early(notebook, lambda run: run.config["learning"]["lr"] < 8e-3)
    (verdict,) = run(notebook, new_arm)  # of which only the control was known
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.MEDIUM)
