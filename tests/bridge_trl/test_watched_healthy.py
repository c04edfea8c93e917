"""A healthy TRL run, watched: what it writes equals what TRL had, it is not disturbed, and nobody
is alarmed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_sums import GROUPS, SIZE, make_trainer, right
from transformers import TrainerCallback
from trl import GRPOTrainer

from uptrend.bridge.trl import Watch, watch, watched
from uptrend.records import Role, Run

pytestmark = pytest.mark.slow

STEPS = 3


class Keeping(GRPOTrainer):
    """Keeps what TRL computed, as an oracle."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: list[dict[str, torch.Tensor]] = []
        self.said: list[dict[str, float]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.kept.append({key: value.clone() for key, value in output.items()})
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.said.append(dict(logs))


def drawing(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Draws from the generator that also samples: asked again, it must leave no trace."""
    torch.rand(1)
    return right(completions, answer)


@pytest.fixture(scope="module")
def both(
    tiny_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Keeping, Keeping, Watch]:
    """The same run twice: alone, and watched."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trl")
    settings: dict[str, Any] = {"steps": STEPS, "trainer": Keeping, "beta": 0.04, "reward": drawing}
    plain = make_trainer(tiny_folder, folder / "plain", **settings)
    plain.train()
    seen = make_trainer(tiny_folder, folder / "seen", **settings)
    watching = watch(seen)
    seen.train()
    return plain, seen, watching


def test_a_watched_run_learns_exactly_what_an_unwatched_one_does(both: Any) -> None:
    plain, seen, _ = both
    weights = [dict(trainer.model.named_parameters()) for trainer in (plain, seen)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(
        torch.equal(a["completion_ids"], b["completion_ids"])
        for a, b in zip(plain.kept, seen.kept, strict=True)
    )


def test_nothing_is_found_and_nothing_failed(both: Any) -> None:
    run = Run(both[2].path)
    assert [
        e for e in run.events if e["event"] in ("finding", "probed") and e["severity"] != "note"
    ] == []
    assert [e for e in run.events if e["event"] == "watch-failed"] == []
    assert (run.status, run.last_step) == ("finished", STEPS)


def test_the_rows_hold_trls_own_tensors(both: Any) -> None:
    _, seen, watching = both
    out = seen.kept[1]
    rows = Run(watching.path).rollouts(2).to_pylist()
    assert len(rows) == GROUPS * SIZE
    for row, ids, mask, told, advantage, reference in zip(
        rows, out["completion_ids"], out["completion_mask"], out["prompt_ids"], out["advantages"],
        out["ref_per_token_logps"], strict=True,
    ):  # fmt: skip
        prompt = sum(role == Role.PROMPT for role in row["roles"])
        size = int(mask.sum())
        assert row["ids"][prompt:] == ids[:size].tolist()
        assert row["ids"][:prompt] == told[-prompt:].tolist()
        assert row["roles"][prompt:] == [Role.MODEL] * size
        assert all(row["attended"])
        assert row["advantages"][prompt:] == pytest.approx([float(advantage)] * size, abs=1e-6)
        assert row["reference"][prompt:] == pytest.approx(reference[:size].tolist(), abs=1e-5)
        assert row["sampler"] is None  # TRL keeps none without vLLM
        assert [weight > 0 for weight in row["weights"]] == [False] * prompt + [True] * size
        assert set(row["versions"][prompt:]) == {1}


def test_the_learners_log_probabilities_are_the_plain_models(both: Any, tiny_folder: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    for row in Run(both[2].path).rollouts(1).to_pylist()[:5]:  # before the first update
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["ids"]])).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(row["ids"][1:])[:, None])[
            :, 0
        ]
        start = row["roles"].index(Role.MODEL)
        assert row["learner"][start:] == pytest.approx(expected[start - 1 :].tolist(), abs=1e-4)


SAME = {
    "reward/mean": "reward", "learner/entropy/mean": "entropy", "sampling/length/mean": "completions/mean_length",
    "kl/reference/mean": "kl", "gradient/norm/before": "grad_norm", "optimizer/lr": "learning_rate",
    "advantage/dead/share": "frac_reward_zero_std", "sampling/truncated/share": "completions/clipped_ratio",
}  # fmt: skip
"""Metrics that TRL logs as well, under its own names."""


