"""Every probe on healthy recipes, where none warns, and on planted faults, which it names; the
bench stays the same.
"""

import copy
import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.faults.fault import Alter, PlayWrapper, Strength, plays, policy, unaltered
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.planted.reward import graded
from benchmarks.faults.planted.sampling import TemperatureIgnored

from small_musique import write_questions, write_small
from uptrend.config import load_config
from uptrend.config.functions import register_functions
from uptrend.doctor.probes import PROBES, differential, run_probes
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.probe import Result
from uptrend.doctor.probes.rollouts import PassRates, predict_dead
from uptrend.doctor.probes.update import true_advantages
from uptrend.policy.known import find_model
from uptrend.policy.weights import digest
from uptrend.records import Ending, Finding, Message, Reward, Task, Tool
from uptrend.runner.prepare import prepare
from uptrend.tasks.answers import is_right
from uptrend.tasksets.arithmetic import Arithmetic
from uptrend.training.components import RunContext

ROOT = Path(__file__).parents[3]
TINY = ROOT / "recipes" / "tiny.toml"
SMALL = ("sampling.groups=4", "sampling.size=8", "compute.threads=1", "compute.device=cpu")
CHEAP = [name for name, probe in PROBES.items() if probe.cheap]
ALL = [name for name, probe in PROBES.items() if not probe.full]
HARD = [
    f"{table}.{option}"
    for table in ("tasks", "eval")
    for option in ("operations=['*']", "low=41", "high=99")
]


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="module")
def musique(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe of questions with tools, for a small model that was never taught to use them."""
    folder = tmp_path_factory.mktemp("musique")
    options = {
        "file": str(write_questions(folder / "questions.jsonl", 200)),
        "retriever": "lexical",
        "returned": 1,
    }
    return {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 100, **options},
        "eval": {"name": "musique", "tasks": 8, "every": 0, **options},
        "sampling": {"max_tokens": 16, "max_turns": 4, "context": 200},
        "learning": {"steps": 60, "lr": 5e-4},
    }


def bench_of(
    recipe: Path | dict[str, Any] = TINY,
    *overrides: str,
    groups: int = 4,
    settings: Mapping[str, Any] | None = None,
    alter: Alter = unaltered,
) -> Bench:
    """Make a small bench of a recipe, by default of the tiny model; `alter` replaces its parts."""
    model = [f"model.name={find_model('tiny')}"] if recipe == TINY else []
    given = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    p = alter(prepare(load_config(recipe, [*SMALL, *model, *overrides, *given])))
    return Bench(p, groups)


def ask(bench: Bench, names: Sequence[str] = ALL) -> list[Result]:
    return list(run_probes(bench, names))


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
    "left-out": ("sampling.top_p=0.9", "sampling.min_p=0.02", "sampling.repetition_penalty=1.1", "learning.tokens=0"),
    "guarded": ("learning.clip_max=3.0", "learning.correction=token", "learning.correction_mode=mask",
                "learning.correction_floor=0.5", "sampling.overlong=2"),
    "bf16": ("model.weights=bf16",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_recipe_gets_no_warning(name: str) -> None:
    names = [n for n in PROBES if name == "grpo" or n not in ("control", "rl-control")]
    results = ask(bench_of(TINY, *HEALTHY[name]), names)
    assert warned(results) == []
    assert all(bool(result.figure) != bool(result.skipped) for result in results)


def test_questions_with_tools_get_no_warning(musique: dict[str, Any]) -> None:
    results = {r.name: r for r in ask(bench_of(musique))}
    assert warned(list(results.values())) == []
    assert not any(results[name].skipped for name in ("tool-swap", "tool-calls", "state", "paid"))
    assert "tool tokens" in results["masks"].figure


PROBED = [(fault.id, s) for fault in FAULTS.values() for s in fault.strengths if s.probe]
HERE = [
    ("optimizer.lr-large", Strength("lr 1", settings={"learning.lr": 1}, probe="step-size")),
    # At the recipe's own temperature; the benchmark plants it nearer to 1.
    (
        "sampling.truncated-distribution",
        Strength("temperature-ignored", policy(TemperatureIgnored), probe="agreement"),
    ),
]


@pytest.mark.parametrize(
    ("id", "fault"), [pytest.param(*given, id=given[1].name) for given in [*PROBED, *HERE]]
)
def test_a_planted_fault_is_named_first(id: str, fault: Strength) -> None:
    bench = bench_of(TINY, settings=fault.settings, alter=fault.alter)
    results = ask(bench, list(dict.fromkeys([*CHEAP, fault.probe])))
    first = next(iter(differential(results)), None)
    assert first is not None, [r.figure for r in results]
    assert (first.id, first.severity != "note") == (id, True), first.summary
    assert next(r.name for r in results if id in [f.id for f in r.findings]) == fault.probe


@pytest.mark.parametrize("id", ["mask.tool-trained", "mask.attention-blind"])
def test_a_fault_is_named_first_where_there_are_tools(id: str, musique: dict[str, Any]) -> None:
    results = ask(bench_of(musique, alter=FAULTS[id].strengths[0].alter), CHEAP)
    assert (differential(results)[0].id, differential(results)[0].severity) == (id, "critical")
    assert ("tool-swap" in [r.name for r in results if r.findings]) == (
        id == "mask.attention-blind"
    )


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


def respell(prepared: Any) -> Any:
    """Ask a training task's question in other spelling among the held-out tasks."""
    task, held = prepared.pool.stages[0].tasks[0], prepared.heldout
    other = replace(
        task, messages=tuple(replace(m, content=m.content.upper() + " ?") for m in task.messages)
    )
    return replace(prepared, heldout=replace(held, tasks=[other, *held.tasks[1:]]))


def first_strength(id: str) -> tuple[Alter, dict[str, Any]]:
    fault = FAULTS[id].strengths[0]
    return fault.alter, dict(fault.settings)


def settings(**values: Any) -> tuple[Alter, dict[str, Any]]:
    return unaltered, {key.replace("__", "."): value for key, value in values.items()}


def foreign_end(context: RunContext) -> RunContext:
    """Name an end token in the model's files that the tokenizer does not have."""
    core = context.policy.core
    core.generation_config = copy.deepcopy(core.generation_config)
    core.generation_config.eos_token_id = [*context.policy.stop_ids, 5000]
    return context


ALONE: list[tuple[str, str, str, tuple[Alter, dict[str, Any]]]] = [
    ("leak", "data.leak", "warning", (respell, {})),
    ("state", "task.state-leaks", "critical", (plays(Shared), {})),
    ("model-files", "tokens.vocabulary", "warning", (foreign_end, {})),
    ("prompts", "context.prompt-truncated", "critical", settings(sampling__max_prompt=10)),
    ("gold", "context.completion-truncated", "critical", settings(sampling__max_tokens=1)),
    ("rescoring", "reward.error-scored", "critical", first_strength("reward.error-scored")),
    (
        "dead-groups",
        "advantage.dead-groups-low",
        "warning",
        first_strength("advantage.dead-groups-low"),
    ),
    (
        "dead-groups",
        "advantage.dead-groups-high",
        "warning",
        (graded(lambda r, *_: replace(r, total=r.high)), {}),
    ),
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


@pytest.mark.parametrize(
    ("name", "id", "severity", "fault"), ALONE, ids=[f"{name}-{id}" for name, id, *_ in ALONE]
)
def test_a_probe_names_its_fault(
    name: str, id: str, severity: str, fault: tuple[Alter, dict[str, Any]]
) -> None:
    alter, values = fault
    result, finding = ask_one(bench_of(TINY, settings=values, alter=alter), name)
    assert finding is not None, result.figure or result.skipped
    assert (finding.id, finding.severity, result.ok) == (id, severity, severity == "note")


def test_positions_that_count_padding_are_no_leak_between_documents() -> None:
    alter, values = first_strength("tokens.padding")
    result, finding = ask_one(bench_of(TINY, settings=values, alter=alter), "neighbors")
    assert finding is None
    assert result.figure


def test_equal_rewards_do_not_differ_by_their_rounding() -> None:
    # The deviation of six times 0.1 is 1.5e-17.
    bench = bench_of(TINY, "sampling.size=6", alter=graded(lambda r, *_: replace(r, total=0.1)))
    _, finding = ask_one(bench, "advantages")
    assert finding is None


def test_every_probe_has_a_planted_fault() -> None:
    named = {fault.probe for _, fault in [*PROBED, *HERE]} | {name for name, *_ in ALONE}
    own = {
        "bounds",  # in test_reward_bounds.py
        "cheater",
        "paid",
        "tool-calls",
        "tool-swap",
        "none-right",
        "penalty",
        "template",
    }  # each tested by itself
    assert set(PROBES) - named == own


def broken(*_: object) -> Any:
    raise ValueError("a template may raise anything")


@pytest.mark.parametrize(
    ("renderer", "severity"),
    [
        ({"next_prompt": broken}, "critical"),
        ({"write": broken}, "note"),
        ({"read": lambda _: SimpleNamespace(calls=[1])}, "note"),
    ],
    ids=["results fail", "calls fail", "one call is read back"],
)
def test_several_tool_calls_must_be_rendered(
    renderer: Any, severity: str, musique: dict[str, Any]
) -> None:
    parts = {
        "next_prompt": lambda *_: [1, 2],
        "write": lambda _: [],
        "read": lambda _: SimpleNamespace(calls=[1]),
    }
    bench = bench_of(musique)
    bench.renderer = SimpleNamespace(**{**parts, **renderer})  # type: ignore[assignment]
    (finding,) = ask(bench, ["tool-calls"])[0].findings
    assert (finding.id, finding.severity) == ("tool.multi-call", severity)


def test_an_expert_that_says_more_than_the_limits_allow_can_still_be_swapped(
    musique: dict[str, Any],
) -> None:
    bench = bench_of(musique, "sampling.max_tokens=3")
    assert ask_one(bench, "tool-swap")[0].ok
    assert ask_one(bench, "control")[0].figure


# Scripted cheaters: a sound scorer pays none, and those that are paid are told apart by what they
# said.
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
        (judged(lambda said, answer: bool(re.search(said, answer))), "reward.hackable", ""),
        (judged(lambda *_: bool(1 / 0)), None, "0 of 24"),
        (lucky(), None, ""),
    ],
    ids=["sound", "looks anywhere", "matches patterns", "fails", "lucky"],
)
def test_cheaters(alter: Alter, id: str | None, count: str) -> None:
    result, finding = ask_one(bench_of(TINY, alter=alter), "cheater")
    assert result.figure.startswith(count)
    assert (finding.id if finding else None) == id
    if finding is not None:
        severity = (
            "warning" if count else "critical"
        )  # paid with the answer among others, or without it
        assert (finding.severity, finding.evidence[0].text) == (severity, result.figure)


