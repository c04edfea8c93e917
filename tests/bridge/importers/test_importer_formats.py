"""Every format, written small: the same curve comes out of each."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_logs import event_file, lines, printed, state, trl_rows, verl_line, wandb_file, write

from uptrend.bridge.importers import read_views
from uptrend.records.schema import ROLLOUTS
from uptrend.records.view import RunView

ROWS = trl_rows(40)


def only(path: Path) -> RunView:
    views = read_views(path)
    assert len(views) == 1
    return views[0]


def table(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def columns(rows: list[dict[str, Any]]) -> str:
    return json.dumps({key: [row[key] for row in rows] for key in rows[0]})


def prefixed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key if key == "step" else f"train/{key}": value for key, value in row.items()} for row in rows]


TRL: dict[str, str | bytes] = {
    "trainer_state": state(ROWS),
    "state on one line": json.dumps(json.loads(state(ROWS))),
    "json lines": lines(ROWS),
    "json list": json.dumps(ROWS),
    "json columns": columns(ROWS),
    "json inside": json.dumps({"config": {"lr": 1e-5}, "history": ROWS}),
    "csv": table(ROWS),
    "csv with semicolons": table(ROWS, ";"),
    "tsv": table(ROWS, "\t"),
    "events": event_file(prefixed(ROWS)),
    "events with tensors": event_file(prefixed(ROWS), tensors=True),
    "wandb": wandb_file([{**row, "_step": at} for at, row in enumerate(ROWS)], {"num_generations": 8}, "my run"),
    "console": "\n".join(["Loading", *printed(ROWS), "done"]),
    "notebook": table([{"Step": r["step"], "Training Loss": r["loss"]} | {k.replace("/", " / "): v for k, v in r.items()
                       if k not in ("step", "loss")} for r in ROWS]),
}  # fmt: skip


@pytest.mark.parametrize("content", TRL.values(), ids=TRL.keys())
def test_trl_reads_alike_whatever_the_file_is_called(content: str | bytes, tmp_path: Path) -> None:
    view = only(write(tmp_path / "something.bin", content))
    assert view.trainer == "trl"
    assert view.steps.tolist() == list(range(1, 41))
    expected = {
        "reward/mean": [r["reward"] for r in ROWS],
        "reward/part/correct/mean": [r["reward"] / 2 for r in ROWS],
        "reward/part/format/std": [0.1] * 40,
        "reward/group_std/mean": [0.3] * 40,
        "advantage/dead/share": [0.25] * 40,
        "sampling/length/mean": [50.0 + r["step"] for r in ROWS],
        "sampling/ended/length/share": [0.25] * 40,
        "kl/reference/mean": [r["kl"] for r in ROWS],
        "learner/entropy/mean": [r["entropy"] for r in ROWS],
        "clip/region/share": [0.01] * 40,
        "gradient/norm/before": [r["grad_norm"] for r in ROWS],
        "optimizer/lr": [r["learning_rate"] for r in ROWS],
        "loss/total": [r["loss"] for r in ROWS],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(view.metrics[name], values, rtol=1e-6, err_msg=name)
    assert view.value("sampling.max_tokens") == 128
    assert view.value("learning.lr") == pytest.approx(1e-5, rel=0.01)


def test_a_state_says_how_long_the_run_was_to_be(tmp_path: Path) -> None:
    assert only(write(tmp_path / "trainer_state.json", state(ROWS))).value("learning.steps") == 500


def test_wandb_gives_its_config_and_name_across_blocks(tmp_path: Path) -> None:
    config = {"num_generations": 16, "learning_rate": 2e-5, "beta": 0.04, "temperature": 0.9, "peft": {"r": 32},
              "max_completion_length": 512, "max_steps": 77}  # fmt: skip
    rows = [{**row, "note": "x" * (100_000 if row["step"] == 7 else 5000)} for row in trl_rows(40)]
    data = wandb_file(rows, config, "calm-sea-7")
    assert len(data) > 5 * 32768
    write(tmp_path / "wandb" / "offline-run-20260101_000000-abc" / "run-abc.wandb", data)
    for folder in (tmp_path, tmp_path / "wandb", tmp_path / "wandb" / "offline-run-20260101_000000-abc"):
        view = only(folder)
        assert view.name == "calm-sea-7"
        assert view.config == {
            "sampling": {"size": 16, "max_tokens": 512, "temperature": 0.9},
            "learning": {"lr": 2e-5, "steps": 77, "kl": {"beta": 0.04}},
            "model": {"lora": {"r": 32}},
        }
        np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 41) / 100)


def test_wandbs_exported_chart_holds_a_run_a_name(tmp_path: Path) -> None:
    rows = [{"train/global_step": s, "first - train/reward": s / 10, "first - train/reward__MIN": 0,
             "first - train/reward__MAX": 9, "second - train/reward": -s} for s in range(1, 21)]  # fmt: skip
    first, second = read_views(write(tmp_path / "chart.csv", table(rows)))
    assert (first.name, second.name) == ("first", "second")
    np.testing.assert_allclose(first.metrics["reward/mean"], np.arange(1, 21) / 10)
    np.testing.assert_allclose(second.metrics["reward/mean"], -np.arange(1, 21))
    assert not first.unknown


def test_wandbs_exported_history_joins_rows_of_one_step(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for step in range(1, 21):
        rows.append({"_step": 2 * step, "_runtime": 3.0 * step, "train/global_step": step, "train/reward": step / 10})
        rows.append({"_step": 2 * step + 1, "train/global_step": step, "train/kl": 0.1 * step})
    view = only(write(tmp_path / "history.jsonl", lines(rows)))
    assert view.steps.tolist() == list(range(1, 21))
    np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 21) / 10)
    np.testing.assert_allclose(view.metrics["kl/reference/mean"], 0.1 * np.arange(1, 21))


def test_a_console_colored_and_wrapped_among_bars_keeps_its_steps(tmp_path: Path) -> None:
    text = "Total optimization steps = 203\n\rLoading weights: 100%|###| 427/427 [00:01<00:00, 99it/s]\n"
    for at, dictionary in enumerate(printed(trl_rows(40))):
        bar = f"\r {at}%|##   | {5 * at + 5}/203 [00:{at % 60:02d}<01:00, 1.0s/it]\r      \r"
        wrapped = "\n".join(dictionary[i : i + 61] for i in range(0, len(dictionary), 61))
        text += f"{bar}\x1b[32m{wrapped}\x1b[0m\nMap: 100%|#| 7000/7000 [00:01<00:00, 9it/s]\n"
    view = only(write(tmp_path / "out.log", text))
    assert view.steps.tolist() == list(range(5, 205, 5))[:40]
    np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 41) / 100)
    np.testing.assert_allclose(view.metrics["reward/part/correct/mean"], np.arange(1, 41) / 200)
    assert view.value("learning.steps") == 203


def test_verls_console_with_rays_prefix_and_its_config(tmp_path: Path) -> None:
    rows = [{"step": s, "actor/entropy": 0.5, "actor/kl_loss": 0.01 * s, "actor/grad_norm": 0.2, "actor/lr": 1e-6,
             "critic/score/mean": s / 50, "critic/score/max": 1.0, "critic/rewards/mean": s / 60,
             "response_length/mean": 90.0, "response_length/clip_ratio": 0.5, "timing_s/step": 3.0}
            for s in range(1, 31)]  # fmt: skip
    config = ["{'actor_rollout_ref': {'actor': {'kl_loss_coef': 0.001,", "   'optim': {'lr': 1e-06},",
              "   'use_kl_loss': True}, 'model': {'lora_rank': 8}, ",
              " 'rollout': {'val_kwargs': {'n': 1, 'temperature': 0}, 'n': 8, 'temperature': 1.0}},",
              " 'algorithm': {'adv_estimator': 'grpo'},",
              " 'data': {'max_response_length': 256, 'train_batch_size': 64}}"]  # fmt: skip
    head = [f"\x1b[36m(TaskRunner pid=123)\x1b[0m {line}" for line in config]
    evaluation = "(TaskRunner pid=123) step:0 - val-core/gsm8k/acc/mean@1:0.25"
    text = "\n".join([*head, evaluation, *map(verl_line, rows), "(WorkerDict pid=9) step: done"])
    view = only(write(tmp_path / "train.log", text))
    assert view.trainer == "verl"
    np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 31) / 50)
    np.testing.assert_allclose(view.metrics["kl/reference/mean"], 0.01 * np.arange(1, 31))
    assert view.metrics["sampling/ended/length/share"][0] == 0.5
    assert view.evals[0]["step"] == 0
    assert view.evals[0]["accuracy"] == 0.25
    assert view.config["sampling"] == {"size": 8, "max_tokens": 256, "temperature": 1.0, "groups": 64}
    assert view.config["learning"] == {"lr": 1e-6, "kl": {"beta": 0.001}}
    assert view.value("model.lora.r") == 8
    assert any("'critic/score/mean', not from 'critic/rewards/mean'" in note for note in view.notes)


def test_old_verl_prints_rates_in_units_and_wraps_by_metric(tmp_path: Path) -> None:
    text = "\n".join(
        f"step:{s} - actor/lr(1e-4):0.010\n - critic/score/mean:{s / 10}\n - actor/pg_loss:0.1" for s in range(9)
    )
    view = only(write(tmp_path / "log", text))
    np.testing.assert_allclose(view.metrics["optimizer/lr"], [1e-6] * 9)
    np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(9) / 10)


def test_ms_swift_counts_steps_in_a_text(tmp_path: Path) -> None:
    rows = [row | {"global_step/max_steps": f"{5 * at}/400", "memory(GiB)": 9.0} for at, row in enumerate(ROWS, 1)]
    rows[7]["kl"] = float("nan")
    view = only(write(tmp_path / "log", "\n".join(printed(rows))))
    assert view.steps.tolist() == list(range(5, 205, 5))
    assert view.value("learning.steps") == 400


def test_prime_rls_lines_and_console(tmp_path: Path) -> None:
    old = [{"step": s, "reward/mean": s / 40, "batch/solve_none": 0.25, "batch/solve_all": 0.125, "time/step": 2.0,
            "completion_len/mean": 100.0, "is_truncated/mean": 0.1, "num_turns/mean": 3.0}
           for s in range(20)]  # fmt: skip
    view = only(write(tmp_path / "metrics.jsonl", lines(old)))
    assert view.trainer == "prime-rl"
    assert view.metrics["advantage/dead_low/share"][3] == 0.25
    assert view.metrics["advantage/dead_high/share"][3] == 0.125
    assert view.metrics["sampling/turns/mean"][3] == 3.0
    text = "".join(
        f"12:00:{s:02d} SUCCESS Step {s} | Time: 3.20s | Reward: {s / 40:.4f} | Throughput: 99.1 tokens/s"
        f" | Seq. Length: 300.0 tokens/sample | Async Level: 2 | Max. Off-Policy Level: 1\n"
        for s in range(20)
    )
    console = only(write(tmp_path / "orchestrator.log", text))
    assert console.trainer == "prime-rl"
    np.testing.assert_allclose(console.metrics["reward/mean"], np.arange(20) / 40)
    text = "".join(
        f"Micro Step 1/2 | Loss 9.9 | Entropy 9.9\n Step {s} | 3.2s | Loss 0.1000 | Entropy 0.{s:04d} "
        f"| Mismatch KL 0.0100 | Grad. Norm 0.5000 | LR 1.00e-06 | Throughput 99 tokens/s"
        f" | MFU 30.0% | Peak Mem. 40.5 GiB\n"
        for s in range(1, 20)
    )
    trainer = only(write(tmp_path / "trainer.log", text))
    assert trainer.metrics["sampler/kl/mean"].tolist() == [0.01] * 19
    assert trainer.metrics["gradient/norm/before"].tolist() == [0.5] * 19
    assert trainer.metrics["learner/entropy/mean"][-1] == 0.0019
    assert trainer.metrics["memory/peak/gib"][0] == 40.5


def test_prime_rls_folder_joins_trainer_and_orchestrator(tmp_path: Path) -> None:
    orchestrator = [{"step": s, "time": 1.0, "train/agg/all/main/reward/mean": s / 40, "progress/ckpt_step": s,
                     "train/agg/all/main/solved_none": 0.5} for s in range(1, 21)]  # fmt: skip
    trainer = [{"step": s, "time": 2.0, "mismatch_kl/all/mean": 0.01, "optim/grad_norm": 0.5, "optim/lr": 1e-6}
               for s in range(1, 21)]  # fmt: skip
    write(tmp_path / "orchestrator" / "metrics.jsonl", lines(orchestrator))
    write(tmp_path / "trainer" / "metrics.jsonl", lines(trainer))
    view = only(tmp_path)
    assert len(view.steps) == 20
    assert view.has("reward/mean", "advantage/dead_low/share", "sampler/kl/mean", "gradient/norm/before")


def test_tinkers_metrics(tmp_path: Path) -> None:
    rows = [{"step": s, "progress/batch": s, "optim/lr": 1e-4, "env/all/reward/total": s / 10, "env/all/correct": 0.5,
             "env/all/by_group/frac_mixed": 0.25, "env/all/by_group/frac_all_good": 0.5,
             "env/all/by_group/frac_all_bad": 0.25, "env/all/ac_tokens_per_turn": 30.0, "time/total": 9.0,
             "env/all/turns_per_episode": 2.0, "optim/entropy": 0.7, "optim/kl_sample_train_v2": 0.001,
             **({"test/env/all/correct": 0.3, "test/env/all/reward/total": 0.4} if s % 5 == 0 else {})}
            for s in range(20)]  # fmt: skip
    view = only(write(tmp_path / "metrics.jsonl", lines(rows)))
    assert view.trainer == "tinker"
    assert view.steps[0] == 0
    assert view.metrics["advantage/dead/share"][0] == 0.75
    assert view.metrics["sampling/length/mean"][0] == 60.0
    assert view.metrics["reward/mean"][10] == 1.0
    assert [(e["step"], e["accuracy"], e["reward"]) for e in view.evals] == [(s, 0.3, 0.4) for s in (0, 5, 10, 15)]


def test_verifiers_trainer_and_its_evaluation(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": s / 10, "reward/std": 0.4, "reward/exact": 0.1, "advantage/absmean": 0.3, "loss": 0.0,
             "tokens/completion": 80.0, "importance_ratio": 1.01, "mismatch_kl": 0.002, "entropy": 0.5,
             "wall_clock/generate_s": 4.0} for s in range(1, 20)]  # fmt: skip
    view = only(write(tmp_path / "log.jsonl", lines(rows)))
    assert view.trainer == "verifiers"
    assert view.metrics["reward/std"][0] == 0.4
    assert view.metrics["reward/part/exact/mean"][0] == 0.1
    assert view.metrics["sampler/kl/mean"][0] == 0.002
    attempts = [{"example_id": i // 4, "prompt": [{"role": "user", "content": f"q{i // 4}"}], "answer": "7",
                 "completion": [{"role": "assistant", "content": "7"}], "reward": float(i % 2),
                 "metrics": {"exact": 1.0}}
                for i in range(20)]  # fmt: skip
    result = only(write(tmp_path / "results.jsonl", lines(attempts)))
    assert len(result.steps) == 0
    assert result.evals == ({"step": 0, "reward": 0.5, "tasks": 5},)
    assert len(set(result.held_out(0)["group"].to_pylist())) == 5


def completions(step: int) -> pa.Table:
    """Four prompts, four completions each; only the last prompt's rewards differ."""
    prompts = [[{"role": "user", "content": f"question {i // 4}"}] for i in range(16)]
    said = [[{"role": "assistant", "content": f"answer {i}"}] for i in range(16)]
    return pa.table({
        "step": [step] * 16, "prompt": prompts, "completion": said,
        "correct": [1.0 if i < 12 or i % 2 else 0.0 for i in range(16)], "format": [0.5] * 16, "difficulty": [3] * 16,
        "advantage": [0.1 * i for i in range(16)],
    })  # fmt: skip