def test_the_line_says_what_trl_logged_and_what_it_did_not(both: Any) -> None:
    _, seen, watching = both
    lines = Run(watching.path).metric_lines
    logged = [line for line in seen.said if "reward" in line]
    for line, said in zip(lines, logged, strict=True):
        for ours, theirs in SAME.items():
            assert line[ours] == pytest.approx(float(said[theirs]), rel=1e-4, abs=1e-5), ours
        assert line["weights/changed/share"] > 0.9
        assert line["tokens/trained/model/count"] == line["tokens/model/count"]
        assert (
            line["sampling/context/max"]
            <= line["sampling/prompt/max"] + said["completions/max_length"]
        )
        assert None not in line.values()
    assert lines[0]["sampler/gap/max"] < 1e-3
    assert "sampler/gap/max" not in lines[1]


def test_the_update_is_as_long_as_the_weights_say(both: Any, tiny_folder: str) -> None:
    from transformers import AutoModelForCausalLM

    start = dict(AutoModelForCausalLM.from_pretrained(tiny_folder).named_parameters())
    now = dict(both[1].model.named_parameters())
    moved = (
        sum(float((now[name] - start[name]).detach().double().square().sum()) for name in start)
        ** 0.5
    )
    lines = Run(both[2].path).metric_lines
    assert max(line["weights/update/norm"] for line in lines) < moved * 1.05
    assert (
        sum(line["weights/update/norm"] for line in lines) > moved * 0.95
    )  # the triangle's inequality
    digests = [event["digest"] for event in Run(both[2].path).events if event["event"] == "weights"]
    assert len(digests) == 2
    assert digests[0] != digests[1]


def test_run_json_has_our_keys(both: Any) -> None:
    run = Run(both[2].path)
    assert (run.info["trainer"], run.info["raw"]["num_generations"]) == ("trl", SIZE)
    sampling, learning = run.config["sampling"], run.config["learning"]
    assert (
        sampling.items()
        >= {"size": SIZE, "groups": GROUPS, "max_tokens": 8, "max_turns": 1}.items()
    )
    assert (
        learning.items()
        >= {"lr": 1e-4, "kl": learning["kl"], "loss": "dapo", "steps": STEPS}.items()
    )
    assert (learning["kl"]["beta"], run.config["model"]["weights"]) == (0.04, "fp32")


def test_right_answers_are_known_by_what_gold_earns_and_groups_are_the_prompts(both: Any) -> None:
    rows = Run(both[2].path).rollouts(1).to_pylist()
    prompts: dict[str, set[str]] = {}
    for row in rows:
        assert row["correct"] == (row["reward"] == 1.0)
        assert row["reward_high"] == 1.0
        asked = row["messages"][0]["content"]
        a, b = (int(word) for word in asked.split() if word.isdigit())
        assert row["answer"] == str(a + b)
        prompts.setdefault(row["group"], set()).add(asked)
    assert [len(found) for found in prompts.values()] == [1] * GROUPS
    assert sorted(row["index"] for row in rows) == sorted(list(range(SIZE)) * GROUPS)