def test_a_taskset_without_cheaters_is_not_asked(llama_folder: Path) -> None:
    tasks = {"name": "letters:Letters"}
    recipe = {
        "model": {"name": str(llama_folder)},
        "tasks": {**tasks, "train": 30},
        "eval": {**tasks, "tasks": 6},
    }
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


class FormatPlay(SlowPlay):
    """One answer; a long number that is wrong earns a little."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self.said.append(message.content)
        return None

    async def score(self) -> Reward:
        right, text = is_right(self.said[-1], self.answer), self.said[0].strip()
        return Reward.of(
            "answer", 1.0 if right else 0.2 * (text.isdigit() and len(text) > 2), 0.0, 1.0, right
        )


class PatientPlay(FormatPlay):
    """The same, asked again until the answer is right."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        await super().respond(message)
        return None if is_right(message.content, self.answer) else [Message("tool", "\nAgain: ")]


class Formatted(Arithmetic):
    """Products that the model does not know."""

    name = "formatted"

    def open(self, task: Task, seed: int) -> FormatPlay:  # type: ignore[override]  # noqa: ARG002
        return FormatPlay(task)


class Patient(Formatted):
    """The same, asked again."""

    name = "patient"

    def open(self, task: Task, seed: int) -> FormatPlay:  # noqa: ARG002
        return PatientPlay(task)


