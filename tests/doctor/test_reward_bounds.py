"""A reward that leaves its bounds, and the rule that no fix takes away what measures the answer."""

import re
from pathlib import Path
from typing import Any

import pytest

import uptrend
from uptrend.config import load_config, to_table
from uptrend.config.functions import register_functions
from uptrend.doctor.catalogue import CATALOGUE, Cause, complete_fix
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Fix, Run, RunRefused, from_lines
from uptrend.tasks.data import serialize_rows
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.validate import validate

ROWS = [
    {"prompt": f"Calculate: {a} + {b} = ", "answer": str(a + b)} for a in range(8) for b in range(8)
]
QUICK = ["tasks.chat=false", "sampling.max_tokens=6", "sampling.groups=8", "sampling.size=4", "eval.tasks=8",
         "doctor.live=false"]  # fmt: skip


def answer_and_form(completion: str, answer: str) -> dict[str, float]:
    return {"correct": float(completion.strip() == answer), "short": 0.2 * (len(completion) < 4)}


def below(completion: str, answer: str) -> float:
    return float(completion.strip() == answer) - 0.5 * (len(completion) > 20)


def exact(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


def train(tmp_path: Path, reward: Any, bounds: Any, **options: Any) -> Run:
    return uptrend.train(
        model="tiny",
        data=ROWS,
        reward=reward,
        bounds=bounds,
        overrides=QUICK,
        runs=tmp_path,
        **{"steps": 1, **options},
    )


@pytest.mark.parametrize(
    ("reward", "bounds", "summary", "recipe", "python"),
    [
        (answer_and_form, (0, 1), "answer_and_form pays 1.2, but its bounds end at 1", "[0, 1.2]", "(0, 1.2)"),
        (below, (0, 1), "below pays -0.5, but its bounds begin at 0", "[-0.5, 1]", "(-0.5, 1)"),
        ([exact, answer_and_form], [(0, 1), (0, 1)], "answer_and_form pays 1.2, but its bounds end at 1",
         "[[0, 1], [0, 1.2]]", "((0, 1), (0, 1.2))"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_reward_that_leaves_its_bounds_does_not_start(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reward: Any,
    bounds: Any,
    summary: str,
    recipe: str,
    python: str,
) -> None:
    with pytest.raises(RunRefused) as refusal:
        train(tmp_path, reward, bounds)
    assert refusal.value.finding.id == "reward.out-of-bounds"
    said = "".join(capsys.readouterr())
    assert "critical  reward.out-of-bounds" in said
    assert summary in said
    assert f"Set tasks.bounds = {recipe} in the recipe, or bounds={python} in uptrend.train" in said
    assert "return None" not in said
    again = train(tmp_path, reward, eval(python))  # as it was told
    assert again.stopped is None


@pytest.mark.slow
def test_in_a_run_it_is_recorded_with_its_value_and_named_first(tmp_path: Path) -> None:
    run = train(tmp_path, answer_and_form, (0, 1), preflight=False, progress=False, steps=6)
    failed = {error for error in run.rollouts(1)["error"].to_pylist() if error}
    assert failed == {
        "score: RewardOutOfBounds('answer_and_form returned 1.2, outside tasks.bounds = [0, 1]')"
    }
    report = uptrend.diagnose(run.path)
    first = report.findings[0]
    assert first.id == "reward.out-of-bounds"
    assert (
        first.summary
        == "answer_and_form pays 1.2, but its bounds end at 1: set tasks.bounds = [0, 1.2]."
    )
    findings = [
        *report.findings,
        *(symptom for finding in report.findings for symptom in finding.explains),
    ]
    for finding in findings:
        assert finding.fix is None or not removals(finding.fix), finding.id


@pytest.mark.slow
def test_of_several_functions_each_gets_its_own_bounds_and_both_ends(tmp_path: Path) -> None:
    def swings(completion: str, answer: str) -> float:
        return 1.2 if completion.strip() == answer else -0.5

    run = train(
        tmp_path, [exact, swings], [(0, 1), (0, 1)], preflight=False, progress=False, steps=6
    )
    first = uptrend.diagnose(run.path).findings[0]
    assert first.summary.endswith("in tasks.bounds, set those of swings to [-0.5, 1.2].")


def test_validation_names_the_bounds_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(serialize_rows(ROWS)[1])
    options = {"file": str(tmp_path / "rows.jsonl"), "reward": "mine:f", "bounds": [0, 1]}
    with register_functions({"mine:f": answer_and_form}):
        report = validate(lambda: make_taskset("data", options, 0), 30, 10)
    checks = {check.name: check for check in report.checks}
    assert checks["no play fails"].passed
    assert not checks["rewards keep their bounds"].passed
    assert (
        "f pays 1.2, but its bounds end at 1; set tasks.bounds"
        in checks["rewards keep their bounds"].figure
    )


# The rule. A fix never sets the weight of a part to 0 and never replaces the user's own functions,
# whose names nobody knows beforehand; in words it may take form or length out of a reward, and
# nothing else.
TAKES_AWAY = re.compile(
    r"\b(remove|drop|delete|take|leave|disable|zero)\b|\breturn None\b|\bweight (of )?0\b", re.I
)
ABOUT_REWARDS = re.compile(
    r"\b(parts?|components?|rewards?|functions?|correct|accuracy|exact)\b", re.I
)
OF_FORM = re.compile(r"\b(form|format|length)\b", re.I)


def removals(fix: Fix, advice: tuple[str, ...] = ()) -> list[str]:
    """Return what a fix says or sets that takes away what measures the answer."""
    found = []
    for trainer, settings in fix.changes.items():
        for key, value in settings.items():
            name = key.lower()
            is_of_reward = "reward" in name and (
                "weight" in name or name.endswith(("reward", "reward_funcs"))
            )
            is_none = value in (0, None) or re.match(r"0(\.0)?(\s|$)|return None", str(value))
            if is_of_reward and (is_none or key == "tasks.reward"):
                found.append(f"{trainer}: {key} = {value!r}")
    for sentence in (fix.sentence, *advice):
        for clause in re.split(r"[.;,:]", sentence):
            if (
                TAKES_AWAY.search(clause)
                and ABOUT_REWARDS.search(clause)
                and not OF_FORM.search(clause)
            ):
                found.append(clause.strip())
    return found


@pytest.mark.parametrize("cause", CATALOGUE.values(), ids=list(CATALOGUE))
def test_no_fix_takes_away_what_measures_the_answer(cause: Cause) -> None:
    view = from_lines(
        [{"step": 1, "reward/mean": 0.0}], source="", name="", config=to_table(load_config({}))
    )
    fix = complete_fix(cause.fix, view.trainer, view.value)
    assert not removals(fix, tuple(cause.advice.values()))


@pytest.mark.parametrize("name", ["parsed_correct", "json_accuracy", "exact_style", "correctness"])
def test_a_part_named_after_the_answer_is_none_of_form(name: str) -> None:
    steps = range(1, 31)
    noise = [((7 * step) % 11) / 11 for step in steps]
    lines = [
        {
            "step": step,
            "reward/mean": 0.5 + x,
            f"reward/part/{name}/mean": x,
            "reward/part/help/mean": (3 * step) % 7 / 200,
        }
        for step, x in zip(steps, noise, strict=True)
    ]
    view = from_lines(lines, source="", name="", config=to_table(load_config({})))
    assert "reward.component-dominates" not in {finding.id for finding in diagnose(view).findings}
