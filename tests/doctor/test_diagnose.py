"""From views to reports: what is told, what could not be, and in which order."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import uptrend
from curve_runs import healthy
from uptrend.doctor.check import alarms, make_finding
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.report import print_report, to_html, to_markdown, to_table
from uptrend.records import (
    Basis,
    CannotTell,
    Confidence,
    Evidence,
    RecordError,
    Report,
    Severity,
    TrendKind,
    from_lines,
)
from uptrend.records.view import RunView

BROKEN = {"loss/total": lambda i: float("nan") if i > 50 else 0.1}


def lines(steps: int, **more: Any) -> list[dict[str, Any]]:
    """Return a log whose reward rises through noise."""
    rewards = np.linspace(0.2, 0.8, steps) + np.random.default_rng(steps).normal(0, 0.05, steps)
    return [
        {
            "step": i + 1,
            "reward/mean": float(r),
            "gradient/norm/before": 0.5,
            **{k: v(i) for k, v in more.items()},
        }
        for i, r in enumerate(rewards)
    ]


def view_of(steps: int = 60, config: dict[str, Any] | None = None, **more: Any) -> RunView:
    return from_lines(
        lines(steps, **more), trainer="trl", source="log", name="a run", config=config or {}
    )


def report(steps: int = 60, config: dict[str, Any] | None = None, **more: Any) -> Report:
    return diagnose(view_of(steps, config, **more))


def shown(told: Report, width: int = 80, verbose: bool = False) -> str:
    """Return what a terminal of this width shows."""
    page = StringIO()
    print_report(told, Console(file=page, width=width), verbose)
    return page.getvalue()


def test_hidden_causes_are_only_suspected_without_rollouts() -> None:
    for id, basis in {"mask.attention-blind": Basis.SIGNAL, "run.nonfinite": Basis.PROOF}.items():
        assert (
            make_finding(view_of(5), id, Severity.CRITICAL, Basis.PROOF, "It is so.", []).basis
            is basis
        )


def test_what_probes_excluded_is_not_told() -> None:
    constant = {"reward/mean": -1.0, "reward/group_std/mean": 0.0}
    asked = {"event": "preflight", "probes": [{"name": "gold", "ok": True}]}
    for event in (asked, {"event": "acquitted", "id": "reward.gold-rejected"}):
        told = {f.id for f in diagnose(healthy(events=(event,), **constant)).findings}
        assert "reward.constant" in told
        assert "reward.gold-rejected" not in told
    assert "reward.gold-rejected" in {f.id for f in diagnose(healthy(**constant)).findings}


def test_damaged_rollouts_are_left_out_and_told() -> None:
    def read(step: int) -> Any:
        raise RecordError(f"step {step} is torn")

    told = diagnose(healthy(5, rollout_steps=(2, 3, 9), read_rollouts=read))
    assert told.notes == ("The rollouts of steps 2, 3 are damaged and were left out.",), (
        "step 9 is being written"
    )


def test_the_json_is_the_contract() -> None:
    table = json.loads(json.dumps(to_table([report(5), report(60, **BROKEN)]), allow_nan=False))
    assert (table["schema"], table["trend"], table["steps"]) == (2, "learning", 60)
    assert [run["steps"] for run in table["runs"]] == [5, 60]
    first = table["findings"][0]
    told = {
        "id",
        "severity",
        "basis",
        "confidence",
        "measured",
        "since",
        "summary",
        "evidence",
        "rivals",
        "experiment",
        "fix",
    }
    assert set(first) == told | {"explains", "symptom_of", "page"}
    assert first["severity"] == "critical"
    assert set(first["evidence"][0]) == {"text", "value", "metric", "step", "rollout"}
    assert set(first["fix"]) == {"sentence", "changes", "in_force"}
    assert first["page"] == f"uptrend explain {first['id']}"


def test_the_json_lists_symptoms_after_all_causes() -> None:
    dead = {
        "advantage/dead/share": lambda _: 1.0,
        "reward/group_std/mean": lambda _: 0.0,
        "reward/mean": lambda _: 0.0,
    }
    findings = to_table([report(60, **dead)])["findings"]
    causes, symptoms = (
        [f for f in findings if (f["symptom_of"] is None) is top] for top in (True, False)
    )
    assert findings == causes + symptoms
    assert symptoms
    assert {(f["id"], id) for f in causes for id in f["explains"]} == {
        (f["symptom_of"], f["id"]) for f in symptoms
    }


def test_every_form_names_the_trend_the_cause_and_what_is_lacking() -> None:
    evals = tuple(
        {"step": step, "accuracy": accuracy, "tasks": 200}
        for step, accuracy in ((0, 0.4), (60, 0.55))
    )
    told = diagnose(replace(view_of(60, **BROKEN), evals=evals))
    assert told.trend.kind is TrendKind.LEARNING
    for text in (shown(told, 60, verbose=True), to_markdown([told]), to_html([told])):
        flat = " ".join(text.split())
        for wanted in (
            "run.nonfinite",
            "mask.tool-trained",
            "Held out on 200 tasks: 0.4 → 0.55 (change +0.15",
        ):
            assert wanted in flat
        assert "learning" in flat.lower()


def test_the_fix_is_for_the_trainer_whose_log_it_is() -> None:
    told = report(60, {"learning": {"lr": 3e-5}}, **BROKEN)
    text = shown(told)
    assert "learning_rate = 1e-05" in text.partition("TRL: ")[2]
    assert "prime-rl:" not in text
    for everything in (shown(told, verbose=True), to_markdown([told])):
        assert "TRL:" in everything
        assert not any(
            f"{other}:" in everything for other in ("prime-rl", "verifiers", "verl", "Uptrend")
        )


def test_a_terminal_is_neither_padded_nor_told_twice() -> None:
    told = report(60, **BROKEN)
    cause = told.findings[0]
    twice = replace(cause, evidence=(Evidence(cause.summary), Evidence("Another figure.")))
    for width in (50, 100):
        text = shown(replace(told, findings=(twice,), notes=(cause.summary,)), width)
        assert all(line == line.rstrip() and len(line) <= width for line in text.splitlines())
        assert " ".join(text.split()).count(cause.summary) == 1
        assert "Another figure." in text
    assert "log, a run, TRL, 60 points" in shown(told)


def test_notes_are_told_in_short_and_most_of_what_is_lacking_first() -> None:
    note = make_finding(
        view_of(5), "optimizer.lr-large", Severity.NOTE, Basis.SUSPICION, "Too large.", []
    )
    lacks = (CannotTell("a", "rare"), CannotTell("b", "often"), CannotTell("c", "often"))
    told = replace(report(60), findings=(note,), cannot_tell=lacks)
    assert "fix:" not in shown(told)
    assert "fix:" in shown(told, verbose=True)
    assert "cannot tell 3 causes: often (2); rare (1)" in shown(told)


def test_a_page_escapes_what_a_log_can_say() -> None:
    rows = [{"step": i, "reward/mean": 0.5} for i in range(9)]
    told = diagnose(
        from_lines(rows, source="<script>alert(1)</script>", name="", unknown={"<b>": np.zeros(9)})
    )
    assert "<script>" not in to_html([told])
    assert "<b>" not in to_html([told]).replace("<b>Fix.</b>", "")


SMALL, DEAD, SCHEDULE = "optimizer.lr-small", "advantage.dead-groups-low", "optimizer.schedule"
CUT = {"sampling.no-stop", "context.completion-truncated"}


@pytest.mark.parametrize(
    ("reward", "cut", "dead", "rate", "first", "also"),
    [
        (0.05, 0.9, 0.1, lambda _: 1e-6, {SMALL}, CUT),
        (-0.7, 1.0, 0.1, lambda _: 1e-6, {SMALL}, CUT),
        (0.05, 0.95, 0.1, lambda step: 1e-5 * max(0.0, 1 - step / 10), {SCHEDULE}, CUT),
        # Many groups are dead: they come before truncation, or the small rate does.
        (0.05, 0.99, 0.75, lambda _: 1e-6, {SMALL, DEAD}, {SMALL}),
        # Nearly all groups are dead, so that no update could move it.
        (0.05, 0.99, 0.96, lambda _: 1e-6, CUT, {SMALL}),
    ],
)
def test_what_explains_a_still_policy(
    reward: float,
    cut: float,
    dead: float,
    rate: Any,
    first: set[str],
    also: set[str],
    tmp_path: Path,
) -> None:
    """KL rises to 0.004 in ten steps and stays; gradients are normal."""
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
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 120, "max_steps": 500, "log_history": history}))
    causes = uptrend.diagnose(path).findings
    assert causes[0].id in first
    assert also & {f.id for cause in causes for f in (cause, *cause.explains)}


def idle_lines(steps: int, **more: float) -> list[dict[str, Any]]:
    """Return metrics of steps in which every group was dead."""
    each = {
        "reward/mean": 0.0,
        "reward/std": 0.0,
        "gradient/norm/before": 0.0,
        "advantage/dead/share": 1.0,
        **more,
    }
    return [{"step": step, **each} for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    "more", [{"advantage/dead_low/share": 1.0, "advantage/dead_high/share": 0.0}, {}]
)
def test_three_steps_without_any_gradient_are_certain(more: dict[str, float]) -> None:
    report = diagnose(from_lines(idle_lines(3, **more), source="log", name=""))
    (first, *_) = alarms(report.findings)
    assert first.id == DEAD
    assert "optimizer.dead-steps" in {symptom.id for symptom in first.explains}
    assert first.confidence is not Confidence.HIGH


@pytest.mark.parametrize(
    "lines",
    [
        idle_lines(2),
        idle_lines(3, **{"gradient/norm/before": 0.2}),
        idle_lines(3, **{"advantage/dead/share": 0.75}),
    ],
    ids=["two steps", "a penalty pulls", "a group lives"],
)
def test_three_steps_that_may_be_chance_are_not(lines: list[dict[str, Any]]) -> None:
    assert not alarms(diagnose(from_lines(lines, source="log", name="")).findings)


@pytest.mark.slow
def test_a_real_run_of_three_steps_that_nothing_can_teach(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + {n} =", "answer": "unheard of"} for n in range(40)]
    settings = {
        "sampling.groups": 4,
        "sampling.size": 4,
        "sampling.max_tokens": 4,
        "learning.kl.beta": 0.0,
    }
    run = uptrend.train(
        model="tiny", data=rows, reward=lambda completion, answer: float(completion == answer), bounds=[0, 1], steps=3,
        overrides=settings, runs=tmp_path, progress=False, preflight=False,
    )  # fmt: skip
    (first, *_) = alarms(uptrend.diagnose(run.path).findings)
    assert first.id in (DEAD, "reward.gold-rejected")
