"""The numbers behind the advice, against other ways to get them."""

import numpy as np
import pytest

from uptrend.doctor.probes.advantages import true_advantages
from uptrend.doctor.probes.parser import is_meant
from uptrend.doctor.probes.pass_rates import PassRates, predict_dead
from uptrend.doctor.probes.power import LEVEL
from uptrend.doctor.probes.result import told
from uptrend.doctor.probes.texts import question
from uptrend.records import Message, Task
from uptrend.stats.trend import power_of_rise


def binary(rates: np.ndarray, size: int, seed: int = 0) -> PassRates:
    chance = np.random.default_rng(seed)
    rewards = tuple(tuple(float(x) for x in chance.random(size) < p) for p in rates)
    return PassRates(rewards, (0.0,) * len(rates), (1.0,) * len(rates), 1.0)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 2.0), (1.0, 6.0)])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_dead_groups_are_predicted_from_others_of_another_size(a: float, b: float, size: int) -> None:
    rates = np.random.default_rng(1).beta(a, b, 400)
    truth = float(np.mean(rates**size + (1 - rates) ** size))
    assert predict_dead(binary(rates, 8), size) == pytest.approx(truth, abs=0.06)


@pytest.mark.parametrize(
    ("groups", "size", "steps", "gain", "expected"),
    [(8, 8, 50, 0.05, 0.18), (8, 8, 50, 0.1, 0.47), (8, 8, 200, 0.05, 0.50), (8, 8, 200, 0.1, 0.92),
     (32, 16, 50, 0.05, 0.47), (32, 16, 50, 0.1, 0.91)],
)  # fmt: skip
def test_power_is_that_of_a_simulated_trend(groups: int, size: int, steps: int, gain: float, expected: float) -> None:
    """Tasks pass at 65% with a deviation of 0.35 between them; `expected` was simulated elsewhere."""
    between, within = 0.35**2, 0.65 * 0.35 - 0.35**2
    deviation = ((between + within / size) / groups) ** 0.5
    assert power_of_rise(gain, deviation, steps, LEVEL) == pytest.approx(expected, abs=0.04)
    slopes = _simulate(deviation, steps, gain, 4000)
    assert power_of_rise(gain, deviation, steps, LEVEL) == pytest.approx(slopes, abs=0.04)


def _simulate(deviation: float, steps: int, gain: float, runs: int) -> float:
    x = np.linspace(-0.5, 0.5, steps)
    noise = np.random.default_rng(0).normal(0, deviation, (runs, steps))
    slopes = (gain * x + noise) @ x / (x @ x)
    return float(np.mean(slopes / (deviation / (x @ x) ** 0.5) > 1.645))


@pytest.mark.parametrize(
    ("said", "answer", "meant"),
    [
        ("The answer is 12.", "12", True),
        (r"so \boxed{12}", "12", True),
        ("#### 1,200", "1200", True),
        ("it makes 12", "12", True),
        ("12 + 3 = 15", "12", False),
        ("The answer is 13, not 12", "12", False),
        ("<answer>Paris</answer>", "paris", True),
        ("Yes!", "yes", True),
        ("yes and no", "yes", False),
        ("", "12", False),
        (r"\boxed{11} or \boxed{12}", "12", False),
    ],
)
def test_a_lenient_reader_takes_what_can_mean_nothing_else(said: str, answer: str, meant: bool) -> None:
    assert is_meant(said, answer) is meant


def test_the_same_question_in_other_spelling() -> None:
    one, two, three = (
        Task((Message("user", text),), "4", "f") for text in ("What is 2 + 2?", "what is 2  + 2", "What is 2 - 2?")
    )
    assert question(one) == question(two) != question(three)
    assert one.id != two.id


def test_true_advantages_need_no_order() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Earned:
        total: float

    @dataclass(frozen=True)
    class Told:
        group: str
        reward: Earned | None

    rollouts = [
        Told("a", Earned(1.0)),
        Told("b", Earned(0.0)),
        Told("a", Earned(0.0)),
        Told("b", None),
        Told("b", Earned(0.0)),
    ]
    found = true_advantages(rollouts, "group", "mean")  # type: ignore[arg-type]
    assert found == pytest.approx([0.5 / (0.5**0.5 + 1e-4), 0, -0.5 / (0.5**0.5 + 1e-4), 0, 0])
    assert true_advantages(rollouts, "none", "leave_one_out")[0] == pytest.approx(1.0)  # type: ignore[arg-type]


def test_notes_leave_a_probe_ok() -> None:
    assert told("fine").ok
