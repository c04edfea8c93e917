"""Every format, written small: the same curve comes out of each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_logs import (
    console,
    event_file,
    lines,
    noted,
    only,
    state,
    table,
    trl_rows,
    wandb_file,
    write,
)

from uptrend.bridge.importers import read_views
from uptrend.records.errors import RecordError
from uptrend.records.schema import ROLLOUT_SCHEMA

CASES = sorted(
    path.parent for path in (Path(__file__).parents[2] / "data" / "formats").glob("*/meta.json")
)
ROWS = trl_rows(40)
Rows = list[dict[str, Any]]


def prefixed(rows: Rows) -> Rows:
    return [
        {key if key == "step" else f"train/{key}": value for key, value in row.items()}
        for row in rows
    ]


TRL: dict[str, str | bytes] = {
    "trainer_state": state(ROWS),
    "state on one line": json.dumps(json.loads(state(ROWS))),
    "json lines": lines(ROWS),
    "json list": json.dumps(ROWS),
    "json columns": json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}),
    "json inside": json.dumps({"config": {"lr": 1e-5}, "history": ROWS}),
    "csv": table(ROWS),
    "csv with semicolons": table(ROWS, ";"),
    "tsv": table(ROWS, "\t"),
    "events": event_file(prefixed(ROWS)),
    "events with tensors": event_file(prefixed(ROWS), tensors=True),
    "wandb": wandb_file([{**row, "_step": at} for at, row in enumerate(ROWS)], {"num_generations": 8}, "my run"),
    "console": f"Loading\n{console(ROWS)}done",
    "notebook": table([{"Step": r["step"], "Training Loss": r["loss"]} | {k.replace("/", " / "): v for k, v in r.items()
                       if k not in ("step", "loss")} for r in ROWS]),
}  # fmt: skip


@pytest.mark.parametrize("content", TRL.values(), ids=TRL.keys())
def test_trl_reads_alike_whatever_the_file_is_called(content: str | bytes, tmp_path: Path) -> None:
    view = only(write(tmp_path / "something.bin", content))
    assert view.trainer == "trl"
    assert view.steps.tolist() == list(range(1, 41))
    for name, column in {
        "reward/mean": "reward", "reward/part/correct/mean": "rewards/correct/mean", "kl/reference/mean": "kl",
        "reward/part/format/std": "rewards/format/std", "reward/group_std/mean": "reward_std",
        "advantage/dead/share": "frac_reward_zero_std", "sampling/length/mean": "completions/mean_length",
        "sampling/ended/length/share": "completions/clipped_ratio", "learner/entropy/mean": "entropy",
        "clip/region/share": "clip_ratio/region_mean", "gradient/norm/before": "grad_norm",
        "optimizer/lr": "learning_rate", "loss/total": "loss",
    }.items():  # fmt: skip
        np.testing.assert_allclose(
            view.metrics[name], [row[column] for row in ROWS], rtol=1e-6, err_msg=name
        )
    assert view.value("sampling.max_tokens") == 128
    assert view.value("learning.lr") == pytest.approx(1e-5, rel=0.01)
    assert view.value("learning.steps") == (500 if "log_history" in str(content) else None)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_format_gives_what_its_case_records(case: Path) -> None:
    raw = case / "raw"
    inside = list(raw.iterdir())
    views = read_views(inside[0] if len(inside) == 1 else raw)
    for view, known in zip(
        views, json.loads((case / "meta.json").read_text(encoding="utf-8"))["runs"], strict=True
    ):
        assert (view.trainer, view.name) == (known["trainer"], known.get("name", ""))
        assert (len(view.steps), *view.steps[[0, -1]]) == (
            known["points"],
            known["first_step"],
            known["last_step"],
        )
        assert {name: view.metrics[name][-1] for name in known["last"]} == pytest.approx(
            known["last"]
        )
        mean = known.get("mean", {})
        assert {name: view.metrics[name].mean() for name in mean} == pytest.approx(mean)
        assert view.config == known.get("config", view.config)
        assert list(view.unknown) == known.get("unknown", list(view.unknown))
        found = [
            [entry["step"], entry.get("accuracy"), entry.get("reward")] for entry in view.evals
        ]
        assert found == known.get("evals", [])
        assert all(noted(view, note) for note in known.get("notes", []))


def test_wandb_gives_its_config_and_name_across_blocks(tmp_path: Path) -> None:
    config = {"num_generations": 16, "learning_rate": 2e-5, "beta": 0.04, "temperature": 0.9, "peft": {"r": 32},
              "max_completion_length": 512, "max_steps": 77}  # fmt: skip
    rows = [{**row, "note": "x" * (100_000 if row["step"] == 7 else 5000)} for row in ROWS]
    data = wandb_file(rows, config, "calm-sea-7")
    assert len(data) > 5 * 32768
    file = write(tmp_path / "wandb" / "offline-run-20260101_000000-abc" / "run-abc.wandb", data)
    for folder in (tmp_path, tmp_path / "wandb", file.parent):
        view = only(folder)
        assert view.name == "calm-sea-7"
        assert view.config == {
            "sampling": {"size": 16, "max_tokens": 512, "temperature": 0.9},
            "learning": {"lr": 2e-5, "steps": 77, "kl": {"beta": 0.04}},
            "model": {"lora": {"r": 32}},
        }
        np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 41) / 100)


def test_attempts_are_an_evaluation_and_with_steps_a_curve(tmp_path: Path) -> None:
    attempts: Rows = [{"example_id": i // 4, "prompt": [{"role": "user", "content": f"q{i // 4}"}], "answer": "7",
                       "completion": [{"role": "assistant", "content": "7"}], "reward": float(i % 2),
                       "metrics": {"exact": 1.0}} for i in range(20)]  # fmt: skip
    result = only(write(tmp_path / "results.jsonl", lines(attempts)))
    assert (result.trainer, len(result.steps)) == ("verifiers", 0)
    assert result.evals == ({"step": 0, "reward": 0.5, "tasks": 5},)
    assert len(set(result.read_heldout(0)["group"].to_pylist())) == 5
    curve = only(
        write(
            tmp_path / "steps.jsonl",
            lines([row | {"step": i // 8} for i, row in enumerate(attempts)]),
        )
    )
    assert curve.steps.tolist() == list(curve.rollout_steps) == [0, 1, 2]
    assert curve.metrics["reward/mean"].tolist() == [0.5] * 3


def completions(step: int) -> pa.Table:
    """Make four completions of each of four prompts; only the last prompt's rewards differ."""
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
    write(
        tmp_path / "checkpoint-40" / "adapter_config.json", json.dumps({"r": 8, "lora_alpha": 16})
    )
    write(tmp_path / "checkpoint-40" / "training_args.bin", b"\x80\x04never unpickled")
    (tmp_path / "completions").mkdir()
    for step in (10, 20):
        pq.write_table(
            completions(step), tmp_path / "completions" / f"completions_{step:05d}.parquet"
        )
    view = only(tmp_path)
    assert len(view.steps) == 40
    assert view.value("model.lora") == {"r": 8, "alpha": 16}
    assert view.rollout_steps == (10, 20)
    rollouts = view.read_rollouts(20)
    assert rollouts.schema.equals(ROLLOUT_SCHEMA)
    assert (rollouts.num_rows, len(set(rollouts["group"].to_pylist()))) == (16, 4)
    first = rollouts.slice(0, 1).to_pylist()[0]
    assert [m["role"] for m in first["messages"]] == ["user", "assistant"]
    assert {part["name"]: part["value"] for part in first["parts"]} == {
        "correct": 1.0,
        "format": 0.5,
    }
    assert (first["reward"], first["ids"]) == (1.5, None)
    assert rollouts["advantages"].to_pylist()[3] == pytest.approx([0.3])
    assert noted(view, "text of their prompt")
    with pytest.raises(RecordError, match="no rollouts of step 30"):
        view.read_rollouts(30)


