"""Rollouts of a small run on sums, healthy or with a fault, as other trainers save them.

The writers follow the trainers' sources; `tests/data/formats/saved-*` hold what the trainers' own
code wrote of the same rollouts, and a test compares the two.
"""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
STEPS, GROUPS, SIZE = 8, 8, 8


@dataclass
class Attempt:
    """One rollout, whoever saves it."""

    step: int
    group: int
    index: int
    question: str
    gold: str
    reply: str
    reward: float
    parts: dict[str, float]
    ended: str
    prompt_ids: list[int]
    reply_ids: list[int]
    sampler: list[float]
    learner: list[float]
    advantage: float = 0.0
    extra: Row = field(default_factory=dict)


def attempts(fault: str = "", steps: int = STEPS, groups: int = GROUPS) -> list[Attempt]:
    """Make rollouts of sums: more of them right from step to step, paid 1 if right.

    Faults: `unpaid` pays nothing for right answers above 60; `equal` pays all of a group the same;
    `cut` ends two thirds by length, without an answer;
    `constant` pays 0.5 whatever is said; `mismatch` has log-probabilities of other weights.
    """
    draw = random.Random(7)
    made: list[Attempt] = []
    for step in range(1, steps + 1):
        for group in range(groups):
            first, second = draw.randint(10, 49), draw.randint(10, 49)
            for index in range(SIZE):
                made.append(_attempt(draw, step, group, index, (first, second), fault))
    for _, members in groupby(made, key=lambda attempt: (attempt.step, attempt.group)):
        _settle(list(members), fault)
    return made


def _attempt(
    draw: random.Random, step: int, group: int, index: int, numbers: tuple[int, int], fault: str
) -> Attempt:
    first, second = numbers
    gold = first + second
    is_right = draw.random() < 0.3 + 0.05 * step or index == 0
    is_right = is_right and index != 1
    number = gold if is_right else gold + draw.choice([-10, -1, 1, 2, 10])
    reply = f"I add {first} and {second}. The answer is {number}."
    ended = "stop"
    if fault == "cut" and index % 3:
        reply, ended, is_right = (
            f"Let me add {first} and then {second}, slowly: first the",
            "length",
            False,
        )
    reward = float(is_right)
    if fault == "unpaid":
        reward = float(is_right and gold <= 60)
    elif fault == "constant":
        reward = 0.5
    reply_ids = [100 + ord(letter) for letter in reply]
    sampler = [-0.05 - 0.9 * draw.random() for _ in reply_ids]
    shift = 1.2 if fault == "mismatch" else 0.002
    learner = [value + draw.gauss(0.0, shift) for value in sampler]
    question = f"What is {first} + {second}?"
    prompt_ids = [100 + ord(letter) for letter in question]
    parts = {"correct": reward}
    return Attempt(
        step, group, index, question, str(gold), reply, reward, parts, ended,
        prompt_ids, reply_ids, sampler, [min(-1e-4, value) for value in learner],
    )  # fmt: skip


def _settle(members: list[Attempt], fault: str) -> None:
    """Give a group its rewards and advantages."""
    if fault == "equal":
        reward = float(members[0].group % 2)
        for member in members:
            member.reward = reward
            member.parts = {"correct": reward}
    mean = sum(member.reward for member in members) / len(members)
    for member in members:
        member.advantage = member.reward - mean


