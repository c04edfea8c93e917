"""From views to reports: what is told, what could not be, and in which order."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import uptrend
from uptrend.doctor.check import finding
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.report import print_report, to_html, to_markdown, to_table
from uptrend.records import CannotTell, Confidence, Evidence, Finding, Report, Severity, Times, TrendKind, from_lines

RNG = np.random.default_rng(0)


def lines(steps: int, **more: Any) -> list[dict[str, Any]]:
    """A log whose reward rises through noise."""
    rewards = np.linspace(0.2, 0.8, steps) + RNG.normal(0, 0.05, steps)
    return [
        {"step": i + 1, "reward/mean": float(r), "gradient/norm/before": 0.5, **{k: v(i) for k, v in more.items()}}
        for i, r in enumerate(rewards)
    ]


def report(steps: int = 60, config: dict[str, Any] | None = None, **more: Any) -> Report:
    return diagnose(from_lines(lines(steps, **more), trainer="trl", source="log", name="a run", config=config or {}))


def test_a_rising_reward_is_learning_and_raises_no_alarm() -> None:
    told = report()
    assert told.trend.kind is TrendKind.LEARNING
    low, high = told.trend.interval or (0, 0)
    assert low > 0.4
    assert high < 0.8
    assert not [f for f in told.findings if f.severity is not Severity.NOTE]


def test_what_could_not_be_looked_for_says_what_it_needs() -> None:
    lacking = {lack.id: lack.needs for lack in report().cannot_tell}
    assert len(lacking) > 20
    assert all(lacking.values())
    assert "mask.tool-trained" in lacking


def test_a_cause_that_was_found_is_not_also_one_that_could_not_be_told() -> None:
    told = report(**{"loss/total": lambda i: float("nan") if i > 50 else 0.1})
    assert told.findings[0].id == "run.nonfinite"
    assert "run.nonfinite" not in {lack.id for lack in told.cannot_tell}


def test_hidden_causes_are_only_suspected_without_rollouts() -> None:
    view = from_lines(lines(5), source="log", name="")
    told = finding(view, "mask.attention-blind", Severity.CRITICAL, Confidence.HIGH, "It is blind.", [])
    assert told.confidence is Confidence.MEDIUM
    certain = finding(view, "run.nonfinite", Severity.CRITICAL, Confidence.HIGH, "NaN.", [])
    assert certain.confidence is Confidence.HIGH


def test_relative_values_become_concrete_where_the_run_says_what_it_had() -> None:
    known = from_lines(lines(5), source="log", name="", config={"learning": {"lr": 3e-6}})
    fix = finding(known, "optimizer.lr-large", Severity.WARNING, Confidence.LOW, "Too large.", []).fix
    assert fix is not None
    assert fix.changes["uptrend"]["learning.lr"] == pytest.approx(1e-6)
    unknown = from_lines(lines(5), source="log", name="")
    fix = finding(unknown, "optimizer.lr-large", Severity.WARNING, Confidence.LOW, "Too large.", []).fix
    assert fix is not None
    assert isinstance(fix.changes["uptrend"]["learning.lr"], Times)


def test_the_json_is_the_contract() -> None:
    short, long = report(5), report(60, **{"loss/total": lambda i: float("nan") if i > 50 else 0.1})
    table = json.loads(json.dumps(to_table([short, long]), allow_nan=False))
    assert table["schema"] == 2
    assert (table["trend"], table["steps"]) == ("learning", 60)
    assert [run["steps"] for run in table["runs"]] == [5, 60]
    assert table["runs"][0]["trend"] in ("too-short", "flat", "learning")
    first = table["findings"][0]
    told = {"id", "severity", "confidence", "summary", "evidence", "rivals", "experiment", "fix"}
    assert set(first) == told | {"explains", "symptom_of", "page"}
    assert first["severity"] == "critical"
    assert set(first["evidence"][0]) == {"text", "value", "metric", "step", "rollout"}
    assert set(first["fix"]) == {"sentence", "changes"}
    assert (Path(__file__).parents[2] / first["page"]).exists()


def test_the_json_lists_symptoms_after_all_causes() -> None:
    dead = {"advantage/dead/share": lambda _: 1.0, "reward/group_std/mean": lambda _: 0.0, "reward/mean": lambda _: 0.0}
    findings = to_table([report(60, **dead)])["findings"]
    causes = [f for f in findings if f["symptom_of"] is None]
    symptoms = [f for f in findings if f["symptom_of"] is not None]
    assert symptoms
    assert findings == causes + symptoms
    for symptom in symptoms:
        assert symptom["id"] in next(f["explains"] for f in causes if f["id"] == symptom["symptom_of"])


def test_every_form_names_the_verdict_the_cause_and_the_fix() -> None:
    told = report(60, **{"loss/total": lambda i: float("nan") if i > 50 else 0.1})
    page = StringIO()
    print_report(told, Console(file=page, width=60), verbose=True)
    for text in (page.getvalue(), to_markdown([told]), to_html([told])):
        flat = " ".join(text.split())
        assert "learning" in flat.lower()
        assert "run.nonfinite" in flat
        assert "mask.tool-trained" in flat
    assert max(map(len, page.getvalue().splitlines())) <= 60


def shown(told: Report, width: int = 80, verbose: bool = False) -> str:
    """What a terminal of this width shows."""
    page = StringIO()
    print_report(told, Console(file=page, width=width), verbose)
    return page.getvalue()


def test_the_fix_is_for_the_trainer_whose_log_it_is() -> None:
    told = report(60, config={"learning": {"lr": 3e-5}}, **{"loss/total": lambda i: float("nan") if i > 50 else 0.1})
    text = shown(told)
    assert "learning_rate = 1e-05" in text.partition("TRL: ")[2]
    assert "prime-rl:" not in text
    assert "uptrend preflight" not in text
    assert "prime-rl:" in shown(told, verbose=True)
    assert to_markdown([told]).index("- TRL:") < to_markdown([told]).index("- Uptrend:")


def test_a_terminal_is_neither_padded_nor_told_twice() -> None:
    told = report(60, **{"loss/total": lambda i: float("nan") if i > 50 else 0.1})
    cause = told.findings[0]
    twice = replace(cause, evidence=(Evidence(cause.summary), Evidence("Another figure.")))
    for width in (50, 100):
        text = shown(replace(told, findings=(twice,), notes=(cause.summary,)), width)
        assert all(line == line.rstrip() and len(line) <= width for line in text.splitlines())
        assert " ".join(text.split()).count(cause.summary) == 1
        assert "Another figure." in text


def test_notes_are_told_in_short() -> None:
    told = report(60)
    note = finding_of(told, Severity.NOTE)
    assert "fix:" not in shown(replace(told, findings=(note,)))
    assert "fix:" in shown(replace(told, findings=(note,)), verbose=True)


def finding_of(told: Report, severity: Severity) -> Finding:
    """Some finding of this severity."""
    view = from_lines(lines(5), trainer=told.trainer, source="log", name="")
    return finding(view, "optimizer.lr-large", severity, Confidence.LOW, "Too large.", [])


def test_several_runs_of_one_log_are_told_apart() -> None:
    assert "log, a run, TRL, 60 points" in shown(report(60))


def test_held_out_figures_stand_beside_the_verdict() -> None:
    evals = tuple({"step": step, "accuracy": accuracy, "tasks": 200} for step, accuracy in ((0, 0.4), (60, 0.55)))
    told = diagnose(from_lines(lines(60), source="log", name="", evals=evals))
    for text in (shown(told), to_markdown([told]), to_html([told])):
        assert "Held out on 200 tasks: 0.4 → 0.55 (change +0.15, 95% interval +0.0" in " ".join(text.split())


def test_most_of_what_is_lacking_comes_first() -> None:
    lacks = (CannotTell("a", "rare"), CannotTell("b", "often"), CannotTell("c", "often"))
    assert "cannot tell 3 causes: often (2); rare (1)" in shown(replace(report(60), cannot_tell=lacks))


def test_a_page_escapes_what_a_log_can_say() -> None:
    rows = [{"step": i, "reward/mean": 0.5} for i in range(9)]
    told = diagnose(from_lines(rows, source="<script>alert(1)</script>", name="", unknown={"<b>": np.zeros(9)}))
    assert "<script>" not in to_html([told])
    assert "<b>" not in to_html([told]).replace("<b>Fix.</b>", "")


def test_from_python(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": i, "reward": 0.01 * i}) + "\n" for i in range(40)))
    told = uptrend.diagnose(log)
    assert told.trend.kind is TrendKind.LEARNING
    assert told.runs == ()


@pytest.mark.parametrize(("trained", "broken"), [(0, False), (9, True)])
def test_a_mean_of_nothing_is_no_broken_number(trained: int, broken: bool) -> None:
    empty = {
        "tokens/trained/model/count": lambda i: trained if i == 7 else 99,
        "learner/entropy/mean": lambda i: None if i == 7 else 0.5,
    }
    assert ("run.nonfinite" in {f.id for f in report(60, **empty).findings}) is broken


def still_state(path: Path, reward: float, cut: float, dead: float, rate: Callable[[int], float]) -> Path:
    """Write TRL's state of a still policy: KL rises to 0.004 in ten steps and stays; gradients are normal."""
    noise = np.random.default_rng(4).standard_normal
    history = [
        {
            "step": step, "reward": reward + 0.02 * noise(), "reward_std": 0.4, "loss": 1e-4 * noise(),
            "grad_norm": 0.45 * float(np.exp(0.35 * noise())), "learning_rate": rate(step),
            "kl": 0.004 * min(1.0, (step - 1) / 9) * float(np.exp(0.1 * noise())), "entropy": 0.8 + 0.02 * noise(),
            "frac_reward_zero_std": float(np.clip(dead + 0.03 * noise(), 0, 1)),
            "completions/mean_length": 250.0, "completions/max_length": 256.0,
            "completions/clipped_ratio": float(np.clip(cut + 0.03 * noise(), 0, 1)),
        }
        for step in range(1, 121)
    ]  # fmt: skip
    path.write_text(json.dumps({"global_step": 120, "max_steps": 500, "log_history": history}))
    return path


