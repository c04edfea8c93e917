"""Write the logs in this folder: python tests/data/logs/make.py

Every run here is invented. A case is a folder with meta.json (labels, warnings, statistics) and the log, in raw/ where
it is in a trainer's own format and in series.jsonl where it is a table of points: the layout of benchmarks/logs.py.
Statistics are computed from the rows before they are written, so that no reader checks itself.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
Row = dict[str, Any]
Curve = Sequence[float] | float


class Noise:
    """Noise of one case, seeded by its name."""

    def __init__(self, name: str) -> None:
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))

    def around(
        self, level: Curve, deviation: Curve, points: int, low: float = -np.inf, high: float = np.inf
    ) -> list[float]:
        """Draw points around a level, within bounds."""
        return list(np.clip(level + deviation * self._rng.standard_normal(points), low, high))

    def pick(self, values: Sequence[float], chances: Sequence[float], points: int) -> list[float]:
        """Draw points from a few values."""
        return list(self._rng.choice(values, points, p=chances))


def ramp(first: float, last: float, points: int, over: float = 1.0) -> np.ndarray:
    """Go from one level to another in the first part of a run, then stay."""
    return np.interp(np.arange(points), [0, over * (points - 1)], [first, last])


def rows_of(steps: Sequence[int], **curves: Curve) -> list[Row]:
    """Make one row per step; `__` in a name stands for a slash, and a number for a constant curve."""
    named = {name.replace("__", "/"): values for name, values in curves.items()}
    return [
        {name: short(values if isinstance(values, (int, float)) else values[at]) for name, values in named.items()}
        | {"step": step}
        for at, step in enumerate(steps)
    ]


def short(value: float) -> float:
    """Keep three digits."""
    return float(f"{value:.3g}")


def state(rows: list[Row], every: int, planned: int) -> str:
    """Write a Trainer's trainer_state.json, one row per line."""
    history = ",\n  ".join(json.dumps(row) for row in rows)
    head = {"best_metric": None, "epoch": 1.0, "global_step": rows[-1]["step"], "is_world_process_zero": True}
    tail = {"logging_steps": every, "max_steps": planned, "num_train_epochs": 1, "total_flos": 0.0, "trial_name": None}
    return f'{json.dumps(head)[:-1]}, "log_history": [\n  {history}\n], {json.dumps(tail)[1:]}\n'


def lines(rows: list[Row]) -> str:
    """Write JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def printed(row: Row) -> str:
    """Print a row the way TRL does, without its step."""
    return str({key: value for key, value in row.items() if key != "step"})


def prefixed(row: Row) -> Row:
    """Name metrics the way trackers do."""
    return {name if name == "step" else f"train/{name}": value for name, value in row.items()}


def table(rows: list[Row]) -> str:
    """Export rows the way a tracker does: a row counter of its own beside the step, and a time."""
    names = [name for name in rows[0] if name != "step"]
    head = ["_step", "_runtime", "train/global_step", *(f"train/{name}" for name in names)]
    cells = [[2 * at, 40 * at, row["step"], *(row[name] for name in names)] for at, row in enumerate(rows)]
    return "".join(",".join(map(str, line)) + "\n" for line in [head, *cells])


def bar(at: int, of: int) -> str:
    """Draw one state of a progress bar."""
    return f"\r {100 * at // of:3d}%|{'█' * (10 * at // of):10}| {at}/{of} [{at:02d}:00<{of - at:02d}:00, 60.0s/it]"


def log_of_text(rows: list[Row], head: str, tail: str) -> str:
    """Put printed rows between what a script says before and after."""
    return "\n".join([head, *map(printed, rows), tail]) + "\n"


Case = tuple[str, list[Row], str, Row]
"""The file's name under the case, the rows of its run, its content, and what meta.json says of it."""


def market_noise(noise: Noise) -> Case:
    n = 40
    rows = rows_of(
        range(5, 5 * n + 1, 5), grad_norm=noise.around(0.35, 0.05, n),
        learning_rate=ramp(5e-5, 2e-6, n), reward=noise.around(0.5, 0.5, n), reward_std=noise.around(0.8, 0.08, n),
        rewards__layout__mean=noise.around(0.6, 0.4, n), rewards__layout__std=0.5,
        rewards__hedging__mean=-0.0004, rewards__hedging__std=0.0, frac_reward_zero_std=0.0,
        completions__clipped_ratio=noise.around(ramp(0.8, 0.98, n), 0.05, n, 0, 1), completions__max_length=512.0,
        completions__mean_length=noise.around(480, 8, n, 0, 512), kl=noise.around(ramp(0.01, 0.06, n), 0.004, n, 0),
    )  # fmt: skip
    return "raw/trainer_state.json", rows, state(rows, 5, 200), {
        "about": "TRL's state: noise without a trend, cut completions, a part that never moves.",
        "labels": ["flat", "clipped_completions", "reward_component_dead"],
        "warnings": ["reward.component-dead"],
    }  # fmt: skip