def write_lines(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def by_step(made: list[Attempt]) -> list[tuple[int, list[Attempt]]]:
    return [(step, list(members)) for step, members in groupby(made, key=lambda a: a.step)]


def verl(folder: Path, made: list[Attempt]) -> None:
    """verl's `_write_generations`: STEP.jsonl, prompts as decoded from the template."""
    for step, members in by_step(made):
        rows = [
            {"input": f"user\n{a.question}\nassistant\n", "output": a.reply, "gts": a.gold, "score": a.reward,
             "step": step, "acc": a.reward, "request_id": f"{step}-{a.group}-{a.index}"} for a in members
        ]  # fmt: skip
        write_lines(folder / "rollouts" / f"{step}.jsonl", rows)


def verl_uid(folder: Path, made: list[Attempt]) -> None:
    """verl's `TrainerBase._log_rollout_data`: sorted by uid, which holds group and rollout."""
    for step, members in by_step(made):
        rows = [
            {"input": f"user\n{a.question}\nassistant\n", "output": a.reply, "gts": a.gold, "score": a.reward,
             "step": step, "uid": f"{step:02d}ab-{a.group}_{a.index}_0"} for a in members
        ]  # fmt: skip
        write_lines(folder / "rollouts" / f"{step}.jsonl", rows)


def trl(folder: Path, made: list[Attempt]) -> None:
    """TRL's `log`: completions/completions_00001.parquet, through pandas."""
    for step, members in by_step(made):
        table = pa.table({
            "step": [step] * len(members),
            "prompt": [[{"content": a.question, "role": "user"}] for a in members],
            "completion": [[{"content": a.reply, "role": "assistant"}] for a in members],
            **{name: [a.parts[name] for a in members] for name in members[0].parts},
            "answer": [a.gold for a in members],
            "advantage": [a.advantage for a in members],
        })  # fmt: skip
        path = folder / "completions" / f"completions_{step:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)


def episode(a: Attempt, with_learner: bool = False) -> Row:
    """verifiers' `Episode.to_record` of an agent with one turn."""
    mask = [False] * 3 + [True] * len(a.reply_ids)
    nodes = [
        {"message": {"role": "user", "content": a.question}, "sampled": False, "timestamp": 1.5,
         "token_ids": a.prompt_ids, "mask": [False] * len(a.prompt_ids), "is_content": [], "logprobs": []},
        {"parent": 0, "message": {"role": "assistant", "content": a.reply}, "sampled": True, "timestamp": 2.5,
         "token_ids": [1, 2, 3, *a.reply_ids], "mask": mask, "is_content": [],
         "logprobs": [round(value, 4) for value in a.sampler], "advantages": [a.advantage] * len(a.reply_ids)},
    ]  # fmt: skip
    if with_learner:
        nodes[1]["trainer_logprobs"] = [round(value, 4) for value in a.learner]
    data = {"idx": a.group, "prompt": a.question, "answer": a.gold}
    task = {"type": "Sum", "data": data, "key": f"{a.step}-{a.group}"}
    rewards = {name: {"score": score, "weight": 1.0} for name, score in a.parts.items()}
    trace = {
        "version": 1, "id": f"{a.step}-{a.group}-{a.index}", "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": True}, "nodes": nodes,
        "calls": [{"node": 1, "finish_reason": a.ended, "time": {"start": 1.0, "end": 2.0}}],
        "rewards": rewards, "metrics": {}, "info": {}, "is_completed": True, "ok": True,
        "stop_condition": "agent_completed", "is_timeout": False, "errors": [],
        "timing": {"start": 1.0, "agent": {"start": 1.0, "end": 2.5}},
    }  # fmt: skip
    return {
        "id": f"e{a.step}-{a.group}-{a.index}", "env": {"id": "sums"}, "task": task,
        "group": {"id": f"g{a.step}-{a.group}"},
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": a.step}},
        "ok": True, "is_timeout": False, "errors": [], "traces": [trace],
    }  # fmt: skip


def prime_rl(folder: Path, made: list[Attempt]) -> None:
    """prime-rl's `FileMonitor`: episodes and metrics; and `TokenExporter` beside it."""
    for step, members in by_step(made):
        for subset in ("all", "effective"):
            path = folder / "rollouts" / f"step_{step}" / "train" / subset / "traces.jsonl"
            write_lines(path, map(episode, members))
        exports = []
        for a in members:
            ids = [*a.prompt_ids, 1, 2, 3, *a.reply_ids]
            pad = [0.0] * (len(ids) - len(a.reply_ids))
            exports.append({
                "schema_version": 1, "step": step, "rank": 0, "env_name": "sums", "token_ids": ids,
                "loss_mask": [False] * len(pad) + [True] * len(a.reply_ids),
                "advantages": pad + [a.advantage] * len(a.reply_ids), "inference_logprobs": pad + a.sampler,
                "trainer_logprobs": [-0.5] * len(pad) + a.learner,
            })  # fmt: skip
        write_lines(folder / "token_exports" / f"step_{step}" / "rank_0.jsonl", exports)
    rewards = [(step, [a.reward for a in members]) for step, members in by_step(made)]
    metrics = [
        {"step": step, "time": 1.5 * step, "reward/mean": sum(values) / len(values), "progress/ckpt_step": step}
        for step, values in rewards
    ]  # fmt: skip
    write_lines(folder / "metrics.jsonl", metrics)


def verifiers(folder: Path, made: list[Attempt]) -> None:
    """verifiers' `write_episode` of an evaluation: one traces.jsonl, no steps."""
    rows = []
    for a in made:
        row = episode(a)
        row["run"] = {"type": "eval", "id": "r"}
        rows.append(row)
    write_lines(folder / "traces.jsonl", rows)


def slime(folder: Path, made: list[Attempt]) -> None:
    """slime's `Sample.to_dict` as JSON lines, one file per rollout id."""
    names = {"stop": "completed", "length": "truncated"}
    for step, members in by_step(made):
        rows = [
            {"group_index": 100 * step + a.group, "index": a.index, "prompt": a.question,
             "tokens": a.prompt_ids + a.reply_ids, "response": a.reply, "response_length": len(a.reply_ids),
             "label": a.gold, "reward": a.reward, "loss_mask": None, "rollout_log_probs": a.sampler,
             "status": names[a.ended], "metadata": {}} for a in members
        ]  # fmt: skip
        write_lines(folder / "rollout_data" / f"{step}.jsonl", rows)


