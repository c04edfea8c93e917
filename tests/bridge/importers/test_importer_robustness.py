"""Logs as they are found: torn, mixed, restarted, resumed, summarized, repeated, unnumbered,
empty.
"""

import contextlib
import gzip
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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

from uptrend.bridge.importers import read_views, readers
from uptrend.records.errors import RecordError

ROWS = trl_rows(30)
REWARDS = np.arange(1, 31) / 100
Rows = list[dict[str, Any]]

TORN: dict[str, tuple[str | bytes, int]] = {
    "json lines": (lines(ROWS)[:-30], 29),
    "json list": (json.dumps(ROWS)[:-30], 29),
    "state": (state(ROWS)[: state(ROWS).index('"step": 30') + 3], 29),
    "console": (console(ROWS)[:-30], 29),
    "events": (event_file(ROWS)[:-9], 30),
    "wandb": (wandb_file(ROWS, {}, "x")[:-9], 29),
    "csv": (table(ROWS)[:-30], 29),
    "gzip": (gzip.compress(lines(ROWS).encode()), 30),
    "a byte-order mark": (lines(ROWS).encode("utf-8-sig"), 30),
    "utf-16": (lines(ROWS).encode("utf-16"), 30),
}


@pytest.mark.parametrize(("content", "points"), TORN.values(), ids=TORN.keys())
def test_a_torn_end_costs_the_last_point_at_most(
    content: str | bytes, points: int, tmp_path: Path
) -> None:
    view = only(write(tmp_path / "log", content))
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS[:points], rtol=1e-6)
    assert noted(view, "1 line could not be read") == (content == lines(ROWS)[:-30])


