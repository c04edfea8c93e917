"""Rollouts for people and their scripts: one JSON object an example, the whole conversation in it."""

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from uptrend.records import Message, RecordError, Rollout, rollouts_table

ENDINGS = (".jsonl", ".parquet")


def check_place(path: Path) -> None:
    """Raise before the work where rollouts could not be written after it."""
    if path.suffix not in ENDINGS:
        raise RecordError(
            f"{path} should end in .jsonl, to read (one object an example), "
            "or in .parquet, for every token (see docs/records.md)."
        )
    if not path.parent.is_dir():
        raise RecordError(f"{path} can't be written: there is no folder {path.parent}.")


def write_rollouts(path: Path, target: str, greedy: Sequence[Rollout], attempts: Sequence[Rollout]) -> None:
    """Into JSON lines or Parquet, by the file's ending."""
    try:
        if path.suffix == ".jsonl":
            with path.open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in _lines(greedy, attempts))
            return
        import pyarrow.parquet as pq

        pq.write_table(rollouts_table(target, [*greedy, *attempts]), path, compression="zstd")
    except OSError as error:
        raise RecordError(f"{path} can't be written: {error.strerror or error}.") from None


def example(rollout: Rollout, attempt: int | None = None) -> dict[str, Any]:
    """A rollout as a plain object; `attempt` is None where it was greedy, else its number."""
    reward = rollout.reward
    first = list(takewhile(lambda message: message.role != "assistant", rollout.messages))
    said = [message for message in rollout.messages if message.role == "assistant"]
    return {
        "task": rollout.task,
        "family": rollout.family,
        "attempt": attempt,
        "question": next((message.content for message in reversed(first) if message.role == "user"), ""),
        "answer": rollout.answer,
        "said": said[-1].content if said else "",
        "correct": reward is not None and reward.correct,
        "reward": None if reward is None else reward.total,
        "parts": {} if reward is None else {part.name: part.value for part in reward.parts},
        "ended": str(rollout.ended),
        "error": rollout.error,
        "turns": len(said),
        "calls": [call for message in said for call in _calls(message)],
        "messages": [_message(message) for message in rollout.messages],
    }


def _lines(greedy: Sequence[Rollout], attempts: Sequence[Rollout]) -> Iterator[str]:
    for rollout in greedy:
        yield json.dumps(example(rollout), ensure_ascii=False)
    for rollout in attempts:
        yield json.dumps(example(rollout, rollout.index), ensure_ascii=False)


def _calls(message: Message) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]


def _message(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        told["calls"] = _calls(message)
    if message.problem:
        told["problem"] = message.problem
    return told