def tidy_table(noise: Noise) -> Case:
    n = 40
    layout = noise.around(ramp(0.15, 0.97, n, 0.6), 0.06, n, 0, 1)
    env = noise.around(0.942, 0.001, n)
    rows = rows_of(
        range(1, n + 1), reward=np.add(layout, env), reward_std=noise.around(ramp(0.4, 0.06, n), 0.02, n, 0.01),
        kl=noise.around(ramp(0.001, 0.12, n), 0.01, n, 0), rewards__tidy_env__mean=env,
        rewards__json_layout__mean=layout, rewards__json_layout__std=noise.around(0.3, 0.05, n),
        completions__mean_length=noise.around(70, 9, n),
    )  # fmt: skip
    table = [
        {"Step": float(row["step"]), "Training Loss": 0.01}
        | {key.replace("/", " / "): value for key, value in row.items()}
        | {"sampling / importance_sampling_ratio / mean": None if at else 0.0}
        for at, row in enumerate(rows)
    ]
    return "series.jsonl", rows, lines(table), {
        "about": "A notebook's table, with spaces around slashes and nulls: only the format part rises, the other is "
        "at its ceiling from the start.",
        "labels": ["learning", "reward_component_dead", "saturated", "reward_hacking_suspected"],
        "warnings": ["reward.component-dominates", "reward.hackable"],
    }  # fmt: skip


def ferry_alone(noise: Noise) -> Case:
    n = 24
    rows = rows_of(
        range(1, n + 1), actor__entropy=noise.around(0.09, 0.01, n), actor__pg_clipfrac=0.0, actor__ppo_kl=0.0,
        actor__grad_norm=noise.around(0.2, 0.05, n), actor__lr=ramp(1e-6, 1e-5, n),
        critic__score__mean=noise.around(0.05, 0.9, n), critic__score__max=1.0,
        response_length__mean=noise.around(60, 9, n), response_length__clip_ratio=0.0, timing_s__step=31.5,
    )  # fmt: skip
    prefix = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
    config = ["'kl_loss_coef': 0.001,", "          'lr': 1e-05,", "   'use_kl_loss': False,", "  'lora_rank': 8,",
              "                 'n': 1,", " 'algorithm': {'adv_estimator': 'grpo',", "   'rollout_n': 1,",
              "    'max_response_length': 128,", "       'train_batch_size': 2,"]  # fmt: skip
    head = "\n".join(prefix + line for line in config)
    said = "\n".join(
        f"{prefix}step:{row['step']} - "
        + " - ".join(f"{key}:np.float64({value})" for key, value in row.items() if key != "step")
        for row in rows
    )
    return "raw/train.log", rows, f"{head}\n{said}\n", {
        "about": "verl's console under Ray, colored, with torn lines of its config: groups of one, too short to tell.",
        "labels": ["too_short_to_tell", "other:group_size_1"],
        "warnings": ["config.group-of-one"],
        "reward": "critic/score/mean",
        "config": {"sampling.size": 1, "learning.kl.beta": 0.0, "sampling.max_tokens": 128, "model.lora.r": 8},
    }  # fmt: skip


def harbor_default(noise: Noise) -> Case:
    n = 34
    reward = noise.around(ramp(0.872, 0.884, n), 0.014, n)
    rows = rows_of(
        range(10, 10 * n + 1, 10), grad_norm=noise.around(0.002, 0.0004, n), learning_rate=ramp(2e-6, 8e-7, n),
        reward=reward, reward_std=noise.around(1e-5, 5e-6, n, 0), rewards__pilot__mean=reward,
        rewards__pilot__std=noise.around(0.11, 0.01, n), kl=noise.around(0.0027, 0.0003, n),
        frac_reward_zero_std=noise.pick([1.0, 0.975], [0.9, 0.1], n), completions__clipped_ratio=1.0,
        completions__mean_length=96.0, completions__max_length=96.0,
    )  # fmt: skip
    return "raw/trainer_state.json", rows, state(rows, 10, 800), {
        "about": "Every group has one reward near the ceiling; the spread that is logged is between prompts.",
        "labels": ["flat", "saturated", "zero_variance", "clipped_completions", "kl_negligible"],
        "warnings": ["advantage.dead-groups-high"],
    }  # fmt: skip