@pytest.mark.parametrize(
    ("taskset", "expected"),
    [
        ("Formatted", ("advantage.dead-groups-low", "note", [])),
        ("Patient", ("reward.never-computed", "warning", ["sampling.max_turns"])),
    ],
)
def test_a_task_of_one_turn_waits_for_no_event(
    taskset: str, expected: tuple[str, str, list[str]]
) -> None:
    tasks = {
        "name": f"doctor.probes.test_probes:{taskset}",
        "operations": ["*"],
        "low": 50,
        "high": 99,
    }
    recipe = {
        "model": {"name": "tiny"}, "tasks": {**tasks, "train": 100}, "eval": {**tasks, "tasks": 8, "every": 0},
        "sampling": {"max_tokens": 8},
    }  # fmt: skip
    result, finding = ask_one(bench_of(recipe), "none-right")
    assert finding is not None, result.figure or result.skipped
    assert finding.fix is not None
    turns = [key for key in finding.fix.changes.get("uptrend", {}) if key.endswith("max_turns")]
    assert (finding.id, finding.severity, turns) == expected


class Slow(Arithmetic):
    """Products that the model does not know, which it can get past in three turns."""

    name = "slow"

    def open(self, task: Task, seed: int) -> SlowPlay:  # type: ignore[override]  # noqa: ARG002
        return SlowPlay(task)