def test_trls_folder_takes_the_newest_state_and_its_completions(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-9" / "trainer_state.json", state(trl_rows(9)))
    write(tmp_path / "checkpoint-40" / "trainer_state.json", state(ROWS))
    write(tmp_path / "checkpoint-40" / "adapter_config.json", json.dumps({"r": 8, "lora_alpha": 16}))
    write(tmp_path / "checkpoint-40" / "training_args.bin", b"\x80\x04never unpickled")
    (tmp_path / "completions").mkdir()
    for step in (10, 20):
        pq.write_table(completions(step), tmp_path / "completions" / f"completions_{step:05d}.parquet")
    view = only(tmp_path)
    assert len(view.steps) == 40
    assert view.value("model.lora") == {"r": 8, "alpha": 16}
    assert view.rollout_steps == (10, 20)
    rollouts = view.read_rollouts(20)
    assert rollouts.schema.equals(ROLLOUTS)
    assert rollouts.num_rows == 16
    assert len(set(rollouts["group"].to_pylist())) == 4
    first = rollouts.slice(0, 1).to_pylist()[0]
    assert [m["role"] for m in first["messages"]] == ["user", "assistant"]
    assert {part["name"]: part["value"] for part in first["parts"]} == {"correct": 1.0, "format": 0.5}
    assert first["reward"] == 1.5
    assert first["ids"] is None
    assert rollouts["advantages"].to_pylist()[3] == pytest.approx([0.3])
    assert any("text of their prompt" in note for note in view.notes)


def test_completions_alone_make_a_curve(tmp_path: Path) -> None:
    for step in (10, 20):
        pq.write_table(completions(step).drop(["difficulty"]), tmp_path / f"completions_{step:05d}.parquet")
    view = only(tmp_path)
    assert view.steps.tolist() == [10, 20]
    assert view.metrics["advantage/dead/share"].tolist() == [0.75, 0.75]
    assert view.metrics["reward/mean"][0] == pytest.approx(0.5 + 14 / 16)


def test_event_files_of_one_folder_are_one_run_and_other_folders_others(tmp_path: Path) -> None:
    for name, first in (
        ("a/events.out.tfevents.1.x", 1),
        ("a/events.out.tfevents.2.x", 21),
        ("b/events.out.tfevents.3.x", 1),
    ):
        write(tmp_path / name, event_file(prefixed(trl_rows(20, first))))
    long, short = read_views(tmp_path)
    assert long.steps.tolist() == list(range(1, 41))
    assert short.steps.tolist() == list(range(1, 21))


def test_real_tensorboard_writes_what_is_read(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="needs tensorboard")
    event = pytest.importorskip("tensorboard.compat.proto.event_pb2").Event
    summary = pytest.importorskip("tensorboard.compat.proto.summary_pb2").Summary
    writer = tensorboard.EventFileWriter(str(tmp_path))
    for step in range(1, 31):
        value = summary.Value(tag="train/reward", simple_value=step / 10)
        writer.add_event(event(step=step, wall_time=1.0 + step, summary=summary(value=[value])))
    writer.close()
    np.testing.assert_allclose(only(tmp_path).metrics["reward/mean"], np.arange(1, 31) / 10, rtol=1e-6)


def test_our_own_directory_and_its_metrics_alone(make_run: Callable[..., Path]) -> None:
    path = make_run("mine", steps=12)
    view = only(path)
    assert (view.trainer, view.name) == ("uptrend", "mine")
    assert len(view.steps) == 12
    alone = only(path / "metrics.jsonl")
    assert alone.trainer == "uptrend"
    np.testing.assert_array_equal(alone.metrics["reward/mean"], view.metrics["reward/mean"])