def fair_choice(noise: Noise) -> Case:
    n, times = 30, 4
    rows = rows_of(
        range(11, 11 + times * n, times), learning_rate=ramp(1e-5, 1e-8, n),
        reward_mean=noise.around(0.49 - 0.09 * np.exp(-np.arange(n) / 6), 0.006, n, 0, 0.499),
        reward_std=noise.around(ramp(0.2, 0.07, n), 0.01, n),
        kl_divergence=noise.around(ramp(0.004, 0.033, n), 0.001, n),
    )  # fmt: skip
    every = [{"step": row["step"] + more, **{k: v for k, v in row.items() if k != "step"}} for row in rows
             for more in range(times)]  # fmt: skip
    return "raw/step_logs.json", rows, "[\n" + ",\n".join(json.dumps(row) for row in every) + "\n]\n", {
        "about": "A list with names of its own, each point written for four steps: learns, then is at its ceiling.",
        "labels": ["learning", "saturated", "other:duplicated_rows"],
        "warnings": [],
        "reward": "reward_mean",
        "notes": ["4 times"],
    }  # fmt: skip


ARMS = ("base [sparse, n4, lr1e-6]", "taught [init=demos, n4, lr1e-6]")


def two_arms(noise: Noise) -> Case:
    n = 80
    floor = noise.around(np.where(np.arange(n) < 15, ramp(0.06, 0.1, n, 0.2), 0.1), 0.006, n) + np.where(
        np.arange(n) > 58, 0.06, 0.0
    )
    base = rows_of(
        range(1, n + 1), critic__score__mean=floor, critic__score__max=noise.pick([0.1, 1.0], [0.8, 0.2], n),
        response_length__mean=noise.around(ramp(112, 42, n, 0.7), 4, n), actor__kl_loss=ramp(0.001, 0.16, n),
        actor__entropy_loss=noise.around(ramp(0.8, 0.5, n), 0.04, n),
    )  # fmt: skip
    taught = rows_of(
        range(1, n + 1), critic__score__mean=noise.around(0.26, 0.06, n), critic__score__max=1.0,
        response_length__mean=noise.around(118, 3, n), actor__kl_loss=ramp(0.02, 0.28, n, 0.3),
        actor__entropy_loss=noise.around(ramp(0.06, 0.012, n, 0.4), 0.0015, n, 0.005),
    )  # fmt: skip
    names = ["critic/score/mean", "critic/score/max", "val/test_score/sums", "response_length/mean", "actor/kl_loss",
             "actor/entropy_loss"]  # fmt: skip
    said = [",".join(["arm", "step", *names])]
    for arm, rows in zip(ARMS, (base, taught), strict=True):
        for at in range(0, n + 1):
            row = dict(rows[at - 1]) if at else {}
            said += [",".join([f'"{arm}"', str(at), *(str(row.get(name, "")) for name in names)])] if at else []
            if at % 10 == 0:
                said.append(f'"{arm}",{at},,,{short(0.1 + 0.004 * np.sin(at))},,,')
    return "raw/curves.csv", base, "\n".join(said) + "\n", {
        "about": "Two arms in one table with quoted names, and rows that hold only an evaluation. The first settles on "
        "the credit for the format while answers shrink and evaluations stay; the second is flat without entropy.",
        "labels": ["learning", "reward_hacking_suspected", "other:length_collapse", "other:eval_flat"],
        "warnings": ["reward.hackable"],
        "reward": "critic/score/mean",
        "evals": 9,
        "runs": len(ARMS),
    }  # fmt: skip


def canal_drift(noise: Noise) -> Case:
    n = 34
    reward = noise.around(ramp(0.67, 0.7, n), 0.012, n)
    spikes = noise.pick([1.0, 40.0], [0.93, 0.07], n)
    rows = rows_of(
        range(2, 2 * n + 1, 2), loss=noise.around(0.02, 0.01, n), grad_norm=np.multiply(noise.around(20, 4, n), spikes),
        learning_rate=ramp(5e-6, 1e-8, n), rewards__combined=reward, reward=reward,
        reward_std=noise.around(0.09, 0.008, n), completion_length=noise.around(112, 4, n),
        kl=noise.around(np.geomspace(0.002, 3.2, n), 0.0003, n, 0.001), epoch=ramp(0.02, 1.0, n),
    )  # fmt: skip
    said = "output is written to this file\nTokenizer from checkpoints/first\n"
    said += "\rLoading checkpoint shards:  50%|█████     | 1/2 [00:03<00:03, 3.1s/it]"
    said += "\rLoading checkpoint shards: 100%|██████████| 2/2 [00:06<00:00, 3.0s/it]\n"
    said += "\nTraining begins.\n  KL coef: 0.02\n  Rollouts per prompt: 6\n" + bar(0, 2 * n)
    for row in rows:
        said += bar(row["step"], 2 * n) + f"\r{' ' * 40}\r{printed(row)}\n\n"
    total = {"train_runtime": 4321.0, "train_samples_per_second": 0.3, "train_loss": 0.021, "reward": 0.684,
             "reward_std": 0.08, "completion_length": 111.0, "kl": 0.8, "epoch": 1.0}  # fmt: skip
    said += f"\n{total}\n\nSaved → checkpoints/adapter\n"
    return "raw/grpo.log", rows, said, {
        "about": "A console with progress bars, settings in words and a closing sum with a reward in it: KL runs away.",
        "labels": ["learning", "kl_runaway"],
        "warnings": ["kl.runaway"],
        "config": {"sampling.size": 6, "learning.kl.beta": 0.02},
    }  # fmt: skip