def workshop(name: str, *overrides: str, groups: int = 4) -> Bench:
    tasks = {"name": name, "operations": ["+", "-"], "high": 9}
    recipe = {
        "model": {"name": find_model("tiny")},
        "tasks": {**tasks, "train": 100},
        "eval": {**tasks, "tasks": 8, "every": 0},
        "sampling": {"max_tokens": 10, "max_turns": 2, "temperature": 0.7},
        "learning": {"steps": 10},
    }
    return bench_of(recipe, *overrides, groups=groups)


WORKSHOP, SLOW = "doctor.probes.workshop:Workshop", "doctor.probes.test_probes:Slow"
UNPAID = "reward.never-computed"


@pytest.mark.parametrize(
    ("taskset", "overrides", "groups", "expected"),
    [
        (WORKSHOP, ["tasks.pays=validate"], 2, (UNPAID, "warning", "proof")),
        (WORKSHOP, ["tasks.pays=validate"], 8, (UNPAID, "critical", "proof")),
        # A weak model too: the wait is named, and that nothing would have been paid without it
        # makes it less sure.
        (WORKSHOP, ["tasks.pays=validate", *HARD[:3]], 8, (UNPAID, "warning", "signal")),
        (WORKSHOP, ["tasks.pays=end"], 4, None),
        (WORKSHOP, ["tasks.pays=end", *HARD[:3]], 8, None),
        (SLOW, HARD, 4, ("context.completion-truncated", "warning", "signal")),
        (SLOW, HARD, 2, None),
        (SLOW, [*HARD, "sampling.max_turns=4"], 4, None),
    ],
)
def test_a_reward_that_waits_is_not_a_weak_model(
    taskset: str, overrides: list[str], groups: int, expected: tuple[str, ...] | None
) -> None:
    result, finding = ask_one(workshop(taskset, *overrides, groups=groups), "paid")
    assert (finding and (finding.id, finding.severity, finding.basis)) == expected, result.figure


def test_work_that_is_done_and_never_scored_stands_above_its_symptoms() -> None:
    bench = workshop(WORKSHOP, "tasks.pays=validate", groups=8)
    (cause,) = differential(ask(bench, ["paid", "dead-groups", "endings"]))
    assert (cause.id, [symptom.id for symptom in cause.explains]) == (
        UNPAID,
        ["advantage.dead-groups-low"],
    )
    seen, _, own = cause.evidence[:3]
    right = [
        r for r in bench.rollouts if r.reward and r.reward.correct
    ]  # the task says so, whatever it pays
    assert (seen.value, own.value) == (1.0, pytest.approx(len(right) / 64))
    assert own.rollout == f"1/{right[0].group}/{right[0].index}"


def test_too_few_turns_for_the_expert() -> None:
    (finding,) = ask(workshop(WORKSHOP, "tasks.pays=validate", "sampling.max_turns=1"), ["gold"])[
        0
    ].findings
    assert (finding.id, finding.severity) == ("context.completion-truncated", "critical")
    assert finding.fix is not None
    assert finding.fix.changes["uptrend"] == {"sampling.max_turns": 2}


@pytest.mark.parametrize("is_answer_all", [False, True])
def test_an_untaught_model_that_runs_out_of_turns(
    is_answer_all: bool, musique: dict[str, Any]
) -> None:
    """Where answers alone are paid, it never comes to one, with twice the turns either; else it is
    weak.
    """
    parts = ("f1", "retrieval_recall", "retrieval_precision", "citation_recall", "format")
    weights = [f"tasks.weights.{part}=0" for part in parts] if is_answer_all else []
    bench = bench_of(musique, "sampling.max_tokens=3", *weights)  # too few for luck
    result, finding = ask_one(bench, "paid")
    assert sum(r.ended in (Ending.TURN_LIMIT, Ending.CONTEXT_FULL) for r in bench.rollouts) == 32
    assert (finding.id if finding else None) == (UNPAID if is_answer_all else None), result.figure
    if finding is not None:
        assert (finding.severity, finding.basis) == ("warning", "signal")
        assert (finding.evidence[2].value or 0) < 0.1