@pytest.mark.parametrize("reward", [0.05, -0.7])
@pytest.mark.parametrize("cut", [0.9, 0.95, 1.0])
def test_a_policy_that_does_not_move_is_explained_by_its_updates(reward: float, cut: float, tmp_path: Path) -> None:
    told = uptrend.diagnose(still_state(tmp_path / "trainer_state.json", reward, cut, 0.1, lambda _: 1e-6))
    ids = [f.id for f in told.findings]
    assert ids[0] == "optimizer.lr-small"
    assert {"sampling.no-stop", "context.completion-truncated"} & set(ids[1:]), "and the cut completions after it"


def test_a_policy_that_stops_with_its_schedule_is_explained_by_it(tmp_path: Path) -> None:
    decay = still_state(tmp_path / "trainer_state.json", 0.05, 0.95, 0.1, lambda step: 1e-5 * max(0.0, 1 - step / 10))
    assert uptrend.diagnose(decay).findings[0].id == "optimizer.schedule"


def test_where_many_groups_are_dead_they_come_before_truncation_too(tmp_path: Path) -> None:
    told = uptrend.diagnose(still_state(tmp_path / "trainer_state.json", 0.05, 0.99, 0.75, lambda _: 1e-6))
    first = told.findings[0]
    assert "optimizer.lr-small" in {first.id, *(f.id for f in first.explains)}
    assert first.id != "sampling.no-stop"


def test_a_policy_that_truncation_holds_is_explained_by_truncation(tmp_path: Path) -> None:
    """Nearly all groups are dead, so that no update could move it."""
    told = uptrend.diagnose(still_state(tmp_path / "trainer_state.json", 0.05, 0.99, 0.96, lambda _: 1e-6))
    assert told.findings[0].id == "sampling.no-stop"
    assert "optimizer.lr-small" in {f.id for f in told.findings[0].explains}