def proxy_compiles(noise: Noise) -> Case:
    n = 36
    truth = noise.around(0.003, 0.001, n, 0, 0.01)
    proxy = noise.around(ramp(0.2, 0.72, n), 0.03, n)
    rows = rows_of(
        range(n), progress__epoch=0, progress__done_frac=ramp(0.03, 1, n), optim__lr=1e-5,
        reward__mean=proxy, reward__passes=truth, reward__compiles=proxy, reward__gap=np.subtract(proxy, truth),
        policy__entropy=noise.around(ramp(2.85, 0.9, n), 0.06, n),
    )  # fmt: skip
    for row in rows:
        row["progress/step"] = row["step"]
    return "raw/metrics.jsonl", rows, lines(rows), {
        "about": "Tinker's lines from step 0: what is paid for rises, what was meant does not, entropy falls.",
        "labels": ["learning", "reward_hacking_suspected", "reward_component_dead", "entropy_collapse"],
        "warnings": ["reward.hackable"],
        "reward": "reward/mean",
    }  # fmt: skip


def short_trial(noise: Noise) -> Case:
    n = 10
    right, layout = noise.around(0.18, 0.03, n), noise.around(0.22, 0.03, n)
    rows = rows_of(
        range(5, 51, 5), completion_length=noise.around(3300, 30, n), epoch=ramp(0.01, 0.11, n),
        grad_norm=noise.around(0.0045, 0.0005, n), kl=noise.around(0.00025, 0.00002, n),
        learning_rate=ramp(1e-6, 6e-7, n), loss=0.0, reward=np.add(right, layout),
        reward_std=noise.around(0.28, 0.02, n), rewards__correct=right, rewards__layout=layout,
    )  # fmt: skip
    return "raw/trainer_state.json", rows, state(rows, 5, 100), {
        "about": "An early TRL's state, ten points: too short, and updates too small to move the policy.",
        "labels": ["too_short_to_tell", "flat", "tiny_updates", "kl_negligible"],
        "warnings": ["optimizer.lr-small"],
        "config": {"learning.steps": 100},
    }  # fmt: skip


def layout_only(noise: Noise) -> Case:
    n = 36
    layout = noise.around(ramp(0.005, 0.16, n), 0.012, n, 0)
    dead = noise.pick([1.0, 0.5], [0.8, 0.2], n)
    rows = rows_of(
        range(1, n + 1), grad_norm=noise.around(0.4, 0.1, n), learning_rate=ramp(5e-6, 1e-7, n),
        completions__mean_length=256.0, completions__max_length=256.0, completions__clipped_ratio=1.0,
        rewards__trace__mean=-0.5, rewards__format__mean=layout,
        rewards__format__std=noise.around(0.05, 0.01, n), rewards__calls__mean=-0.2,
        reward=np.subtract(layout, 0.7), reward_std=np.where(np.array(dead) == 1, 0.0, 0.05), frac_reward_zero_std=dead,
        kl=noise.around(ramp(0.001, 0.05, n), 0.003, n, 0),
    )  # fmt: skip
    head = "# First run\n# Steps: 36\n/home/me/work\n" + "\n".join(
        f"  [{at}/900] last_reward=+{at % 7 / 4:.2f} kind=none" for at in range(50, 901, 200)
    )
    warning = "Both `max_new_tokens` (=256) and `max_length`(=4096) are set; the first counts."
    said = "\n".join(printed(row) + ("\n" + warning) * (at % 9 == 0) for at, row in enumerate(rows))
    return "raw/run_1.log", rows, f"{head}\n{said}\n{warning}\n", {
        "about": "A console with another count of rewards before it and warnings between: two parts are constants, "
        "no completion ends, only the format part moves.",
        "labels": ["learning", "reward_component_dead", "clipped_completions", "zero_variance",
                   "reward_hacking_suspected"],
        "warnings": ["reward.component-dead", "reward.component-dominates", "reward.hackable"],
    }  # fmt: skip