def art(folder: Path, made: list[Attempt]) -> None:
    """ART's `write_trajectory_groups_parquet`."""
    for step, members in by_step(made):
        rows = [
            {"group_index": a.group, "group_metadata": None, "group_metrics": None, "group_logs": None,
             "reward": a.reward, "metrics": json.dumps({"duration": 1.5, "correct": a.reward}),
             "metadata": json.dumps({"answer": a.gold, "finish_reason": a.ended}), "tools": None, "logs": None,
             "messages": [
                 {"role": "user", "content": a.question, "tool_calls": None, "tool_call_id": None, "trainable": False},
                 {"role": "assistant", "content": a.reply, "tool_calls": None, "tool_call_id": None, "trainable": True},
             ]} for a in members
        ]  # fmt: skip
        path = folder / "trajectories" / "train" / f"{step:04d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def art_lines(folder: Path, made: list[Attempt]) -> None:
    """ART's `serialize_trajectory_groups`, which it wrote before Parquet: one group per line."""
    for step, members in by_step(made):
        rows = []
        for _, group in groupby(members, key=lambda a: a.group):
            trajectories = [
                {"reward": a.reward, "metrics": {"duration": 1.5}, "metadata": {"answer": a.gold}, "messages_and_choices": [
                    {"role": "user", "content": a.question},
                    {"finish_reason": a.ended, "index": 0, "message": {"role": "assistant", "content": a.reply}},
                ], "tools": None, "logs": []} for a in group
            ]  # fmt: skip
            rows.append({"trajectories": trajectories})
        write_lines(folder / "trajectories" / "train" / f"{step:04d}.jsonl", rows)


def tinker(folder: Path, made: list[Attempt]) -> None:
    """tinker-cookbook's `serialize_rollout_summaries`: lengths and rewards, no texts."""
    for step, members in by_step(made):
        rows = [
            {"schema_version": 1, "split": "train", "iteration": step, "group_idx": a.group, "traj_idx": a.index,
             "tags": ["sums"], "sampling_client_step": step, "total_reward": a.reward, "final_reward": 0.0,
             "trajectory_metrics": {}, "steps": [
                 {"step_idx": 0, "ob_len": len(a.prompt_ids), "ac_len": len(a.reply_ids), "reward": a.reward,
                  "episode_done": True, "metrics": {"correct": a.reward, "truncated": float(a.ended == "length")},
                  "logs": {}},
             ], "final_ob_len": 0} for a in members
        ]  # fmt: skip
        write_lines(folder / f"iteration_{step:06d}" / "train_rollout_summaries.jsonl", rows)


def skyrl(folder: Path, made: list[Attempt]) -> None:
    """SkyRL's `dump_per_dataset_eval_results`: rewards by token, of evaluations alone. One is
    written: all of a run ask the same questions, which these do not.
    """
    for step, members in by_step(made)[-1:]:
        rows = [
            {"input_prompt": a.question, "output_response": a.reply,
             "score": [0.0] * (len(a.reply_ids) - 1) + [a.reward], "stop_reason": a.ended, "env_class": "gsm8k",
             "env_extras": {"reward_spec": {"method": "rule", "ground_truth": a.gold}}, "data_source": "sums"}
            for a in members
        ]  # fmt: skip
        write_lines(folder / "dumped_evals" / f"global_step_{step}_evals" / "sums.jsonl", rows)
        aggregate = {"eval/sums/avg_score": sum(a.reward for a in members) / len(members)}
        path = folder / "dumped_evals" / f"global_step_{step}_evals" / "aggregated_results.jsonl"
        write_lines(path, [aggregate])


def home_made(folder: Path, made: list[Attempt]) -> None:
    """One file of many steps, as a loop of one's own writes it."""
    rows = [
        {"step": a.step, "prompt": a.question, "response": a.reply, "reward": a.reward, "answer": a.gold,
         "finish_reason": a.ended} for a in made
    ]  # fmt: skip
    write_lines(folder / "rollouts.jsonl", rows)


WRITERS: dict[str, Callable[[Path, list[Attempt]], None]] = {
    "verl": verl,
    "verl with uid": verl_uid,
    "trl": trl,
    "prime-rl": prime_rl,
    "verifiers": verifiers,
    "slime": slime,
    "art": art,
    "art lines": art_lines,
    "tinker": tinker,
    "skyrl": skyrl,
    "home-made": home_made,
}
