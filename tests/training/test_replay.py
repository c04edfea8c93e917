"""A run's rollouts learned from again: unchanged it is the run, to the bit; changed, only the
update differs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import uptrend
from uptrend.config import load_config
from uptrend.doctor.diagnose import diagnose
from uptrend.records import CheckpointError, ConfigError, ModelError, RecordError, Run, view_of
from uptrend.runner.runs import replay, resume_run, train_recipe
from uptrend.training.observer import Stop

Start = Callable[..., Run]
EACH = ("checkpoints.every=1", "checkpoints.keep=99")
STEPS = 3


def start(model: Path, runs: Path, *overrides: str, name: str = "run") -> Run:
    table = {
        "model": {"name": str(model)},
        "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 4, "every": 0},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 6},
        "learning": {"steps": STEPS, "lr": 3e-3},
        "compute": {"threads": 1},
    }
    return train_recipe(load_config(table, [*EACH, *overrides]), runs=runs, name=name)


@pytest.fixture(scope="module")
def run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A plain run with a linear schedule and every checkpoint."""
    return start(
        llama_folder,
        tmp_path_factory.mktemp("plain"),
        'learning.schedule="linear"',
        "learning.warmup=1",
    )


@pytest.fixture
def again(run: Run, tmp_path: Path) -> Start:
    """`again("learning.loss=dapo", step=0)` replays the plain run."""

    def go(*overrides: str, step: int = 0, steps: int | None = None) -> Run:
        return uptrend.replay(
            run.path, step, steps=steps, overrides=overrides, runs=tmp_path, name="replay"
        )

    return go


def weights(run: Run, step: int) -> list[bytes]:
    """The files of a checkpoint: the model or its adapters, and the optimizer's memory."""
    files = sorted((run.path / "checkpoints" / f"step-{step:06d}").rglob("*.safetensors"))
    assert len(files) == 2
    return [file.read_bytes() for file in files]


def lines(run: Run) -> list[dict[str, Any]]:
    """The metrics without what a clock measured."""
    timed = ("time", "seconds/", "memory/")
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in run.metric_lines]


def tokens(run: Run, step: int | None, column: str) -> np.ndarray:
    flat = run.rollouts(step)[column].combine_chunks().flatten()
    return np.asarray(flat.to_numpy(zero_copy_only=False), np.float64)