def never_stops(noise: Noise) -> Case:
    n = 36
    reward = noise.around(ramp(0.895, 0.905, n), 0.02, n, 0, 1)
    late = np.arange(n) > 11
    rows = rows_of(
        range(1, n + 1), grad_norm=np.where(late, 0.0, 0.2),
        learning_rate=ramp(1e-4, 5e-7, n), completions__mean_length=np.where(late, 512.0, noise.around(285, 12, n)),
        completions__max_length=512.0, completions__clipped_ratio=np.where(late, 1.0, 0.02),
        rewards__exact__mean=reward, rewards__exact__std=noise.around(0.28, 0.03, n), reward=reward,
        reward_std=noise.around(0.12, 0.02, n), frac_reward_zero_std=noise.around(0.84, 0.05, n, 0, 1),
        entropy=noise.around(np.where(late, 0.008, 0.25), 0.001, n, 0.004),
    )  # fmt: skip
    head = "=== second try, GPU 0 ===\n2026-01-09 08:15:00,120 [INFO] sweep: Training: seed=7\n"
    head += "\rLoading checkpoint shards:   0%|          | 0/3 [00:00<?, ?it/s]\nmax_steps overrides the epochs"
    tail = "{'train_runtime': 700.5, 'train_samples_per_second': 1.5, 'train_loss': -0.02, 'epoch': 0.05}\n"
    tail += "[rank0]:[W109 Group.cpp:99] Warning: the process group was not closed\n=== second try ends ==="
    return "raw/second_try.log", rows, log_of_text(rows, head, tail), {
        "about": "At its ceiling, and from a point on no completion ends: the answer is right and never stops.",
        "labels": ["saturated", "clipped_completions", "length_growth", "zero_variance", "entropy_collapse"],
        "warnings": ["advantage.dead-groups-high", "sampling.entropy-collapse", "optimizer.dead-steps"],
    }  # fmt: skip


def over_the_edge(noise: Noise) -> Case:
    n = 36
    late = np.arange(n) > 8
    reward = np.where(late, noise.pick([0.0, 0.01], [0.9, 0.1], n), noise.around(0.89, 0.03, n, 0, 1))
    rows = rows_of(
        range(1, n + 1), loss=0.001, grad_norm=np.where(late, 0.0, 0.3), learning_rate=ramp(9.8e-5, 5e-7, n),
        completions__mean_length=np.where(late, 512.0, noise.around(280, 9, n)), completions__max_length=512.0,
        completions__clipped_ratio=np.where(late, 1.0, 0.02), rewards__exact__mean=reward,
        rewards__exact__std=np.where(late, 0.0, 0.3), reward=reward, reward_std=np.where(late, 0.0, 0.2),
        frac_reward_zero_std=np.where(late, 1.0, 0.6), entropy=noise.around(np.where(late, 6.5, 0.19), 0.02, n),
    )  # fmt: skip
    tail = "{'train_runtime': 705.5, 'train_samples_per_second': 1.4, 'train_loss': 0.001, 'epoch': 0.05}"
    return "raw/first_try.log", rows, log_of_text(rows, "=== first try, GPU 0 ===", tail), {
        "about": "One-way collapse where the rate peaks: entropy explodes, nothing is rewarded, nothing ends.",
        "labels": ["collapsed", "zero_variance", "clipped_completions", "length_growth", "other:entropy_explosion"],
        "warnings": ["run.collapsed", "sampling.entropy-explosion", "optimizer.lr-large", "optimizer.dead-steps",
                     "advantage.dead-groups-low", "context.completion-truncated"],
    }  # fmt: skip


def pairs(noise: Noise) -> Case:
    n = 50
    reward = noise.around(ramp(0.25, 0.72, n, 0.6), 0.1, n, 0, 1)
    rows = rows_of(
        range(1, n + 1), loss=noise.around(0.03, 0.01, n), grad_norm=noise.around(0.14, 0.02, n),
        learning_rate=ramp(9e-5, 5e-7, n), completion_length=noise.around(ramp(230, 205, n), 6, n),
        rewards__reward_fn=reward, reward=reward, reward_std=noise.around(0.3, 0.04, n),
        kl=noise.around(ramp(0.0005, 0.1, n), 0.0004, n, 0.0002), epoch=ramp(0.001, 0.107, n),
    )  # fmt: skip
    texts = [{key: f"{value:.4g}" for key, value in row.items()} for row in rows]
    tail = "{'train_runtime': '3600', 'train_samples_per_second': '0.2', 'train_loss': '0.031', 'epoch': '0.107'}"
    head = "2026-01-10 10:05:30,440 [INFO] pilot: max_steps=50\nLoading weights: 100%|██████████| 300/300 [00:00<00:00]"
    return "raw/pilot.log", rows, log_of_text(texts, head, tail), {
        "about": "A console whose numbers are in quotes: learning, and nothing to warn of.",
        "labels": ["learning"],
        "warnings": [],
    }  # fmt: skip