def test_completions_alone_make_a_curve(tmp_path: Path) -> None:
    for step in (10, 20):
        pq.write_table(
            completions(step).drop(["difficulty"]), tmp_path / f"completions_{step:05d}.parquet"
        )
    view = only(tmp_path)
    assert view.steps.tolist() == [10, 20]
    assert view.metrics["advantage/dead/share"].tolist() == [0.75, 0.75]
    assert view.metrics["reward/mean"][0] == pytest.approx(0.5 + 14 / 16)
    assert only(tmp_path / "completions_00010.parquet").steps.tolist() == [10]
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other_7.parquet")
    for path in (
        tmp_path / "other_7.parquet",
        write(tmp_path / "torn.parquet", b"PAR1 and no more"),
    ):
        with pytest.raises(RecordError, match=r"without columns of prompts|is damaged"):
            read_views(path)


def test_event_files_of_one_folder_are_one_run_and_go_beyond_a_checkpoint(tmp_path: Path) -> None:
    for name, first in (("a/events.out.tfevents.1.x", 1), ("a/events.out.tfevents.2.x", 21)):
        write(tmp_path / name, event_file(prefixed(trl_rows(20, first))))
    write(tmp_path / "b" / "events.out.tfevents.3.x", event_file(prefixed(trl_rows(20))))
    assert [view.steps.tolist() for view in read_views(tmp_path)] == [
        list(range(1, 41)),
        list(range(1, 21)),
    ]
    write(tmp_path / "a" / "checkpoint-20" / "trainer_state.json", state(trl_rows(20)))
    view = only(tmp_path / "a")
    assert (len(view.steps), view.value("learning.steps")) == (40, 500)


def test_our_own_directories_and_their_metrics_alone(make_run: Callable[..., Path]) -> None:
    path = make_run("mine", steps=12)
    view = only(path)
    assert (view.trainer, view.name, len(view.steps)) == ("uptrend", "mine", 12)
    alone = only(path / "metrics.jsonl")
    assert alone.trainer == "uptrend"
    np.testing.assert_array_equal(alone.metrics["reward/mean"], view.metrics["reward/mean"])
    write(path.parent / "broken" / "run.json", "{")
    assert noted(only(path.parent), "Left out: ")