def test_a_wrapped_class_is_watched_and_a_second_run_lies_beside_the_first(
    tiny_folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, why in (("run", ""), ("run-2", f", since {tmp_path / 'run'} already holds a run")):
        trainer = make_trainer(
            tiny_folder, tmp_path, trainer=watched(GRPOTrainer, tmp_path / "run"), steps=1
        )
        assert watch(trainer) is watch(trainer)
        trainer.train()
        assert Run(tmp_path / name).last_step == 1
        path = tmp_path / name
        place = f"uptrend: recording to {path}{why}. To look at it: uptrend runs show {path}\n"
        assert capfd.readouterr().err.count(place) == 1


def test_a_resumed_run_goes_on_in_its_directory(
    tiny_folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for steps, resume in ((2, None), (3, str(tmp_path / "checkpoint-1"))):
        trainer = make_trainer(
            tiny_folder, tmp_path, steps=steps, save_strategy="steps", save_steps=1
        )
        watching = watch(trainer, rescore=False)
        trainer.train(resume_from_checkpoint=resume)
    run = Run(watching.path)
    assert run.path.name == "uptrend"
    assert (
        f"uptrend: recording from step 2 to {run.path}. To look at it: " in capfd.readouterr().err
    )
    assert [line["step"] for line in run.metric_lines] == [1, 2, 3]
    assert [e["event"] for e in run.events if e["event"] in ("started", "resumed")] == [
        "started",
        "resumed",
    ]


def test_several_updates_a_generation(tiny_folder: str, tmp_path: Path) -> None:
    """Rollouts are filed under the step that sampled them, with the log-probabilities before any
    update on them.
    """
    trainer = make_trainer(
        tiny_folder, tmp_path, steps=4, num_iterations=2, per_device_train_batch_size=SIZE * 2,
        steps_per_generation=2, gradient_accumulation_steps=2, trainer=Keeping,
    )  # fmt: skip
    watching = watch(trainer)
    trainer.train()
    run = Run(watching.path)
    assert sorted(int(path.name) for path in (run.path / "rollouts").iterdir()) == [1, 3]
    assert ["reward/mean" in line for line in run.metric_lines] == [True, False, True, False]
    old = trainer.kept[1]["old_per_token_logps"]
    for row, expected in zip(run.rollouts(3).to_pylist(), old, strict=True):
        start = row["roles"].index(Role.MODEL)
        written = row["learner"][start:]
        assert written == pytest.approx(expected[: len(written)].tolist(), abs=1e-4)
    assert run.metric_lines[0]["learner/ratio/mean"] == pytest.approx(1.0, abs=1e-4)
    assert abs(run.metric_lines[1]["learner/ratio/mean"] - 1.0) > 1e-4


def test_a_step_keeps_what_it_sampled_first_when_the_rest_is_learned_from_later(
    tiny_folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first step samples twice, and the loss passes over the second generation in the step
    after it.
    """
    trainer = make_trainer(
        tiny_folder, tmp_path, steps=3, steps_per_generation=3, gradient_accumulation_steps=4
    )
    watching = watch(trainer, rescore=False)
    trainer.train()
    run = Run(watching.path)
    sampled = {
        line["step"]: line["sampling/rollouts/count"]
        for line in run.metric_lines
        if "reward/mean" in line
    }
    assert sampled[1] == 2 * sampled[3]  # steps 1 and 2 sample twice and once more, step 3 once
    assert {step: run.rollouts(step).num_rows for step in run.rollout_steps} == sampled
    assert "watching" not in capfd.readouterr().err


def test_an_evaluation_is_recorded_and_an_unscored_task_counts_as_wrong(
    tiny_folder: str, tmp_path: Path
) -> None:
    def unsure(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
        return [None if i == 3 else value for i, value in enumerate(right(completions, answer))]

    options = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": SIZE}
    trainer = make_trainer(tiny_folder, tmp_path, steps=2, held_out=3, reward=unsure, **options)
    watching = watch(trainer)
    trainer.train()
    run = Run(watching.path)
    assert [line["step"] for line in run.eval_lines] == [1, 2]
    line, rows = run.eval_lines[0], run.eval_rollouts(1).to_pylist()
    assert (line["tasks"], line["failed"], line["correct"]) == (
        12,
        3,
        sum(bool(row["correct"]) for row in rows),
    )
    assert line["accuracy"] == line["correct"] / 12
    assert line["low"] < line["accuracy"] < line["high"]
    assert line["reward"] == pytest.approx(
        np.mean([row["reward"] for row in rows if row["reward"] is not None])
    )


class FailsWhenAsked(GRPOTrainer):
    """Trainer whose log-probabilities can be computed while it learns, and not when a probe asks
    for them.
    """

    def _get_per_token_logps_and_entropies(self, *given: Any, **how: Any) -> Any:
        if not torch.is_grad_enabled():
            raise ZeroDivisionError("planted")
        return super()._get_per_token_logps_and_entropies(*given, **how)


def test_what_fails_inside_the_watch_stays_there(
    tiny_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Spoils(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            (tmp_path / "uptrend" / "rollouts").touch()  # where the other process needs a folder

    trainer = make_trainer(tiny_folder, tmp_path, steps=2, trainer=FailsWhenAsked)
    watching = watch(trainer)
    trainer.add_callback(Spoils())
    trainer.train()
    assert trainer.state.global_step == 2
    said = capsys.readouterr().err
    assert said.count("planted") >= 1
    assert "watching records failed; the run goes on" in said
    assert "2 steps were not recorded, or not whole: 1, 2" in said
    assert watching.path.name == "uptrend"


def test_a_run_that_fails_is_recorded_as_failed(tiny_folder: str, tmp_path: Path) -> None:
    def reward(completions: list[Any], **_: Any) -> list[float]:
        if reward.calls == 1:  # type: ignore[attr-defined]
            raise RuntimeError("the judge is down")
        reward.calls += 1  # type: ignore[attr-defined]
        return right(completions, _["answer"])

    reward.calls = 0  # type: ignore[attr-defined]
    trainer = make_trainer(tiny_folder, tmp_path, steps=3, reward=reward)
    watching = watch(trainer, rescore=False)
    with pytest.raises(RuntimeError, match="the judge is down"):
        trainer.train()
    run = Run(watching.path)
    assert run.status == "failed"
    assert run.last_step == 1