def six_starts(noise: Noise) -> Case:
    starts, rows = (5, 6, 7, 5, 6, 48), list[Row]()
    said = list[Row]()
    for n in starts:
        reward = noise.around(ramp(0.08, 0.29, n, 0.4), 0.02, n, 0, 0.31)
        dead = noise.pick([1.0, 0.0], [0.6, 0.4], n)
        rows = rows_of(
            range(1, n + 1), reward_mean=reward,
            reward_std=np.where(np.array(dead) == 1, 0.0, 0.02),
            zero_gradient_group_fraction=dead, best_reward_mean=np.maximum.accumulate(reward),
        )  # fmt: skip
        said += [
            {"batch_index": row["step"], **{k: v for k, v in row.items() if k != "step"},
             "curriculum": {"tier": 0, "gate": {"won": [0]}}}
            for row in rows
        ]  # fmt: skip
    return "raw/training_metrics.jsonl", rows, lines(said), {
        "about": "Home-made lines with objects inside, counted by batch_index: five aborted starts before the run.",
        "labels": ["learning", "zero_variance", "other:concatenated_restarts"],
        "warnings": [],
        "reward": "reward_mean",
        "runs": len(starts),
    }  # fmt: skip


def counted_twice(noise: Noise) -> Case:
    n = 70
    schema = noise.around(ramp(0.05, 0.225, n, 0.6), 0.008, n, 0)
    plan = np.add(noise.around(ramp(0.5, 0.85, n, 0.6), 0.03, n), 0)
    rows = rows_of(
        range(1, n + 1), epoch=ramp(0.0005, 0.2, n), loss=noise.around(-0.05, 0.02, n),
        reward=plan + 2 * np.array(schema), grad_norm=noise.around(0.08, 0.02, n), learning_rate=ramp(5e-6, 1e-8, n),
        completions__clipped_ratio=noise.around(ramp(0.1, 0.98, n, 0.7), 0.03, n, 0, 1), completions__max_length=640.0,
        completions__mean_length=noise.around(ramp(260, 634, n, 0.7), 8, n, 0, 640),
        entropy=noise.around(ramp(0.036, 0.006, n, 0.6), 0.001, n, 0.003), frac_reward_zero_std=0.0,
        kl=ramp(0.0001, 0.02, n), reward_std=noise.around(0.2, 0.03, n), rewards__plan__mean=plan,
        rewards__plan__std=0.1, rewards__schema__mean=schema, rewards__schema__std=0.05,
        rewards__terminal__mean=schema, rewards__terminal__std=0.05,
    )  # fmt: skip
    names = ["step", *(name for name in rows[0] if name != "step")]
    ending = ["total_flos", "train_loss", "train_runtime"]
    said = [",".join([*names, *ending])]
    said += [",".join([*(str(row[name]) for name in names), "", "", ""]) for row in rows]
    for epoch in ("0.2", ""):
        said.append(",".join([str(n), epoch, *[""] * (len(names) - 2), "0.0", "-0.05", "9000.5"]))
    return "raw/training_metrics.csv", rows, "\n".join(said) + "\n", {
        "about": "A table that ends in two sums of the run, with its settings in a file beside it: two parts are one, "
        "and completions grow until they are cut.",
        "labels": ["learning", "clipped_completions", "length_growth", "entropy_collapse", "reward_hacking_suspected",
                   "other:duplicate_components"],
        "warnings": [],
        "config": {"sampling.max_tokens": 640, "sampling.size": 8, "learning.steps": n},
        "beside": {"raw/training_summary.json": {"model_name": "invented/3b", "max_steps": n, "dataset_size": 1200,
                   "num_generations": 8, "max_completion_length": 640, "train_metrics": {"train_loss": -0.05}}},
    }  # fmt: skip


def slow_drift(noise: Noise) -> Case:
    n = 60
    reward = noise.around(ramp(0.32, 0.41, n), 0.05, n)
    rows = rows_of(
        range(5, 5 * n + 1, 5), completions__clipped_ratio=noise.around(0.3, 0.03, n), completions__max_length=512.0,
        completions__mean_length=noise.around(405, 5, n), grad_norm=noise.around(0.07, 0.008, n),
        kl=noise.around(ramp(0.0002, 0.0007, n), 0.00003, n), learning_rate=ramp(3e-6, 1e-8, n),
        reward=reward, reward_std=noise.around(0.28, 0.02, n), rewards__sql__mean=reward,
        rewards__sql__std=noise.around(0.46, 0.02, n),
    )  # fmt: skip
    return "raw/trainer_state_300steps.json", rows, state(rows, 5, 300), {
        "about": "A small trend over a policy that has hardly moved, a third of completions cut.",
        "labels": ["learning", "tiny_updates", "kl_negligible", "clipped_completions"],
        "warnings": [],
    }  # fmt: skip