# Numbers behind the advice, against other ways to get them.
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2.0, 2.0), (1.0, 6.0)])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_dead_groups_are_predicted_from_others_of_another_size(
    a: float, b: float, size: int
) -> None:
    rates, draws = np.random.default_rng(1).beta(a, b, 400), np.random.default_rng(0)
    rewards = tuple(tuple(float(x) for x in draws.random(8) < p) for p in rates)
    groups = PassRates(rewards, (0.0,) * len(rates), (1.0,) * len(rates), 1.0)
    truth = float(np.mean(rates**size + (1 - rates) ** size))
    assert predict_dead(groups, size) == pytest.approx(truth, abs=0.06)


def test_true_advantages_need_no_order() -> None:
    rewards = [("a", 1.0), ("b", 0.0), ("a", 0.0), ("b", None), ("b", 0.0)]
    told: Any = [
        SimpleNamespace(group=g, reward=None if x is None else SimpleNamespace(total=x))
        for g, x in rewards
    ]
    found = true_advantages(told, "group", "mean")
    assert found == pytest.approx([0.5 / (0.5**0.5 + 1e-4), 0, -0.5 / (0.5**0.5 + 1e-4), 0, 0])
    assert true_advantages(told, "none", "leave_one_out")[0] == pytest.approx(1.0)


# The bench: real parts, and everything as it was afterwards.
PENALTY = ("learning.kl.beta=0.05", "learning.skip_dead=false")


@pytest.fixture
def bench() -> Bench:
    return bench_of(TINY, *PENALTY)


def state_of(bench: Bench) -> tuple[object, ...]:
    """Everything that a probe may disturb: weights, gradients, the reference, random states, the
    model's mode.
    """
    flat, reference = (
        bench.policy.flat,
        [p.clone().tolist() for p in bench.policy.reference.parameters()],
    )
    chance = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return digest(flat), bool(flat.gradient.any()), reference, chance, bench.policy.model.training


def test_probes_leave_everything_as_it_was(bench: Bench) -> None:
    before, names = state_of(bench), [name for name in ALL if name != "control"]
    told = [(r.figure, [f.id for f in r.findings]) for r in ask(bench, names)]
    assert state_of(bench) == before
    again = bench_of(TINY, *PENALTY)
    assert [(r.figure, [f.id for f in r.findings]) for r in ask(again, names)] == told


def test_weights_come_back_when_a_probe_fails_half_way(bench: Bench) -> None:
    before = state_of(bench)

    def fail() -> None:
        with bench.scratch():
            bench.policy.flat.values.data.mul_(2)
            bench.policy.flat.gradient.fill_(1)
            torch.rand(3)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert state_of(bench) == before


def test_an_update_is_real_and_undone(bench: Bench) -> None:
    before, done = digest(bench.policy.flat), bench.trial_update
    assert done.moved.changed > 0.99
    real_bs = done.exp.real_bs
    assert float((done.after_bs - done.before_bs)[real_bs].abs().mean()) > 0.05
    assert 0.005 < float((done.nudged_bs - done.before_bs)[real_bs].abs().mean()) < 0.1
    assert digest(bench.policy.flat) == before
    torch.testing.assert_close(
        bench.logprobs(done.exp), done.before_bs, rtol=0, atol=0, equal_nan=True
    )


# Rewards as users write them, of an answer and of what was said, on sums: sound ones, and with one
# fault each.
def first_number(said: str) -> str:
    found = re.search(r"-?\d+", said)
    return found.group() if found else ""


def distance(said: str, gold: str) -> float:
    return -float(min(20, abs(int(first_number(said) or 99) - int(gold))))


def fails(said: str, gold: str) -> float:
    return float(int(said) == int(gold))


USERS: dict[str, tuple[Callable[[str, str], float | None], str]] = {
    "right or wrong": (lambda said, gold: float(first_number(said) == gold), ""),
    "between -1 and 1": (lambda said, gold: 2.0 * (first_number(said) == gold) - 1, ""),
    "by distance, never above 0": (distance, ""),
    "partial credit": (lambda said, gold: max(0.0, 1 + distance(said, gold) / 10), ""),
    "a penalty for length": (
        lambda said, gold: (first_number(said) == gold) - 0.02 * len(said),
        "",
    ),
    "boxed": (lambda said, gold: float(f"\\boxed{{{gold}}}" in said), ""),
    "None for no number": (
        lambda said, gold: float(n == gold) if (n := first_number(said)) else None,
        "",
    ),
    "flipped": (lambda said, gold: -float(first_number(said) == gold), "advantage.sign"),
    "no negatives": (
        lambda said, gold: float(first_number(said).strip("-") == gold),
        "reward.gold-rejected",
    ),
    "no zero": (
        lambda said, gold: float(first_number(said) == gold != "0"),
        "reward.gold-rejected",
    ),
    "any number": (lambda said, _: float(first_number(said) != ""), "reward.gold-rejected"),
    "substring": (lambda said, gold: float(gold in said), "reward.gold-rejected"),
    "length": (lambda said, _: len(said) / 10, "reward.gold-rejected"),
    "raises": (fails, "reward.error-scored"),
    "None": (lambda *_: None, "reward.never-computed"),
}


