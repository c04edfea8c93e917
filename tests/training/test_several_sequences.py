"""Training on rollouts of several sequences, as templates make them that change earlier turns."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import uptrend
from models import character_tokenizer
from uptrend.policy.known import find_model
from uptrend.records import Message, Reward, Task, Tool
from uptrend.records.rollout import task_id
from uptrend.tasks.taskset import Script, say

# Shows of earlier turns only that there was one.
FORGETFUL = (
    "{% for m in messages %}{{ '(a turn) ' if m.role == 'assistant' else m.content }}{% endfor %}"
)


@dataclass(frozen=True)
class TwiceOptions:
    pass


class Twice:
    """Asks twice, and pays for digits."""

    name: ClassVar[str] = "twice"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = TwiceOptions
    chat = True

    def __init__(self, options: TwiceOptions, seed: int) -> None:
        del options, seed
        self.notes: list[str] = []

    def _tasks(self, numbers: range) -> list[Task]:
        tasks = []
        for n in numbers:
            messages = (Message("user", f"Calculate: {n} + 1 = "),)
            tasks.append(Task(messages, str(n + 1), "twice", 0.0, {}, task_id(messages)))
        return tasks

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return [task for task in self._tasks(range(16)) if task.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        return self._tasks(range(16, 20))[:count]

    def open(self, task: Task, seed: int) -> "TwicePlay":
        del seed
        return TwicePlay(task)

    def gold(self, task: Task) -> Script:
        return say(task.answer)

    def corrupted(self, task: Task) -> Iterable[Script]:
        del task
        return [say("no")]


class TwicePlay:
    tools: Sequence[Tool] = ()

    def __init__(self, task: Task) -> None:
        self.messages = task.messages
        self._texts: list[str] = []

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._texts.append(message.content)
        return None if len(self._texts) == 2 else [Message("user", "Again: 2 + 2 = ")]

    async def score(self) -> Reward:
        share = sum(c in "02468" for c in "".join(self._texts)) / 12
        return Reward(share, 0.0, 1.0, share > 0.3)

    async def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_rollout_of_two_sequences_is_learned_from_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in Path(find_model("tiny")).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = character_tokenizer()
    tokenizer.chat_template = FORGETFUL
    tokenizer.save_pretrained(folder)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    run = uptrend.train(
        {
            "model": {"name": str(folder), "chat": True},
            "tasks": {"name": "test_several_sequences:Twice", "train": 12},
            "sampling": {"groups": 4, "size": 4, "max_tokens": 6, "max_turns": 2, "context": 120},
            "learning": {"steps": 2, "lr": 1e-4},
            "eval": {"tasks": 4},
            "doctor": {"live": False},
        },
        preflight=False,
        progress=False,
        runs=tmp_path / "runs",
    )
    rows = run.rollouts(1).to_pylist()
    assert len(rows) == 2 * 16
    by_rollout: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        by_rollout.setdefault((row["group"], row["index"]), []).append(row)
    for first, second in by_rollout.values():
        trained = []
        for row in (first, second):
            trained += np.array(row["advantages"])[np.array(row["weights"]) > 0].tolist()
        assert len(set(trained)) <= 1
        # Each turn is trained in its own sequence, and shown in the next one as the template does.
        for turn, row in enumerate((first, second)):
            weights = np.array(row["weights"])
            roles = np.array(row["roles"])
            assert (weights[roles != 1] == 0).all()
            assert set(np.array(row["turns"])[weights > 0]) <= {turn}
        text = tokenizer.decode(second["ids"])
        assert text.startswith("Calculate: ")
        assert "(a turn) Again: 2 + 2 = " in text
    metrics = run.metrics.to_pylist()[-1]
    assert metrics["sampler/gap/max"] < 1e-3
    assert metrics["gradient/norm/before"] > 0