def never_fires(noise: Noise) -> Case:
    n = 39
    layout = noise.pick([0.0, 0.125, 0.25], [0.55, 0.3, 0.15], n)
    rows = rows_of(
        range(1, n + 1), grad_norm=noise.around(0.2, 0.05, n), learning_rate=ramp(4e-7, 5e-7, n),
        completion_length=noise.around(400, 20, n), rewards__layout=layout, rewards__equation=0.0, reward=layout,
        reward_std=np.where(np.array(layout) > 0, 0.3, 0.0), kl=noise.around(0.0014, 0.0001, n),
    )  # fmt: skip
    return "series.jsonl", rows, lines(list(map(prefixed, rows))), {
        "about": "TensorBoard's names: the part that counts is 0 at every step, half the groups are dead, tiny rate.",
        "labels": ["flat", "too_short_to_tell", "reward_component_dead", "zero_variance", "tiny_updates",
                   "kl_negligible"],
        "warnings": ["optimizer.lr-small", "reward.component-dead"],
    }  # fmt: skip


def ends_in_nan(noise: Noise) -> Case:
    n = 36
    rows = rows_of(
        range(1, n + 1), grad_norm=noise.around(ramp(0.8, 1.3, n), 0.1, n),
        learning_rate=ramp(5e-6, 1e-6, n), completions__mean_length=noise.around(60, 5, n),
        completions__clipped_ratio=0.02, rewards__leak=noise.around(ramp(-1.5, -0.6, n), 0.3, n),
        rewards__layout=noise.around(-0.2, 0.02, n), reward=noise.around(ramp(-2.2, -0.2, n), 0.5, n),
        reward_std=noise.around(1.2, 0.1, n), frac_reward_zero_std=noise.around(0.1, 0.03, n, 0),
        kl=noise.around(ramp(0.002, 0.1, n), 0.004, n, 0.001),
        epoch=ramp(0.1, 9.7, n),
    )  # fmt: skip
    rows[-1] |= {"grad_norm": float("nan"), "kl": float("nan")}
    said = "Model: invented/1.5b\nTrainable: 2,000 / 100,000 (2.00%)\n\nMap: 100%|██████████| 90/90 [00:00<00:00]\n"
    for row in rows:
        said += f"{bar(row['step'], 60)}\r{' ' * 30}\r\n{printed(row)}\n"
    said += "Traceback (most recent call last):\nRuntimeError: a probability is inf, nan or below 0\n"
    return "raw/train.log", rows, said, {
        "about": "Learning until the last line, where gradient and KL are NaN and sampling crashes.",
        "labels": ["learning", "nan", "other:crashed"],
        "warnings": ["run.nonfinite"],
        "nonfinite": {"gradient/norm/before": [n], "kl/reference/mean": [n]},
    }  # fmt: skip


def narrow_terminal(noise: Noise) -> Case:
    n = 34
    action = noise.around(ramp(-2.2, 0.3, n, 0.7), 0.35, n)
    layout = noise.around(ramp(-0.6, -0.2, n, 0.7), 0.06, n)
    rows = rows_of(
        range(1, n + 1), grad_norm=noise.around(0.17, 0.02, n), learning_rate=ramp(2e-4, 1e-6, n),
        completions__mean_length=383.0, completions__max_length=384.0,
        completions__clipped_ratio=noise.around(0.97, 0.01, n, 0, 1), rewards___reward_action__mean=action,
        rewards___reward_action__std=0.7, rewards__reward_format__mean=layout, rewards__reward_format__std=0.2,
        reward=np.add(action, layout), reward_std=noise.around(0.9, 0.08, n), frac_reward_zero_std=0.25,
        entropy=noise.around(0.36, 0.02, n), epoch=ramp(0.0, 0.2, n),
    )  # fmt: skip
    head = "$ python -m guard.train --model invented/8b --train_steps 34\n\n[Step 1/3] Loading...\n"
    head += f"{'=' * 44}\n  BEFORE TRAINING\n{'=' * 44}\n  Accuracy:  0.050\n  F1:        0.120\n"
    wide = "\n".join(map(printed, rows))
    wrapped = "\n".join(line[at : at + 181] for line in wide.split("\n") for at in range(0, len(line), 181))
    examples = {"examples": [{"truth": "yes", "said": "yes", "response": "Look at the second turn. The reward is"}]}
    tail = f"\n[Step 3/3] Evaluating AFTER training...\n  Accuracy:  0.610\n{json.dumps(examples, indent=2)}\n$\n"
    return "raw/output.txt", rows, head + wrapped + tail, {
        "about": "A terminal that breaks dictionaries in the middle of words, with evaluations around: real learning, "
        "and completions always cut.",
        "labels": ["learning", "clipped_completions"],
        "warnings": [],
    }  # fmt: skip