def test_a_torn_archive_gives_its_beginning(tmp_path: Path) -> None:
    data = gzip.compress(lines(ROWS).encode())
    assert 0 < len(only(write(tmp_path / "torn.gz", data[: len(data) * 3 // 4])).steps) < 30


@pytest.mark.parametrize("form", [lines, console, table])
def test_what_is_not_finite_is_noted_by_step_and_a_null_is_not(
    form: Callable[[Rows], str], tmp_path: Path
) -> None:
    rows: Rows = [dict(row) for row in ROWS]
    rows[4] |= {"kl": float("inf"), "entropy": None}
    rows[29] |= {"grad_norm": float("nan"), "kl": float("nan")}
    view = only(write(tmp_path / "log", form(rows)))
    assert len(view.steps) == 30
    assert view.nonfinite == {"kl/reference/mean": (5, 30), "gradient/norm/before": (30,)}
    assert np.isnan(
        [*view.metrics["kl/reference/mean"][[4, 29]], view.metrics["learner/entropy/mean"][4]]
    ).all()


def test_evaluations_go_to_evals_and_not_into_the_curve(tmp_path: Path) -> None:
    held_out = {s: {"step": s, "eval_reward": s / 50, "eval_rewards/correct/mean": 0.2, "eval_accuracy": 0.5,
                    "eval_loss": 0.0, "eval_runtime": 9.0, "epoch": 0.1} for s in (10, 20, 30)}  # fmt: skip
    rows = [row for point in ROWS for row in (point, held_out.get(point["step"])) if row]
    # A log saved from a data frame has NaN where a row lacks a value.
    missing = dict.fromkeys([*ROWS[0], *held_out[10]], float("nan"))
    for content in (state(rows), json.dumps([missing | row for row in rows])):
        view = only(write(tmp_path / "trainer_state.json", content))
        assert (view.steps.tolist(), view.nonfinite) == (list(range(1, 31)), {})
        assert not [name for name in (*view.metrics, *view.unknown) if "eval" in name]
        assert [(e["step"], e["reward"], e["accuracy"]) for e in view.evals] == [
            (s, s / 50, 0.5) for s in held_out
        ]
        assert not noted(view, "twice")


def without(rows: Rows, *names: str, **changed: Any) -> Rows:
    return [
        {key: value for key, value in row.items() if key not in names} | changed for row in rows
    ]


def renumbered(rows: Rows) -> Rows:
    return [row | {"step": at} for at, row in enumerate(rows, 1)]


SUMMARY = {
    "train_runtime": 99.0,
    "train_loss": 0.1,
    "total_flos": 0.0,
    "reward": 0.155,
    "kl": 9.0,
    "epoch": 0.3,
}
RESTARTS = [*trl_rows(12), *trl_rows(8), *trl_rows(30)]
STAGES = without([*trl_rows(20), *trl_rows(20)], "num_tokens")
UNNUMBERED = without(
    [*trl_rows(20), *trl_rows(30)], *(set(ROWS[0]) - {"learning_rate", "reward", "loss"})
)
REPEATED = [
    row | {"step": 10 * row["step"] + at, "epoch": row["step"] / 30}
    for row in ROWS
    for at in range(10)
]
COARSE: Rows = [{"step": s, "reward": float(int(s * s * 7.3) % 3 == 0)} for s in range(1, 101)]
SHORT: Rows = [{"step": s, "reward": s / 100, "loss": 0.1} for s in range(1, 11)]
CASES: dict[str, tuple[str | bytes | Rows, list[int], str]] = {
    "restarts": (RESTARTS, [12, 8, 30], "3 runs one after the other"),
    "restarts on a console": (console(RESTARTS), [12, 8, 30], "3 runs one after the other"),
    "restarts in events": (event_file(RESTARTS), [12, 8, 30], "3 runs one after the other"),
    "a schedule that repeats": (UNNUMBERED, [20, 30], "no step"),
    "a constant schedule": (without(UNNUMBERED, learning_rate=1e-5), [50], "no step"),
    "epoch and schedule start again": (renumbered(STAGES), [20, 20], "2 runs"),
    "only the epoch starts again": (renumbered(without(STAGES, learning_rate=1e-5)), [40], ""),
    "steps alone start again": ([*SHORT, *SHORT, *SHORT], [10, 10, 10], "3 runs"),
    "a summary with a step": ([*ROWS, SUMMARY | {"step": 30}], [30], "Left out 1 row"),
    "a summary without": ([*ROWS, SUMMARY], [30], "Left out 1 row"),
    "a last row of few values": ([*ROWS, {"step": 30, "reward": 0.155, "loss": 0.5}], [30], "Left out 1 row"),
    "a last row without a step": ([*ROWS, {"reward": 0.155, "mean_loss": 0.5}], [30], "Left out 1 row"),
    "a summary on a console": (console([*ROWS, SUMMARY]), [30], ""),
    "values written for every step": (REPEATED, [30], "written 10 times"),
    "rows printed twice": (console([row for row in ROWS for _ in range(2)]), [30], "written 2 times"),
    "a point written twice": ([*ROWS, ROWS[-1] | {"reward": 0.3, "kl": 1.0}], [30], "Written twice: 1 step"),
    "a constant curve": (without(renumbered(SHORT * 6), reward=1.0), [60], ""),
    "a coarse curve": (COARSE, [100], ""),
    "no step": (without(ROWS, "step"), [30], "no step"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "points", "note"), CASES.values(), ids=CASES.keys())
def test_rows_become_runs(
    content: str | bytes | Rows, points: list[int], note: str, tmp_path: Path
) -> None:
    views = read_views(
        write(tmp_path / "log", lines(content) if isinstance(content, list) else content)
    )
    stride = 10 if note == "written 10 times" else 1
    assert [len(view.steps) for view in views] == points
    for view in views:
        assert set(np.diff(view.steps).tolist()) == {stride}
        assert noted(view, note)
        if len(view.steps) <= 30:
            np.testing.assert_allclose(
                view.metrics["reward/mean"], REWARDS[: len(view.steps)], rtol=1e-6
            )


@pytest.mark.parametrize("names", [("up", "down"), (1, 0), (1.0, math.inf), (1.0, math.nan)])
def test_runs_told_apart_by_a_column(names: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [
        {
            "run_id": f"{name} {s}",
            "seed": name,
            "step": s,
            "reward": s * sign,
        }  # an id per row names no run
        for s in range(1, 11)
        for name, sign in zip(names, (1, -1), strict=True)
    ]
    views = read_views(write(tmp_path / "log", lines(rows)))
    assert [view.metrics["reward/mean"][-1] for view in views] == [10, -10]
    assert views[0].name == str(names[0]).removesuffix(".0")


class Trap:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


NOTHING: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "binary": (b"\x80\x04\x95\x00\x00\x00" + bytes(99), "binary file"),
    "a pickle": (pickle.dumps(Trap()), "binary file"),
    "prose": (b"Dear diary,\ntoday nothing was learned.\n" * 20, "no metrics"),
    "other json": (b'{"architectures": ["Qwen2"], "hidden": 64}', "holds no rows"),
    "a number of numbers": (b"[1, 2,\n3]", "holds no rows"),
    "bad gzip": (b"\x1f\x8b" + b"nonsense" * 9, "can't be unzipped"),
}


@pytest.mark.parametrize(("content", "message"), NOTHING.values(), ids=NOTHING.keys())
def test_what_cannot_be_read_is_an_error(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match=message):
        read_views(write(tmp_path / "training_args.bin", content))
    with pytest.raises(RecordError, match="nothing that is known"):
        read_views(tmp_path)
    with pytest.raises(RecordError, match="does not exist"):
        read_views(tmp_path / "gone")
    write(tmp_path / "trainer_state.json", state(ROWS))
    assert len(only(tmp_path).steps) == 30
    assert not (tmp_path / "unpickled").exists()


WHOLE: dict[str, bytes] = {
    "json lines": lines(ROWS).encode(),
    "state": state(ROWS).encode(),
    "console": console(ROWS).encode(),
    "events": event_file(ROWS),
    "wandb": wandb_file(ROWS, {"lr": 1.0}, "x"),
    "csv": table(ROWS).encode(),
}


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE.keys())
def test_damage_of_any_kind_gives_runs_or_an_error(content: bytes, tmp_path: Path) -> None:
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


def test_reading_loads_nothing_heavy(tmp_path: Path) -> None:
    for name, content in WHOLE.items():
        write(tmp_path / name, content)
    code = (
        "import sys; from pathlib import Path; from uptrend.bridge.importers import read_views\n"
        "for path in Path(sys.argv[1]).iterdir(): read_views(path)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "uptrend" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "scipy", "tensorboard", "wandb", "pandas"})


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE.keys())
@pytest.mark.parametrize("deep", [b"[" * 50_000, b'{"a":' * 50_000])
def test_json_nested_without_end_is_no_traceback(
    content: bytes, deep: bytes, tmp_path: Path
) -> None:
    for data in (
        deep,
        deep + content,
        content[: len(content) // 2] + deep + content[len(content) // 2 :],
    ):
        for name in ("damaged", "damaged.json"):
            with contextlib.suppress(RecordError):
                read_views(write(tmp_path / name, data))


@pytest.mark.parametrize("form", [lines, table, console, state])
def test_of_a_very_long_log_every_nth_point_is_read(
    form: Callable[[Rows], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_ROWS_PER_KIND", 100)
    rows = [{"step": i, "reward": 0.001 * i, "loss": 0.5, "kl": 0.1} for i in range(1, 951)]
    view = only(write(tmp_path / "long", form(rows)))
    assert 90 <= len(view.steps) <= 100
    np.testing.assert_allclose(np.diff(view.steps), 10)
    # A console without steps is numbered to within the stride.
    np.testing.assert_allclose(view.curve("reward/mean")[1], 0.001 * view.steps, atol=0.01)


@pytest.mark.parametrize(
    ("bad", "points"),
    [
        ('{"step": 15, "reward": ' + "9" * 100_000 + "}", 30),
        ('{"step": 15, "deep": ' + "[" * 300_000 + "]" * 300_000 + "}", 29),
        ('{"step": 15, "deep": ' + "[" * 400 + "]" * 400 + "}", 29),
        ('{"step": 15, "\\ud800": 1}', 29),
        ('{"reward": 0.5}', 29),
        ("[1, 2]", 29),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_bad_line_costs_one_point(bad: str, points: int, tmp_path: Path) -> None:
    rows = lines(ROWS).splitlines()
    view = only(write(tmp_path / "log.jsonl", "\n".join([*rows[:14], bad, *rows[15:], ""])))
    assert (len(view.steps), int(view.steps[-1])) == (points, 30)
    np.testing.assert_allclose(
        np.delete(view.metrics["reward/mean"], 14 if points == 30 else []), np.delete(REWARDS, 14)
    )


def test_a_number_of_any_length_spoils_no_state(tmp_path: Path) -> None:
    text = state(ROWS).replace('"step": 15', '"long": ' + "9" * 100_000 + ', "step": 15')
    assert len(only(write(tmp_path / "trainer_state.json", text)).steps) == 30


def test_a_damaged_file_hides_no_other(tmp_path: Path) -> None:
    events, runs, trained = tmp_path / "events", tmp_path / "wandb", tmp_path / "trained"
    write(events / "a" / "events.out.tfevents.1", event_file(ROWS))
    write(events / "b" / "events.out.tfevents.2", b"\0" * 100)
    write(runs / "offline-run-1" / "run-1.wandb", wandb_file(ROWS, {}, "x"))
    write(runs / "offline-run-2" / "run-2.wandb", b"\0" * 100)
    write(trained / "checkpoint-20" / "trainer_state.json", state(ROWS[:20]))
    write(
        trained / "checkpoint-30" / "trainer_state.json",
        b'{"global_step": 30, "log_history": "none"}',
    )
    for folder, count, broken in (
        (events, 30, "tfevents.2"),
        (runs, 30, "run-2.wandb"),
        (trained, 20, "checkpoint-30"),
    ):
        view = only(folder)
        assert len(view.steps) == count
        assert any("Left out: " in note and broken in note for note in view.notes)


def test_what_is_no_file_beside_a_log_hides_no_log(tmp_path: Path) -> None:
    for name in ("settings.json", "trainer_state.json", "README.md"):
        (tmp_path / name).mkdir()
    write(tmp_path / "log.jsonl", lines(ROWS))
    view = only(tmp_path)
    assert len(view.steps) == 30
    assert noted(view, "trainer_state.json could not be read")
    assert not noted(view, "Left out: Left out:")


@pytest.mark.parametrize("flood", ["\n" * 300_000, "config" + " " * 300_000 + "x\n"])
def test_empty_lines_and_spaces_before_metrics_are_searched_once(
    flood: str, tmp_path: Path
) -> None:
    # Searched again from each of them, they take minutes.
    assert len(only(write(tmp_path / "train.log", flood + console(ROWS))).steps) == 30
