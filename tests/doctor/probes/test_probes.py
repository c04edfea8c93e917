"""Every probe on healthy recipes, where none warns, and on a planted fault, which it names."""

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.faults.fault import Alter, PlayWrapper, Strength, plays, policy, unaltered
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.planted.reward import graded
from benchmarks.faults.planted.sampling import TemperatureIgnored

from doctor.probes.benches import CHEAP, TINY, ask, bench_of
from small_musique import write_questions, write_small
from uptrend.doctor.probes import PROBES, differential
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.probe import Result
from uptrend.doctor.probes.rollouts import PassRates, is_meant, predict_dead
from uptrend.doctor.probes.update import true_advantages
from uptrend.records import Ending, Finding, Message, Reward, Task, Tool
from uptrend.tasks.arithmetic import Arithmetic, is_right

HARD = [f"{table}.{option}" for table in ("tasks", "eval") for option in ("operations=['*']", "low=41", "high=99")]


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))


@pytest.fixture(scope="module")
def musique(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe of questions with tools, for a small model that was never taught to use them."""
    folder = tmp_path_factory.mktemp("musique")
    options = {"file": str(write_questions(folder / "questions.jsonl", 200)), "retriever": "lexical", "returned": 1}
    return {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 100, **options},
        "eval": {"name": "musique", "tasks": 8, "every": 0, **options},
        "sampling": {"max_tokens": 16, "max_turns": 4, "context": 200},
        "learning": {"steps": 60, "lr": 5e-4},
    }


def ask_one(bench: Bench, name: str) -> tuple[Result, Finding | None]:
    (result,) = ask(bench, [name])
    assert len(result.findings) < 2
    return result, next(iter(result.findings), None)


def warned(results: list[Result]) -> list[tuple[str, str]]:
    return [(f.id, f.summary) for r in results for f in r.findings if f.severity != "note"]


HEALTHY: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "bnpo": ("learning.loss=bnpo",),
    "dr_grpo": ("learning.loss=dr_grpo", "learning.scale=none"),
    "dapo": ("learning.loss=dapo", "learning.clip_high=0.28", "learning.mask_truncated=true"),
    "gspo": ("learning.loss=gspo", "learning.clip_low=3e-4", "learning.clip_high=4e-4"),
    "cispo": ("learning.loss=cispo", "learning.clip_high=5"),
    "adapters": ("model.lora={r=8,alpha=16}", "learning.lr=2e-3"),
    "penalty": ("learning.kl.beta=0.05", "learning.skip_dead=false", "learning.minibatches=2"),
    "penalty-in-reward": ("learning.kl={beta=0.05,estimator='k1'}", "learning.skip_dead=false", "learning.updates=2"),
    "batch-scaled": ("learning.scale=batch", "learning.baseline=leave_one_out", "sampling.resample=1"),
    "temperature-1": ("sampling.temperature=1.0", "learning.correction=token"),
    "entropy": ("learning.entropy=0.01", "learning.skip_dead=false"),
    "bf16": ("model.weights=bf16",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_recipe_gets_no_warning(name: str, tiny_folder: str) -> None:
    names = [n for n in PROBES if name == "grpo" or n not in ("control", "rl-control")]
    results = ask(bench_of(TINY, f"model.name={tiny_folder}", *HEALTHY[name]), names)
    assert warned(results) == []
    assert all(bool(result.figure) != bool(result.skipped) for result in results)


def test_questions_with_tools_get_no_warning(musique: dict[str, Any]) -> None:
    results = {r.name: r for r in ask(bench_of(musique))}
    assert warned(list(results.values())) == []
    assert not any(results[name].skipped for name in ("tool-swap", "tool-calls", "state", "paid"))
    assert "tool tokens" in results["masks"].figure


PROBED = [(fault.id, s) for fault in FAULTS.values() for s in fault.strengths if s.probe]
HERE = [
    ("optimizer.lr-large", Strength("lr 50", settings={"learning.lr": 50}, probe="step-size")),
    # At the recipe's own temperature; the benchmark plants it nearer to 1.
    ("sampling.truncated-distribution", Strength("temperature-ignored", policy(TemperatureIgnored), probe="agreement")),
]


@pytest.mark.parametrize(("id", "fault"), [pytest.param(*given, id=given[1].name) for given in [*PROBED, *HERE]])
def test_a_planted_fault_is_named_first(id: str, fault: Strength, tiny_folder: str) -> None:
    bench = bench_of(TINY, f"model.name={tiny_folder}", settings=fault.settings, alter=fault.alter)
    results = ask(bench, list(dict.fromkeys([*CHEAP, fault.probe])))
    first = next(iter(differential(results)), None)
    assert first is not None, [r.figure for r in results]
    assert (first.id, first.severity != "note") == (id, True), first.summary
    assert next(r.name for r in results if id in [f.id for f in r.findings]) == fault.probe


@pytest.mark.parametrize("id", ["mask.tool-trained", "mask.attention-blind"])
def test_a_fault_is_named_first_where_there_are_tools(id: str, musique: dict[str, Any]) -> None:
    results = ask(bench_of(musique, alter=FAULTS[id].strengths[0].alter), CHEAP)
    assert (differential(results)[0].id, differential(results)[0].severity) == (id, "critical")
    assert ("tool-swap" in [r.name for r in results if r.findings]) == (id == "mask.attention-blind")


class Shared(PlayWrapper):
    """Play that is paid only while no other is open."""

    opened = itertools.count()
    last = -1

    def __init__(self, play: Any, task: Task) -> None:
        super().__init__(play, task)
        self.number = Shared.last = next(Shared.opened)

    async def score(self) -> Reward:
        """Score the last one that was opened."""
        reward = await super().score()
        return reward if self.number == Shared.last else replace(reward, total=reward.low - 1)


def first_strength(id: str) -> tuple[Alter, dict[str, Any]]:
    fault = FAULTS[id].strengths[0]
    return fault.alter, dict(fault.settings)


def settings(**values: Any) -> tuple[Alter, dict[str, Any]]:
    return unaltered, {key.replace("__", "."): value for key, value in values.items()}


ALONE: list[tuple[str, str, str, tuple[Alter, dict[str, Any]]]] = [
    ("state", "task.state-leaks", "critical", (plays(Shared), {})),
    ("prompts", "context.prompt-truncated", "critical", settings(sampling__max_prompt=10)),
    ("gold", "context.completion-truncated", "critical", settings(sampling__max_tokens=1)),
    ("rescoring", "reward.error-scored", "critical", first_strength("reward.error-scored")),
    ("dead-groups", "advantage.dead-groups-low", "warning", first_strength("advantage.dead-groups-low")),
    ("dead-groups", "advantage.dead-groups-high", "warning", (graded(lambda r, *_: replace(r, total=r.high)), {})),
    ("parser", "reward.strict-parser", "warning", first_strength("reward.gold-rejected")),
    ("wrong-gold", "data.wrong-gold", "critical", first_strength("data.wrong-gold")),
    ("endings", "sampling.no-stop", "critical", first_strength("sampling.no-stop")),
    ("endings", "context.completion-truncated", "warning", settings(sampling__max_tokens=1)),
    ("power", "run.too-short", "note", settings(learning__steps=2, learning__warmup=0)),
    ("control", "advantage.sign", "critical", (FAULTS["advantage.sign"].strengths[1].alter, {})),
    ("control", "optimizer.frozen", "critical", first_strength("optimizer.frozen")),
    ("control", "sync.stale-weights", "warning", first_strength("reward.gold-rejected")),
    ("rl-control", "optimizer.lr-small", "note", first_strength("advantage.sign")),
    ("step-size", "optimizer.lr-small", "warning", settings(learning__lr=1e-9)),
]


@pytest.mark.parametrize(("name", "id", "severity", "fault"), ALONE, ids=[f"{name}-{id}" for name, id, *_ in ALONE])
def test_a_probe_names_its_fault(
    name: str, id: str, severity: str, fault: tuple[Alter, dict[str, Any]], tiny_folder: str
) -> None:
    alter, values = fault
    result, finding = ask_one(bench_of(TINY, f"model.name={tiny_folder}", settings=values, alter=alter), name)
    assert finding is not None, result.figure or result.skipped
    assert (finding.id, finding.severity, result.ok) == (id, severity, severity == "note")


def test_every_probe_has_a_planted_fault() -> None:
    named = {fault.probe for _, fault in [*PROBED, *HERE]} | {name for name, *_ in ALONE}
    assert set(PROBES) - named == {"cheater", "paid", "tool-calls", "tool-swap"}  # each with tests in this file


def says(error: str = "", calls: int = 2) -> Any:
    """A renderer whose template fails, or that reads back another number of calls."""

    class Rendered:
        def later(self, *_: object) -> list[int]:
            if error == "later":
                raise ValueError(error)
            return [1, 2]

        def write(self, _: Message) -> list[int]:
            if error == "write":
                raise ValueError(error)
            return []

        def read(self, _: list[int]) -> Any:
            return type("Read", (), {"calls": [None] * calls})

    return Rendered()


@pytest.mark.parametrize(
    ("renderer", "severity"), [(says("later"), "critical"), (says("write"), "note"), (says(calls=1), "note")]
)
def test_several_tool_calls_must_be_rendered(renderer: Any, severity: str, musique: dict[str, Any]) -> None:
    bench = bench_of(musique)
    bench.renderer = renderer
    _, finding = ask_one(bench, "tool-calls")
    assert finding is not None
    assert (finding.id, finding.severity) == ("tool.multi-call", severity)


def test_an_expert_that_says_more_than_the_limits_allow_can_still_be_swapped(musique: dict[str, Any]) -> None:
    bench = bench_of(musique, "sampling.max_tokens=3")
    assert ask_one(bench, "tool-swap")[0].ok
    assert ask_one(bench, "control")[0].figure


# Scripted cheaters: a sound scorer pays none, and those that are paid are told apart by what they said.
def judged(is_paid: Callable[[str, str], bool]) -> Alter:
    def judge(_: Reward, said: str, task: Task) -> Reward:
        return Reward.of("judged", float(paid := is_paid(said, task.answer)), 0.0, 1.0, paid)

    return graded(judge)


def lucky() -> Alter:
    draw = random.Random(0)
    return graded(lambda r, *_: replace(r, total=1.0, correct=True) if draw.random() < 1 / 3 else r)


@pytest.mark.parametrize(
    ("alter", "id", "count"),
    [
        (unaltered, None, "0 of 24"),
        (judged(lambda said, answer: answer in said.split()), "reward.hackable", "8 of 24"),
        (judged(lambda said, answer: bool(re.search(said, answer))), "task.evaluator-exposed", ""),
        (judged(lambda *_: bool(1 / 0)), None, "0 of 24"),
        (lucky(), None, ""),
    ],
    ids=["sound", "looks anywhere", "matches patterns", "fails", "lucky"],
)
def test_cheaters(alter: Alter, id: str | None, count: str, tiny_folder: str) -> None:
    result, finding = ask_one(bench_of(TINY, f"model.name={tiny_folder}", alter=alter), "cheater")
    assert result.figure.startswith(count)
    assert (finding.id if finding else None) == id
    if finding is not None:
        assert (finding.severity, finding.evidence[0].text) == ("critical", result.figure)


def test_a_taskset_without_cheaters_is_not_asked(llama_folder: Path) -> None:
    tasks = {"name": "letters:Letters"}
    recipe = {"model": {"name": str(llama_folder)}, "tasks": {**tasks, "train": 30}, "eval": {**tasks, "tasks": 6}}
    assert ask_one(bench_of(recipe), "cheater")[0].skipped == "the taskset has no scripted cheater"


class SlowPlay:
    """Asks for the right answer twice; any answer will end it from the third turn on."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task) -> None:
        self.messages, self.answer, self.said = task.messages, task.answer, list[str]()

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self.said.append(message.content)
        is_over = is_right(message.content, self.answer) or len(self.said) > 2
        return None if is_over else [Message("tool", "\nCalculate: 1 + 1 = ")]

    async def score(self) -> Reward:
        ended = bool(self.said) and (len(self.said) > 2 or is_right(self.said[-1], self.answer))
        return Reward.of("ended", float(ended), 0.0, 1.0, ended)

    async def close(self) -> None: ...


class Slow(Arithmetic):
    """Products that the model does not know, which it can get past in three turns."""

    name = "slow"

    def open(self, task: Task, seed: int) -> SlowPlay:  # type: ignore[override]  # noqa: ARG002
        return SlowPlay(task)


def workshop(folder: str, name: str, *overrides: str, groups: int = 4) -> Bench:
    tasks = {"name": name, "operations": ["+", "-"], "high": 9}
    recipe = {
        "model": {"name": folder},
        "tasks": {**tasks, "train": 100},
        "eval": {**tasks, "tasks": 8, "every": 0},
        "sampling": {"max_tokens": 10, "max_turns": 2, "temperature": 0.7},
        "learning": {"steps": 10},
    }
    return bench_of(recipe, *overrides, groups=groups)


WORKSHOP, SLOW = "examples.autopsies.workshop:Workshop", "doctor.probes.test_probes:Slow"
UNPAID = "reward.never-computed"


@pytest.mark.parametrize(
    ("taskset", "overrides", "groups", "expected"),
    [
        (WORKSHOP, ["tasks.pays=validate"], 2, (UNPAID, "warning", "high")),
        (WORKSHOP, ["tasks.pays=validate"], 8, (UNPAID, "critical", "high")),
        # A weak model too: the wait is named, and that nothing would have been paid without it makes it less sure.
        (WORKSHOP, ["tasks.pays=validate", *HARD[:3]], 8, (UNPAID, "warning", "medium")),
        (WORKSHOP, ["tasks.pays=end"], 4, None),
        (WORKSHOP, ["tasks.pays=end", *HARD[:3]], 8, None),
        (SLOW, HARD, 4, ("context.completion-truncated", "warning", "medium")),
        (SLOW, HARD, 2, None),
        (SLOW, [*HARD, "sampling.max_turns=4"], 4, None),
    ],
)
def test_a_reward_that_waits_is_not_a_weak_model(
    taskset: str, overrides: list[str], groups: int, expected: tuple[str, ...] | None, tiny_folder: str
) -> None:
    result, finding = ask_one(workshop(tiny_folder, taskset, *overrides, groups=groups), "paid")
    assert (finding and (finding.id, finding.severity, finding.confidence)) == expected, result.figure


def test_work_that_is_done_and_never_scored_stands_above_its_symptoms(tiny_folder: str) -> None:
    bench = workshop(tiny_folder, WORKSHOP, "tasks.pays=validate", groups=8)
    (cause,) = differential(ask(bench, ["paid", "dead-groups", "endings"]))
    assert (cause.id, [symptom.id for symptom in cause.explains]) == (UNPAID, ["advantage.dead-groups-low"])
    seen, _, own = cause.evidence[:3]
    right = [r for r in bench.rollouts if r.reward and r.reward.correct]  # the task says so, whatever it pays
    assert (seen.value, own.value) == (1.0, pytest.approx(len(right) / 64))
    assert own.rollout == f"1/{right[0].group}/{right[0].index}"


def test_too_few_turns_for_the_expert(tiny_folder: str) -> None:
    _, finding = ask_one(workshop(tiny_folder, WORKSHOP, "tasks.pays=validate", "sampling.max_turns=1"), "gold")
    assert finding is not None
    assert finding.fix is not None
    assert (finding.id, finding.severity) == ("context.completion-truncated", "critical")
    assert finding.fix.changes["uptrend"] == {"sampling.max_turns": 2}


@pytest.mark.parametrize("is_answer_all", [False, True])
def test_an_untaught_model_that_runs_out_of_turns(is_answer_all: bool, musique: dict[str, Any]) -> None:
    """Where answers alone are paid, it never comes to one, with twice the turns either; else it is weak."""
    parts = ("f1", "retrieval_recall", "retrieval_precision", "citation_recall", "format")
    weights = [f"tasks.weights.{part}=0" for part in parts] if is_answer_all else []
    bench = bench_of(musique, "sampling.max_tokens=3", *weights)  # too few for luck
    result, finding = ask_one(bench, "paid")
    assert sum(r.ended in (Ending.TURN_LIMIT, Ending.CONTEXT_FULL) for r in bench.rollouts) == 32
    assert (finding.id if finding else None) == (UNPAID if is_answer_all else None), result.figure
    if finding is not None:
        assert (finding.severity, finding.confidence) == ("warning", "medium")
        assert (finding.evidence[2].value or 0) < 0.1


# Numbers behind the advice, against other ways to get them.
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 2.0), (1.0, 6.0)])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_dead_groups_are_predicted_from_others_of_another_size(a: float, b: float, size: int) -> None:
    rates, draws = np.random.default_rng(1).beta(a, b, 400), np.random.default_rng(0)
    rewards = tuple(tuple(float(x) for x in draws.random(8) < p) for p in rates)
    groups = PassRates(rewards, (0.0,) * len(rates), (1.0,) * len(rates), 1.0)
    truth = float(np.mean(rates**size + (1 - rates) ** size))
    assert predict_dead(groups, size) == pytest.approx(truth, abs=0.06)


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
        ("anything", "", False),
        (r"\boxed{11} or \boxed{12}", "12", False),
    ],
)
def test_a_lenient_reader_takes_what_can_mean_nothing_else(said: str, answer: str, meant: bool) -> None:
    assert is_meant(said, answer) is meant


def test_the_same_question_in_other_spelling_is_a_leak(tiny_folder: str) -> None:
    def respell(prepared: Any) -> Any:
        task = prepared.pool.stages[0].tasks[0]
        other = replace(task, messages=tuple(replace(m, content=m.content.upper() + " ?") for m in task.messages))
        return replace(prepared, held_out=replace(prepared.held_out, tasks=[other, *prepared.held_out.tasks[1:]]))

    _, finding = ask_one(bench_of(TINY, f"model.name={tiny_folder}", alter=respell), "leak")
    assert finding is not None


def test_true_advantages_need_no_order() -> None:
    rewards = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("b", None), ("b", 0.0)]
    told: Any = [SimpleNamespace(group=g, reward=None if x is None else SimpleNamespace(total=x)) for g, x in rewards]
    found = true_advantages(told, "group", "mean")
    assert found == pytest.approx([0.5 / (0.5**0.5 + 1e-4), 0, -0.5 / (0.5**0.5 + 1e-4), 0, 0])
    assert true_advantages(told, "none", "leave_one_out")[0] == pytest.approx(1.0)