def one_answer(noise: Noise) -> Case:
    n = 56
    late = np.arange(n) > 14
    reward = np.where(late, -1.18, noise.around(ramp(-1.5, -1.2, n, 0.25), 0.2, n, -2, 0.5))
    reward[5] = 0.5
    rows = rows_of(
        range(1, n + 1), grad_norm=np.where(late, 7e-5, noise.around(12, 2, n)),
        learning_rate=ramp(5e-4, 1e-6, n), completions__mean_length=16.0, completions__max_length=16.0,
        completions__clipped_ratio=1.0, rewards__game__mean=reward, rewards__game__std=0.19, reward=reward,
        reward_std=noise.around(0.19, 0.02, n), frac_reward_zero_std=0.1,
        kl=np.where(late, 2.29, noise.around(ramp(0.01, 2.3, n, 0.26), 0.05, n, 0.01)),
        entropy=np.where(late, 0.0012, noise.around(ramp(1.07, 0.2, n, 0.26), 0.03, n)),
    )  # fmt: skip
    return "raw/history.json", rows, json.dumps({key: [row[key] for row in rows] for key in rows[0]}) + "\n", {
        "about": "One list per name: the policy becomes one fixed answer, with no entropy, no gradient and a large KL.",
        "labels": ["flat", "entropy_collapse", "kl_runaway", "clipped_completions"],
        "warnings": ["sampling.entropy-collapse", "kl.runaway", "sampling.no-stop"],
    }  # fmt: skip


def stands_still(noise: Noise) -> Case:
    n = 80
    reward = noise.around(-0.23, 0.35, n)
    rows = rows_of(
        range(1, n + 1), completions__clipped_ratio=noise.around(0.06, 0.02, n, 0), completions__max_length=512.0,
        completions__mean_length=noise.around(280, 9, n), entropy=noise.around(1.32, 0.03, n), frac_reward_zero_std=0.0,
        grad_norm=noise.around(0.2, 0.02, n), kl=noise.around(ramp(0.0002, 0.0038, n), 0.0002, n, 0),
        learning_rate=ramp(1e-5, 3e-8, n), reward=reward, reward_std=noise.around(1.0, 0.05, n),
        rewards__game__mean=reward, rewards__game__std=noise.around(1.1, 0.05, n),
    )  # fmt: skip
    return "raw/history.csv", rows, table(rows), {
        "about": "A tracker's exported history: there is a gradient, and the policy has not left its start.",
        "labels": ["flat", "kl_negligible", "tiny_updates"],
        "warnings": ["optimizer.lr-small"],
    }  # fmt: skip


CASES: tuple[Callable[[Noise], Case], ...] = (
    market_noise, tidy_table, ferry_alone, harbor_default, fair_choice, two_arms, canal_drift, proxy_compiles,
    short_trial, layout_only, never_stops, over_the_edge, pairs, six_starts, counted_twice, slow_drift, never_fires,
    ends_in_nan, narrow_terminal, one_answer, stands_still,
)  # fmt: skip


def stats_of(rows: list[Row], reward: str) -> Row:
    """Sum up the curve that a reader should find."""
    values, quarter = [row[reward] for row in rows], len(rows) // 4
    return {
        "points": len(rows),
        "first_step": rows[0]["step"],
        "last_step": rows[-1]["step"],
        "q1_mean": round(float(np.mean(values[:quarter])), 5),
        "q4_mean": round(float(np.mean(values[-quarter:])), 5),
    }


def main() -> None:
    """Write every case."""
    for make in CASES:
        name = make.__name__.replace("_", "-")
        file, rows, content, meta = make(Noise(name))
        beside = meta.pop("beside", {})
        texts = {file: content, **{path: json.dumps(table, indent=2) + "\n" for path, table in beside.items()}}
        texts["meta.json"] = json.dumps(meta | {"stats": stats_of(rows, meta.pop("reward", "reward"))}, indent=2) + "\n"
        for path, text in texts.items():
            (HERE / name / path).parent.mkdir(parents=True, exist_ok=True)
            (HERE / name / path).write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