SORTS = {
    "plain": ("sampling.temperature=0.7", "sampling.top_p=0.9", "learning.loss=dapo", "learning.entropy=0.01"),
    "minibatches": ("learning.updates=2", "learning.minibatches=2", "learning.loss=gspo", "learning.clip_low=1e-3"),
    "reference": ("learning.kl.beta=0.1", "learning.correction=sequence", "learning.loss=dr_grpo"),
    "in-the-reward": ("learning.kl={beta=0.5, estimator='k1'}", "learning.correction=token", "learning.scale=batch"),
    "adapters": ("model.lora={r=4, dropout=0.2}", "learning.kl.beta=0.1", "learning.lr=1e-2"),
    "dropped-and-failed": ("tasks.dead=2", "tasks.fails=7", "sampling.resample=2", "learning.mask_truncated=true"),
    "dead-ones-skipped": ("tasks.dead=2", "learning.skip_dead=true", "model.weights=bf16", "learning.lr=1e-2"),
    "turns": ("tasks.turns=3", "tasks.chat=true", "sampling.max_turns=3", "learning.tokens=400"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sort", SORTS)
def test_an_unchanged_replay_is_the_run_to_the_bit(
    sort: str, llama_folder: Path, tmp_path: Path
) -> None:
    original = start(llama_folder, tmp_path, *SORTS[sort])
    whole = replay(original, 0, overrides=EACH, runs=tmp_path, name="whole")
    rest = replay(original, 1, overrides=EACH, runs=tmp_path, name="rest")
    assert (whole.status, rest.status) == ("finished", "finished")
    for step in range(1, STEPS + 1):
        assert weights(whole, step) == weights(original, step), step
    for step in (2, 3):
        assert weights(rest, step) == weights(original, step), step
    assert weights(original, 2) != weights(original, 3)
    if sort == "dropped-and-failed":
        assert False in original.rollouts()["kept"].to_pylist()
        assert None in original.rollouts()["reward"].to_pylist()
    if sort == "dead-ones-skipped":
        learner, sampler = (
            np.isfinite(tokens(original, None, column)).sum() for column in ("learner", "sampler")
        )
        assert learner < sampler
    assert lines(whole) == lines(original)
    assert lines(rest) == lines(original)[1:]
    for step in range(1, STEPS + 1):
        ours, theirs = (r.rollouts(step).drop_columns(["run"]) for r in (whole, original))
        assert ours.equals(theirs)


def test_a_part_of_the_steps_from_the_middle(again: Start, run: Run) -> None:
    part = again(*EACH, step=1, steps=1)
    assert [line["step"] for line in part.metric_lines] == [2]
    assert [line["step"] for line in part.eval_lines] == [1, 2]
    assert [p.name for p in part.checkpoints] == ["step-000002"]
    assert weights(part, 2) == weights(run, 2)
    assert (part.start, part.steps, part.last_step) == (1, 2, 2)
    assert part.info["kind"] == "replay"
    assert part.info["replay"] == {
        "source": str(run.path.resolve()),
        "step": 1,
        "last": 2,
        "changed": {},
    }


def test_one_factor_changes_only_what_it_touches(again: Start, run: Run) -> None:
    changed = again("learning.lr=1e-3")
    assert changed.info["replay"]["changed"] == {"learning.lr": [3e-3, 1e-3]}
    ours, theirs = lines(changed), lines(run)
    for key in ("reward/mean", "advantage/abs/mean", "sampling/length/mean", "tokens/model/count"):
        assert [line[key] for line in ours] == [line[key] for line in theirs]
    assert [line["optimizer/lr"] for line in ours] == pytest.approx(
        [line["optimizer/lr"] / 3 for line in theirs]
    )
    first, was = ours[0], theirs[0]
    assert first["gradient/norm/before"] == was["gradient/norm/before"]
    assert first["weights/update/norm"] == pytest.approx(was["weights/update/norm"] / 3, rel=1e-3)
    assert ours[1]["gradient/norm/before"] != theirs[1]["gradient/norm/before"]
    assert [p.name for p in changed.checkpoints] == [f"step-{STEPS:06d}"]
    assert weights(changed, STEPS) != weights(run, STEPS)


def test_ratios_are_against_the_policy_that_sampled(again: Start, run: Run) -> None:
    changed = again("learning.lr=1e-2")
    for step in (2, 3):
        ours, theirs = tokens(changed, step, "learner"), tokens(run, step, "learner")
        said = np.isfinite(theirs)
        gap = ours[said] - theirs[said]
        assert changed.metric_lines[step - 1]["learner/ratio/mean"] == pytest.approx(
            np.exp(gap).mean(), rel=1e-5
        )
        sampler = tokens(run, step, "sampler")[said]
        assert changed.metric_lines[step - 1]["sampler/gap/mean"] == pytest.approx(
            np.abs(ours[said] - sampler).mean(), rel=1e-4
        )
        assert np.array_equal(tokens(changed, step, "sampler")[said], sampler)


def test_a_reference_is_the_model_that_the_run_began_with(again: Start) -> None:
    changed = again("learning.kl.beta=0.1", step=2)
    (line,) = changed.metric_lines
    assert line["kl/reference/mean"] > 1e-4
    start = tokens(changed, 3, "reference")
    gap = (start - tokens(changed, 3, "learner"))[np.isfinite(start)]
    assert line["kl/reference/mean"] == pytest.approx((np.exp(gap) - gap - 1).mean(), rel=1e-4)


def test_other_weights_and_adapters(again: Start, run: Run, tmp_path: Path) -> None:
    coarse = again("model.weights=bf16", step=1, steps=1)
    assert 0 < coarse.metric_lines[0]["sampler/gap/mean"] < 0.05
    assert coarse.metric_lines[0]["weights/norm"] == pytest.approx(
        run.metric_lines[1]["weights/norm"], rel=1e-2
    )
    adapted = replay(run, 0, steps=1, overrides=["model.lora={r=4}"], runs=tmp_path, name="adapted")
    assert adapted.metric_lines[0]["sampler/gap/max"] < 2e-4
    assert adapted.info["model"]["trainable"] < run.info["model"]["trainable"]


@pytest.mark.parametrize(
    ("overrides", "asked", "error", "said"),
    [
        (
            ["sampling.temperature=0.5"],
            {},
            ConfigError,
            "sampling.temperature would take new rollouts",
        ),
        (["learning.steps=9"], {}, ConfigError, "say --steps"),
        (["learning.minibatches=3"], {}, ConfigError, "should divide"),
        (["model.lora={r=4}"], {"step": 2}, ConfigError, "Use --step 0"),
        (
            ["learning.optimizer=adamw-8bit"],
            {"step": 2},
            ConfigError,
            "own optimizer. Use --step 0",
        ),
        ([], {"step": 7}, CheckpointError, r"it has 0 .* and 1, 2, 3\."),
        ([], {"step": 3}, RecordError, "has recorded 0 steps after step 3"),
        ([], {"steps": 9}, RecordError, r"--steps 9: .* has recorded 3 steps after step 0"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_anything_is_made(
    again: Start,
    overrides: list[str],
    asked: dict[str, int],
    error: type[Exception],
    said: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=said):
        again(*overrides, **asked)
    assert not list(tmp_path.iterdir())


def test_a_replay_is_neither_replayed_nor_resumed(again: Start, tmp_path: Path) -> None:
    done = again(steps=1)
    with pytest.raises(RecordError, match="is a replay; only a run of uptrend train"):
        replay(done, 0, runs=tmp_path)
    with pytest.raises(RecordError, match="is a replay, which is short: make it again"):
        resume_run(done.path)
    with pytest.raises(RecordError, match="already holds a run"):
        again(steps=1)


def test_another_model_under_the_same_name_is_refused(run: Run, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    copied.symlink_to(run.path)
    changed = Run(copied)
    changed.info["model"] = {**run.info["model"], "digest": "0" * 32}
    with pytest.raises(ModelError, match="is no longer the model"):
        replay(changed, 0, steps=1, runs=tmp_path, name="again")
    assert replay(changed, 1, steps=1, runs=tmp_path, name="later").status == "finished"


def test_the_doctor_does_not_blame_a_replay_for_being_one(again: Start) -> None:
    changed = again("learning.lr=3e-2")
    assert changed.metric_lines[-1]["sampler/kl/mean"] > 0.1
    found = {f.id for f in diagnose(view_of(changed)).findings}
    assert found.isdisjoint(
        {"precision.mismatch", "sync.stale-weights", "sync.off-policy", "policy.dropout-on"}
    )
    assert "rewards are those of the run" in diagnose(view_of(changed)).trend.sentence


def test_a_replay_that_did_not_finish_is_made_again_in_its_place(run: Run, tmp_path: Path) -> None:
    enough = Mock(step=lambda record: Stop("enough") if record.step == 1 else None)

    def go(*overrides: str, observers: Sequence[Any] = ()) -> Run:
        return replay(
            run, 0, steps=2, overrides=overrides, runs=tmp_path, name="one", observers=observers
        )

    stopped = go("learning.lr=1e-3", observers=[enough])
    assert (stopped.status, stopped.last_step) == ("stopped", 1)
    with pytest.raises(RecordError, match="already holds a run"):
        go("learning.lr=2e-3")
    whole = go("learning.lr=1e-3")
    assert (whole.status, whole.last_step, whole.start, whole.steps) == ("finished", 2, 0, 2)
    assert [line["step"] for line in whole.metric_lines] == [1, 2]
    assert [line["step"] for line in whole.eval_lines] == [0, 2]
    with pytest.raises(RecordError, match="already holds a run"):
        go("learning.lr=1e-3")
