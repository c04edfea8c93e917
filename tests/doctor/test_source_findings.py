"""A fault in one of two tasksets: findings and probes name it, and the other stays silent."""

import json
from typing import Any

import pytest

import uptrend
from uptrend.config import load_config
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.probes import differential, run_probes
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.sources import join_sources
from uptrend.records import Basis, Confidence, Evidence, Finding, Fix, Run, Severity, view_of
from uptrend.runner.prepare import prepare

STEPS = 8
CONSTANT = """
def score(prompt, completion, answer):
    return 0.0
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a recipe of arithmetic, which is healthy, and of rows whose reward is one value."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "rewards.py").write_text(CONSTANT)
    rows = [{"prompt": f"{n} + {n} = ", "answer": str(2 * n)} for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    broken = {
        "name": "data",
        "label": "broken",
        "file": str(folder / "rows.jsonl"),
        "reward": f"{folder / 'rewards.py'}:score",
        "bounds": [0, 1],
        "chat": False,
    }
    return {
        "model": {"name": "tiny", "chat": False},
        "tasks": [{"name": "arithmetic", "label": "sums", "train": 60, "high": 9}, broken],
        "sampling": {"groups": 4, "size": 8, "max_tokens": 6},
        "learning": {"steps": STEPS, "lr": 1e-5},
        "eval": {"tasks": 10, "every": 4},
        "compute": {"threads": 1},
        "doctor": {"live": False},
    }


@pytest.fixture(scope="module")
def run(recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    runs = tmp_path_factory.mktemp("runs")
    return uptrend.train(recipe, name="run", preflight=False, progress=False, runs=runs)


def all_findings(run: Run) -> list[Finding]:
    report = diagnose(view_of(run))
    return [each for cause in report.findings for each in (cause, *cause.explains)]


def test_a_constant_reward_in_one_source_is_named_with_it(run: Run) -> None:
    (finding,) = [each for each in all_findings(run) if each.id == "reward.constant"]
    assert finding.summary.startswith("In broken: Every rollout had the reward 0")
    assert all(piece.text.startswith("broken: ") for piece in finding.evidence)
    assert finding.evidence[0].metric == "source/broken/reward/mean"
    assert finding.severity is Severity.CRITICAL


def test_the_healthy_source_raises_no_alarm(run: Run) -> None:
    alarms = [each for each in all_findings(run) if each.severity is not Severity.NOTE]
    assert alarms
    assert not [each.summary for each in alarms if each.summary.startswith("In sums")]
    assert not [each.summary for each in alarms if "The same holds in" in each.summary]


def test_a_small_set_that_fills_its_share_repeats_nothing(recipe: dict[str, Any]) -> None:
    """A step's 8 groups are more than its 5 tasks, but only 4 of them are its share."""
    first, second = recipe["tasks"]
    small = {**recipe, "tasks": [{**first, "train": 5}, second]}
    bench = Bench(prepare(load_config(small, {"sampling.groups": 8})), groups=2)
    assert [result.ok for result in run_probes(bench, ["repeats"])] == [True, True]


def test_all_rewards_together_would_hide_it(run: Run) -> None:
    """Half of all rollouts differ, so that the step's rewards are no constant."""
    assert min(line["reward/std"] for line in run.metric_lines) > 0
    assert all(line["source/broken/advantage/dead/share"] == 1 for line in run.metric_lines)


def test_probes_ask_each_source_and_name_the_faulty_one(recipe: dict[str, Any]) -> None:
    bench = Bench(prepare(load_config(recipe)), groups=2)
    results = list(run_probes(bench, ["gold", "repeats", "schedule"]))
    assert [(result.name, result.source) for result in results] == [
        ("gold", "sums"),
        ("gold", "broken"),
        ("repeats", "sums"),
        ("repeats", "broken"),
        ("schedule", ""),
    ]
    assert [result.ok for result in results] == [True, False, True, True, True]
    (finding,) = [each for each in differential(results) if each.severity is Severity.CRITICAL]
    assert finding.id == "reward.gold-rejected"
    assert finding.summary.startswith("In broken: ")


def finding_of(severity: Severity, text: str = "x") -> Finding:
    return Finding(
        id="data.memorized",
        severity=severity,
        basis=Basis.SIGNAL,
        summary="It learned by heart.",
        evidence=(Evidence(text, 1.0, "reward/mean"),),
        rivals=(),
        experiment=None,
        fix=Fix("More tasks.", {"uptrend": {"tasks.train": 400, "eval.every": 5}}),
        confidence=Confidence.MEDIUM,
        measured="",
        is_doubted=False,
        page="",
    )


def test_one_finding_names_all_sources_that_are_as_bad_and_fixes_the_worst() -> None:
    metrics = {"source/b/reward/mean"}
    findings = {
        "a": [finding_of(Severity.NOTE, "from a")],
        "b": [finding_of(Severity.WARNING, "from b")],
        "c": [finding_of(Severity.WARNING, "from c")],
    }
    (joined,) = join_sources(findings, metrics)
    assert joined.summary == "In b: It learned by heart. The same holds in c."
    texts = [piece.text for piece in joined.evidence]
    assert texts == ["b: from b", "a: from a", "c: from c"]
    metrics_named = [piece.metric for piece in joined.evidence]
    assert metrics_named == ["source/b/reward/mean", "reward/mean", "reward/mean"]
    assert joined.fix is not None
    assert joined.fix.changes["uptrend"] == {"tasks.b.train": 400, "eval.every": 5}


@pytest.mark.parametrize(
    "tasks", [{}, {"sources": None}, {"sources": [3, {"label": 5}, {"label": "x"}]}]
)
def test_a_damaged_entry_of_sources_hides_nothing(run: Run, tasks: Any) -> None:
    view = view_of(run)
    damaged = type(view)(**{**vars(view), "info": {**view.info, "tasks": tasks}})
    assert diagnose(damaged).step == STEPS
