"""The tiny model: the same from the same demonstrations, about 40%, and never shown what is held out."""

import threading
from pathlib import Path

import pytest
from safetensors.torch import load_file

from uptrend.policy import tiny as room
from uptrend.policy.find import find_model
from uptrend.policy.tiny import ALPHABET, character_tokenizer, tiny
from uptrend.records import ModelError
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.runner.evaluation import load_for_eval
from uptrend.runner.prepare import demonstrations
from uptrend.tasks.pool import make_taskset
from uptrend.training.evaluate import evaluate
from uptrend.training.gather import RolloutPlayer

PAIRS = [(f"{a} + {b} = ", str(a + b)) for a in range(4) for b in range(4)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Few and small lessons."""
    monkeypatch.setattr(room, "STEPS", 4)
    monkeypatch.setattr(room, "BATCH", 8)
    return monkeypatch


def taught(home: Path, pairs: list[tuple[str, str]], patch: pytest.MonkeyPatch) -> Path:
    patch.setenv("UPTREND_HOME", str(home))
    return tiny(pairs)


def test_the_same_lessons_give_the_same_weights(tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    first = taught(tmp_path / "a", PAIRS, quick)
    second = taught(tmp_path / "b", PAIRS[::-1], quick)
    assert first.name == second.name
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    other = taught(tmp_path / "b", PAIRS[1:], quick)
    assert other.name != first.name
    weights = [load_file(f / "model.safetensors")["model.norm.weight"] for f in (first, other)]
    assert not (weights[0] == weights[1]).all()


def test_it_is_made_once_and_whole(tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    folder = taught(tmp_path, PAIRS, quick)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert taught(tmp_path, PAIRS, quick) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert {p.name for p in folder.parent.iterdir()} <= {folder.name, f"{folder.name}.lock"}


def test_two_at_once_teach_once(tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    lessons, teach, both = [], room._teach, threading.Barrier(2)
    quick.setattr(room, "_teach", lambda *parts: (lessons.append(1), teach(*parts)))

    def ask() -> None:
        both.wait()
        taught(tmp_path, PAIRS, quick)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lessons) == 1


def test_a_lesson_that_fails_leaves_nothing(tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    quick.setattr(room, "LR", "not a number")
    with pytest.raises(Exception, match=r"float|number|str"):
        taught(tmp_path, PAIRS, quick)
    assert not [p for p in (tmp_path / "models").iterdir() if p.is_dir()]


def test_held_out_tasks_are_never_taught() -> None:
    shown = {prompt for prompt, _ in demonstrations(None)}
    assert len(shown) > 900
    for seed in range(3):
        held = make_taskset("arithmetic", {}, seed).heldout(10_000)
        assert len(held) > 300
        assert not shown & {task.messages[0].content for task in held}


def test_it_answers_about_four_in_ten(tiny_folder: str) -> None:
    config, policy, held_out = load_for_eval("tiny", None, ["eval.tasks=330", "compute.threads=2"])
    assert 0.8e6 < policy.parameters < 1.3e6
    held, rollouts = evaluate(RolloutPlayer(policy, InProcessSampler(policy), config), held_out, 0, config)
    assert held.tasks > 300
    assert 0.30 <= held.accuracy <= 0.50
    assert sum(r.ended == "stop-token" for r in rollouts) > 0.98 * len(rollouts)
    assert Path(tiny_folder).name.startswith("tiny-")


def test_every_character_is_a_token_and_comes_back() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer(ALPHABET).input_ids
    assert len(ids) == len(ALPHABET) == len(set(ids))
    assert tokenizer.decode(ids) == ALPHABET
    assert tokenizer("§").input_ids == [tokenizer.unk_token_id]
    assert tokenizer("a<end>b").input_ids[1] == tokenizer.eos_token_id


def test_it_cannot_be_had_without_demonstrations() -> None:
    with pytest.raises(ModelError, match="tiny needs demonstrations"):
        find_model("tiny")
