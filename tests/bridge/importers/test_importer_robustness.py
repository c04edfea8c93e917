"""Logs as they lie about: torn, mixed, restarted, resumed, summed up, repeated, unnumbered, empty."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_logs import event_file, lines, printed, state, trl_rows, wandb_file, write

from uptrend.bridge.importers import read_views
from uptrend.records.errors import RecordError
from uptrend.records.view import RunView

ROWS = trl_rows(30)
REWARDS = np.arange(1, 31) / 100


def only(path: Path) -> RunView:
    views = read_views(path)
    assert len(views) == 1
    return views[0]


def noted(view: RunView, text: str) -> bool:
    return any(text in note for note in view.notes)


TORN: dict[str, tuple[str | bytes, int]] = {
    "json lines": (lines(ROWS)[:-30], 29),
    "json list": (json.dumps(ROWS)[:-30], 29),
    "state": (state(ROWS)[: state(ROWS).index('"step": 30') + 3], 29),
    "console": ("\n".join(printed(ROWS))[:-30], 29),
    "events": (event_file(ROWS)[:-9], 30),
    "wandb": (wandb_file(ROWS, {}, "x")[:-9], 29),
}


@pytest.mark.parametrize(("content", "points"), TORN.values(), ids=TORN.keys())
def test_a_torn_end_costs_the_last_point_at_most(content: str | bytes, points: int, tmp_path: Path) -> None:
    view = only(write(tmp_path / "log", content))
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS[:points], rtol=1e-6)


def test_a_torn_line_is_said(tmp_path: Path) -> None:
    assert noted(only(write(tmp_path / "log", lines(ROWS)[:-30])), "1 line could not be read")


@pytest.mark.parametrize("form", ["jsonl", "console", "csv"])
def test_what_is_not_finite_is_noted_by_step_and_a_null_is_not(form: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in ROWS]
    rows[4] |= {"kl": float("inf"), "entropy": None}
    rows[29] |= {"grad_norm": float("nan"), "kl": float("nan")}
    if form == "csv":
        cells = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        content = "\n".join([",".join(rows[0]), *cells])
    else:
        content = lines(rows) if form == "jsonl" else "\n".join(printed(rows))
    view = only(write(tmp_path / "log", content))
    assert view.nonfinite == {"kl/reference/mean": (5, 30), "gradient/norm/before": (30,)}
    assert np.isnan(view.metrics["kl/reference/mean"][[4, 29]]).all()
    assert np.isnan(view.metrics["learner/entropy/mean"][4])
    assert len(view.steps) == 30


def test_evaluations_go_to_evals_and_not_into_the_curve(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        rows.append(row)
        if row["step"] % 10 == 0:
            rows.append({"eval_loss": 0.0, "eval_reward": row["step"] / 50, "eval_rewards/correct/mean": 0.2,
                         "eval_accuracy": 0.5, "eval_runtime": 9.0, "epoch": 0.1, "step": row["step"]})  # fmt: skip
    view = only(write(tmp_path / "trainer_state.json", state(rows)))
    assert view.steps.tolist() == list(range(1, 31))
    assert not [name for name in (*view.metrics, *view.unknown) if "eval" in name]
    assert [(e["step"], e["reward"], e["accuracy"]) for e in view.evals] == [
        (10, 0.2, 0.5),
        (20, 0.4, 0.5),
        (30, 0.6, 0.5),
    ]
    assert not noted(view, "twice")


def test_a_log_saved_from_a_frame_has_nan_where_a_row_lacks_a_value(tmp_path: Path) -> None:
    names = {key for row in ROWS for key in row} | {"eval_reward"}
    rows = [dict.fromkeys(names, float("nan")) | row for row in ROWS]
    rows.insert(10, dict.fromkeys(names, float("nan")) | {"eval_reward": 0.7, "step": 10})
    view = only(write(tmp_path / "log.json", json.dumps(rows)))
    assert len(view.steps) == 30
    assert not view.nonfinite
    assert view.evals[0]["reward"] == 0.7


@pytest.mark.parametrize("form", ["jsonl", "console", "events"])
def test_concatenated_restarts_are_several_runs(form: str, tmp_path: Path) -> None:
    rows = [*trl_rows(12), *trl_rows(8), *trl_rows(30)]
    content = {"jsonl": lines(rows), "console": "\n".join(printed(rows)), "events": event_file(rows)}[form]
    views = read_views(write(tmp_path / "log", content))
    assert [view.steps.tolist() for view in views] == [list(range(1, n + 1)) for n in (12, 8, 30)]
    np.testing.assert_allclose(views[2].metrics["reward/mean"], REWARDS, rtol=1e-6)
    assert all(noted(view, "3 runs one after the other") for view in views)


def test_without_step_and_epoch_the_schedule_tells_a_restart(tmp_path: Path) -> None:
    keep = ("learning_rate", "reward", "loss")
    rows = [{key: row[key] for key in keep} for row in [*trl_rows(20), *trl_rows(30)]]
    assert [len(view.steps) for view in read_views(write(tmp_path / "log", lines(rows)))] == [20, 30]
    constant = [row | {"learning_rate": 1e-5} for row in rows]
    assert [len(view.steps) for view in read_views(write(tmp_path / "log2", lines(constant)))] == [50]


def test_an_epoch_that_starts_again_splits_only_with_steps_or_schedule(tmp_path: Path) -> None:
    rows = [*trl_rows(20), *trl_rows(20)]
    for at, row in enumerate(rows):
        row["step"] = at + 1
        del row["num_tokens"]
    assert [len(view.steps) for view in read_views(write(tmp_path / "both", lines(rows)))] == [20, 20]
    stages = [row | {"learning_rate": 1e-5} for row in rows]
    assert [len(view.steps) for view in read_views(write(tmp_path / "epoch", lines(stages)))] == [40]


def test_a_resumed_run_counts_its_later_points(tmp_path: Path) -> None:
    again = [row | {"reward": row["reward"] + 5} for row in trl_rows(15, first=11)]
    view = only(write(tmp_path / "log", lines([*trl_rows(20), *again])))
    assert view.steps.tolist() == list(range(1, 26))
    expected = [s / 100 + (5 if s > 10 else 0) for s in range(1, 26)]
    np.testing.assert_allclose(view.metrics["reward/mean"], expected)
    assert noted(view, "resumed")


def test_a_resumed_run_that_ends_sooner_ends_there(tmp_path: Path) -> None:
    view = only(write(tmp_path / "log", lines([*trl_rows(20), *(row | {"kl": 0.5} for row in trl_rows(5, first=11))])))
    assert view.steps.tolist() == list(range(1, 16))
    assert view.metrics["kl/reference/mean"][10:].tolist() == [0.5] * 5


def test_steps_alone_tell_a_restart_even_of_the_same_values(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": s / 100, "loss": 0.1} for _ in range(3) for s in range(1, 11)]
    assert [len(view.steps) for view in read_views(write(tmp_path / "log", lines(rows)))] == [10, 10, 10]


def test_a_final_row_that_sums_up_is_dropped(tmp_path: Path) -> None:
    summary = {"train_runtime": 99.0, "train_loss": 0.1, "total_flos": 0.0, "reward": 0.155, "kl": 9.0, "epoch": 0.3}
    for name, rows in {
        "with a step": [*ROWS, summary | {"step": 30}],
        "without": [*ROWS, summary],
        "few values": [*ROWS, {"step": 30, "reward": 0.155, "loss": 0.5}],
        "no step": [*ROWS, {"reward": 0.155, "mean_loss": 0.5}],
    }.items():
        view = only(write(tmp_path / name, lines(rows)))
        np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS, err_msg=name)
        assert noted(view, "Left out, as"), name
    view = only(write(tmp_path / "console", "\n".join(printed([*ROWS, summary]))))
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS)


def test_values_written_for_every_step_are_kept_once(tmp_path: Path) -> None:
    rows = [row | {"step": 10 * row["step"] + extra} for row in ROWS for extra in range(10)]
    for row in rows:
        row["epoch"] = row["step"] / 300
    view = only(write(tmp_path / "log", lines(rows)))
    assert view.steps.tolist() == [10 * s for s in range(1, 31)]
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS)
    assert noted(view, "written 10 times")


def test_a_constant_or_coarse_curve_is_not_taken_for_repeats(tmp_path: Path) -> None:
    constant = [{"step": s, "reward": 1.0, "loss": 0.0} for s in range(1, 61)]
    assert len(only(write(tmp_path / "constant", lines(constant))).steps) == 60
    coarse = [{"step": s, "reward": float(int(s * s * 7.3) % 3 == 0)} for s in range(1, 101)]
    assert len(only(write(tmp_path / "coarse", lines(coarse))).steps) == 100


def test_rows_without_a_step_are_numbered(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "step"} for row in ROWS]
    view = only(write(tmp_path / "log", lines(rows)))
    assert view.steps.tolist() == list(range(1, 31))
    assert noted(view, "no step")


def test_runs_told_apart_by_a_column(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "step": s, "reward": s * sign} for s in range(1, 11) for arm, sign in (("up", 1), ("down", -1))
    ]
    views = read_views(write(tmp_path / "log", lines(rows)))
    assert [(view.name, view.metrics["reward/mean"][-1]) for view in views] == [("up", 10), ("down", -10)]


def test_objects_of_other_shapes(tmp_path: Path) -> None:
    by_step = {str(row["step"]): {"reward": row["reward"], "loss": 0.1} for row in ROWS}
    np.testing.assert_allclose(
        only(write(tmp_path / "a.json", json.dumps(by_step, indent=1))).metrics["reward/mean"], REWARDS
    )
    two = read_views(write(tmp_path / "b.json", json.dumps({"baseline": trl_rows(9), "treated": ROWS})))
    assert [(view.name, len(view.steps)) for view in two] == [("baseline", 9), ("treated", 30)]
    beside = {"train": ROWS, "eval": [{"step": 10, "accuracy": 0.5}, {"step": 30, "accuracy": 0.75}]}
    view = only(write(tmp_path / "c.json", json.dumps(beside)))
    assert [(entry["step"], entry["accuracy"]) for entry in view.evals] == [(10, 0.5), (30, 0.75)]
    assert len(view.steps) == 30


def test_rows_printed_twice_and_lines_of_ones_own(tmp_path: Path) -> None:
    twice = "\n".join(line for line in printed(ROWS) for _ in range(2))
    view = only(write(tmp_path / "twice.log", twice))
    assert view.steps.tolist() == list(range(1, 31))
    for form in (
        "Step {s}: reward={r:.2f}, loss=0.1",
        "[step {s}/30] reward {r:.2f} loss 0.1",
        "iter {s} | reward: {r:.2f} | kl 0.1",
    ):
        text = "\n".join(form.format(s=s, r=s / 100) for s in range(1, 31))
        own = only(write(tmp_path / "own.log", text))
        assert own.steps.tolist() == list(range(1, 31))
        np.testing.assert_allclose(own.metrics["reward/mean"], REWARDS)


def test_a_frames_index_is_no_column(tmp_path: Path) -> None:
    view = only(write(tmp_path / "log.csv", ",step,reward\n" + "".join(f"{s},{s + 5},0.5\n" for s in range(9))))
    assert view.steps.tolist() == list(range(5, 14))
    assert not view.unknown


def test_event_files_beyond_the_last_checkpoint_are_taken(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-20" / "trainer_state.json", state(trl_rows(20)))
    write(tmp_path / "runs" / "x" / "events.out.tfevents.1.x", event_file(ROWS))
    view = only(tmp_path)
    assert len(view.steps) == 30
    assert view.value("learning.steps") == 500


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    np.testing.assert_allclose(
        only(write(tmp_path / "log", lines(ROWS).encode(encoding))).metrics["reward/mean"], REWARDS
    )


def test_gzip_whole_and_torn(tmp_path: Path) -> None:
    data = gzip.compress(lines(ROWS).encode())
    assert len(only(write(tmp_path / "log.gz", data)).steps) == 30
    assert 0 < len(only(write(tmp_path / "torn.gz", data[: len(data) * 3 // 4])).steps) < 30


def test_settings_beside_a_log_are_used_and_alone_are_no_curve(tmp_path: Path) -> None:
    settings = {"num_generations": 8, "max_completion_length": 768, "max_steps": 400, "model_name": "m"}
    beside = write(tmp_path / "summary.json", json.dumps(settings))
    view = only(write(tmp_path / "log.csv", "step,reward\n" + "".join(f"{s},{s / 2}\n" for s in range(9))))
    assert view.config["sampling"] == {"size": 8, "max_tokens": 768}
    assert view.value("learning.steps") == 400
    assert len(only(beside).steps) == 0
    assert only(beside).value("sampling.size") == 8
    assert len(only(tmp_path).steps) == 9


NOTHING: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "binary": (b"\x80\x04\x95\x00\x00\x00" + bytes(99), "binary file"),
    "prose": (b"Dear diary,\ntoday nothing was learned.\n" * 20, "no metrics"),
    "other json": (b'{"architectures": ["Qwen2"], "hidden": 64}', "holds no rows"),
    "bad gzip": (b"\x1f\x8b" + b"nonsense" * 9, "can't be unzipped"),
}


@pytest.mark.parametrize(("content", "said"), NOTHING.values(), ids=NOTHING.keys())
def test_what_cannot_be_read_is_said_in_a_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=said):
        read_views(write(tmp_path / "file", content))


WHOLE: dict[str, bytes] = {
    "json lines": lines(ROWS).encode(),
    "state": state(ROWS).encode(),
    "console": "\n".join(printed(ROWS)).encode(),
    "events": event_file(ROWS),
    "wandb": wandb_file(ROWS, {"lr": 1.0}, "x"),
}


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE.keys())
def test_damage_of_any_kind_gives_runs_or_a_sentence(content: bytes, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        data = bytearray(content)
        for at in random.integers(len(data), size=random.integers(0, 20)):
            data[at] = random.integers(256)
        first, last = sorted(random.integers(len(data), size=2))
        try:
            views = read_views(write(tmp_path / "damaged", bytes(data[first : last + 1])))
        except RecordError:
            continue
        for view in views:
            assert bool((np.diff(view.steps) > 0).all())
            assert all(len(values) == len(view.steps) for values in view.metrics.values())


def test_a_folder_with_nothing_known_and_a_path_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "hello")
    with pytest.raises(RecordError, match="nothing that is known"):
        read_views(tmp_path)
    with pytest.raises(RecordError, match="does not exist"):
        read_views(tmp_path / "gone")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    import pickle

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "opened",))

    write(tmp_path / "training_args.bin", pickle.dumps(Trap()))
    write(tmp_path / "trainer_state.json", state(ROWS))
    read_views(tmp_path)
    with pytest.raises(RecordError):
        read_views(tmp_path / "training_args.bin")
    assert not (tmp_path / "opened").exists()


def test_ten_thousand_steps_of_sixty_columns_take_little_more_than_their_json(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((100, 60))
    names = ["reward", "loss", "kl", *(f"column/{i}" for i in range(57))]
    bodies = [json.dumps(dict(zip(names, values, strict=True)))[1:] for values in noise.tolist()]
    text = "".join(f'{{"step": {at}, {bodies[at % 100]}\n' for at in range(10_000))
    path = write(tmp_path / "log.jsonl", text)
    start = time.process_time()
    view = only(path)
    taken = time.process_time() - start
    start = time.process_time()
    parsed = [json.loads(line) for line in text.splitlines()]
    alone = time.process_time() - start
    assert len(view.steps) == len(parsed) == 10_000
    assert len(view.unknown) == 57
    assert taken < 3 * alone + 1, f"{taken:.2f} s of processor time, and {alone:.2f} s for Python's parser alone"