def user_bench(
    reward: Callable[[str, str], float | None],
    golds: Callable[[list[str]], list[str]],
    folder: Path,
) -> Bench:
    def user(completion: str, answer: str) -> float | None:
        return reward(completion, answer)

    asked = [
        f"Calculate: {a} {sign} {b} = " for a in range(15) for b in range(0, 15, 2) for sign in "+-"
    ]
    answers = golds(
        [
            str(a + b if sign == "+" else a - b)
            for a in range(15)
            for b in range(0, 15, 2)
            for sign in "+-"
        ]
    )
    rows = [{"prompt": p, "answer": a} for p, a in zip(asked, answers, strict=True)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {"name": "data", "file": str(file), "reward": "user:user", "chat": False}
    with register_functions({"user:user": user}):
        return bench_of(
            {
                "model": {"name": "tiny"},
                "tasks": {**tasks, "train": 150},
                "eval": {**tasks, "tasks": 25},
                "sampling": {"max_tokens": 6},
            }
        )


@pytest.mark.parametrize("name", USERS)
def test_rewards_of_users(name: str, tmp_path: Path) -> None:
    reward, fault = USERS[name]
    found = differential(ask(user_bench(reward, list, tmp_path), ["gold", "cheater"]))
    assert (found[0].id if found else "") == fault


@pytest.mark.parametrize(
    ("golds", "severity", "basis"),
    [
        (list, "", ""),
        (lambda golds: golds[1:] + golds[:1], "critical", "signal"),
        (
            lambda golds: [str(int(g) + 3 * (n % 4 == 0)) for n, g in enumerate(golds)],
            "critical",
            "proof",
        ),
    ],
    ids=["right", "shifted", "some wrong"],
)
def test_golds_of_users(golds: Any, severity: str, basis: str, tmp_path: Path) -> None:
    bench = user_bench(USERS["right or wrong"][0], golds, tmp_path)
    found = [(f.severity, f.basis) for f in ask(bench, ["wrong-gold"])[0].findings]
    assert found == ([(severity, basis)] if severity else [])


MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "temperature 0.01": ("sampling.temperature-low", ("sampling.temperature=0.01",)),
    "top-k 1": ("sampling.temperature-low", ("sampling.top_k=1",)),
    "temperature 5": ("sampling.entropy-explosion", ("sampling.temperature=5",)),
    "two tokens": ("context.completion-truncated", ("sampling.max_tokens=2",)),
    "rate of 1e-3": ("optimizer.lr-large", ("learning.lr=1e-3", "learning.warmup=0")),
    "rate of 1e-9": ("optimizer.lr-small", ("learning.lr=1e-9",)),
    "all warm-up": ("optimizer.schedule", ("learning.warmup=150",)),
    "beta 10": ("kl.strangles", ("learning.kl.beta=10", "learning.skip_dead=false")),
    "prompts cut": ("context.prompt-truncated", ("sampling.max_prompt=12",)),
    "chat template": ("tokens.template", ("tasks.chat=true", "eval.chat=true")),
    "hard tasks": ("advantage.dead-groups-low", (*HARD, "tasks.reward=exact")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_recipe_is_named_first_by_cheap_probes(name: str) -> None:
    id, settings = MISTAKES[name]
    found = [f for f in differential(ask(bench_of(TINY, *settings), CHEAP)) if f.severity != "note"]
    assert [f.id for f in found[:1]] == [id], [f.summary for f in found]


@pytest.mark.parametrize(("rate", "severity"), [("1e-3", "warning"), ("5e-4", "note")])
def test_a_long_first_update_is_a_warning_only_at_an_unusual_rate(rate: str, severity: str) -> None:
    bench = bench_of(TINY, f"learning.lr={rate}", "learning.warmup=0")
    (result,) = ask(bench, ["step-size"])
    assert [(f.id, f.severity) for f in result.findings] == [("optimizer.lr-large", severity)], (
        result.figure
    )
