"""Rollouts that other trainers saved: what their own code wrote, joined with scalars, and hostile."""

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_logs import lines, noted, only, state, trl_rows, write

import saved_rollouts
from saved_rollouts import WRITERS, attempts
from uptrend.bridge.importers import read_views, saved
from uptrend.records.errors import RecordError
from uptrend.records.schema import ROLLOUT_SCHEMA
from uptrend.records.table import RolloutTable
from uptrend.records.view import RunView

FORMATS = Path(__file__).parents[2] / "data" / "formats"
# Fixtures that the trainers' own code wrote, by our writer after their sources.
OWN = {
    "verl": "saved-verl", "verl with uid": "saved-verl-uid", "prime-rl": "saved-prime-rl",
    "verifiers": "saved-verifiers", "art": "saved-art", "art lines": "saved-art-lines",
    "tinker": "saved-tinker", "skyrl": "saved-skyrl",
}  # fmt: skip
by_format = pytest.mark.parametrize("name", WRITERS)
Write = Callable[[Path], Any]


def facts(table: pa.Table) -> list[dict[str, Any]]:
    """Return rollouts without what is random or named by the file."""
    rows = []
    for row in table.drop(["run"]).to_pylist():
        rows.append({key: value for key, value in row.items() if value not in (None, [])})
    return rows


@pytest.mark.parametrize("name", OWN)
def test_their_own_files_read_as_ours_after_their_sources(name: str, tmp_path: Path) -> None:
    theirs = only(FORMATS / OWN[name] / "raw")
    WRITERS[name](tmp_path / "run", attempts(steps=2, groups=2))
    ours = only(tmp_path / "run")
    assert theirs.trainer == ours.trainer
    assert theirs.rollout_steps == ours.rollout_steps
    for step in theirs.rollout_steps:
        rows = facts(theirs.read_rollouts(step))
        own_rows = facts(ours.read_rollouts(step))
        for row, own_row in islice(zip(rows, own_rows, strict=False), 4):
            # The exports beside prime-rl's episodes are ours alone.
            own_row = {key: own_row[key] for key in own_row if key in row}
            assert row.keys() == own_row.keys()
            for column, value in row.items():
                # verifiers' own code rounds by itself.
                if column in ("sampler", "advantages"):
                    known = [item for item in value if item is not None]
                    own_known = [item for item in own_row[column] if item is not None]
                    assert known == pytest.approx(own_known, abs=1e-3)
                else:
                    assert value == own_row[column]


def test_trls_own_folder_and_trackios_database_are_one_run(tmp_path: Path) -> None:
    folder = shutil.copytree(FORMATS / "saved-trl" / "raw", tmp_path / "run")
    view = only(folder)
    assert (view.trainer, len(view.steps), view.rollout_steps) == ("trl", 4, (1, 2, 3, 4))
    table = RolloutTable(2, view.read_rollouts(2))
    assert [len(group.rollout_by_index) for group in table.groups] == [4] * 4
    assert table.question_n[0] == "Calculate: 1 + 3 = "
    assert table.values("answer")[0] == "4"
    assert np.isfinite(table.advantage_n).all()
    logged = view.curve("reward/mean")[1]
    assert logged.tolist() == pytest.approx([table_mean(view, step) for step in view.rollout_steps])

    shutil.copy(FORMATS / "saved-trackio" / "raw" / "sums.db", folder)
    both = only(folder)
    assert len(both.steps) == 4
    assert noted(both, "is another log of this run")
    (tmp_path / "alone").mkdir()
    alone = only(
        Path(shutil.copy(FORMATS / "saved-trackio" / "raw" / "sums.db", tmp_path / "alone"))
    )
    assert alone.name == "one"
    assert alone.rollout_steps == (1, 2, 3, 4)
    assert table_mean(alone, 3) == pytest.approx(logged[2])
    assert os.listdir(tmp_path / "alone") == ["sums.db"]


def table_mean(view: RunView, step: int) -> float:
    return float(np.mean(view.read_rollouts(step)["reward"].to_pylist()))


@by_format
def test_every_format_gives_what_it_has(name: str, tmp_path: Path) -> None:
    made = attempts(steps=3, groups=2)
    WRITERS[name](tmp_path / "run", made)
    view = only(tmp_path / "run")
    step = view.rollout_steps[-1]
    rollouts = view.read_rollouts(step)
    assert rollouts.schema.equals(ROLLOUT_SCHEMA)
    expected = [a for a in made if a.step == step] if name != "verifiers" else made
    table = RolloutTable(step, rollouts)
    assert table.reward_n.tolist() == [a.reward for a in expected]
    assert len(table.groups) == 2 * (3 if name == "verifiers" else 1)
    assert all(len(group.rollout_by_index) == saved_rollouts.SIZE for group in table.groups)
    if name == "tinker":
        assert table.model_length_n.tolist() == [len(a.reply_ids) for a in expected]
        assert noted(view, "texts (num_groups_to_log")
        return
    assert table.response_n == [a.reply for a in expected]
    assert table.values("answer") == [a.gold for a in expected]
    if name in ("prime-rl", "verifiers", "slime"):
        assert table.model_length_n.tolist() == [len(a.reply_ids) for a in expected]
        sampler = table.read_tokens("sampler")[table.model_t]
        assert sampler == pytest.approx([x for a in expected for x in a.sampler], abs=1e-3)
    if name == "prime-rl":
        learner = table.read_tokens("learner")[table.model_t]
        assert learner == pytest.approx([x for a in expected for x in a.learner], abs=1e-3)
        assert table.advantage_n == pytest.approx([a.advantage for a in expected])
    else:
        assert noted(view, "the learner's log-probabilities")


def test_rollouts_join_the_log_beside_them_and_fill_what_it_lacks(tmp_path: Path) -> None:
    made = attempts()
    saved_rollouts.verl(tmp_path / "run", made)
    console = ""
    for step, members in saved_rollouts.by_step(made):
        score = np.mean([a.reward for a in members])
        console += f"step:{step} - critic/score/mean:{score:.4f} - actor/grad_norm:0.{step}\n"
    write(tmp_path / "run" / "train.log", console)
    write(tmp_path / "run" / "other" / "log.jsonl", lines(trl_rows(9)))
    views = read_views(tmp_path / "run")
    assert [len(view.steps) for view in views] == [8, 9]
    view = views[0]
    assert view.source.endswith("train.log")
    assert noted(view, "their rewards are the same")
    assert view.rollout_steps == tuple(range(1, 9))
    assert view.has("gradient/norm/before", "advantage/dead/share")
    assert views[1].rollout_steps == ()


def test_rollouts_of_another_run_stay_apart(tmp_path: Path) -> None:
    saved_rollouts.verl(tmp_path / "a", attempts())
    write(tmp_path / "trainer_state.json", state(trl_rows(600, first=500)))
    assert {len(view.steps) for view in read_views(tmp_path)} == {8, 600}


def test_evaluations_are_no_training(tmp_path: Path) -> None:
    saved_rollouts.verl(tmp_path, attempts())
    (tmp_path / "rollouts").rename(tmp_path / "train_rollouts")
    saved_rollouts.verl(tmp_path, attempts(steps=2))
    (tmp_path / "rollouts").rename(tmp_path / "val")
    view = only(tmp_path)
    assert view.rollout_steps == tuple(range(1, 9))
    assert [entry["step"] for entry in view.evals] == [1, 2]
    assert view.read_heldout(2).num_rows == 64


def torn_line(folder: Path) -> None:
    path = folder / "rollouts" / "2.jsonl"
    path.write_text(path.read_text()[:-40])


def wrong_types(folder: Path) -> None:
    rows: list[Any] = [
        {"input": 5, "output": {"a": 1}, "gts": [[]], "score": "many", "step": 2},
        {"input": None, "output": None, "gts": {"target": 3}, "score": float("inf"), "step": [2]},
        {"input": "q", "output": ["x", None, 7], "gts": "1", "score": 1.0, "step": 2, "uid": {}},
        {"input": "q", "output": "x", "score": 10**400, "step": 2},
        [1], "text", None,
    ]  # fmt: skip
    path = folder / "rollouts" / "2.jsonl"
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))


def huge_line(folder: Path) -> None:
    path = folder / "rollouts" / "2.jsonl"
    row = {"input": "x" * (saved.MAX_LINE_BYTES + 9), "output": "", "score": 1.0, "step": 2}
    path.write_text(path.read_text() + json.dumps(row) + "\n")


def torn_parquet(folder: Path) -> None:
    (folder / "rollouts" / "9.parquet").write_bytes(b"PAR1" + bytes(900))


def binary(folder: Path) -> None:
    (folder / "rollouts" / "9.jsonl").write_bytes(bytes(range(256)) * 99)


def deep(folder: Path) -> None:
    (folder / "rollouts" / "9.jsonl").write_text('{"input": ' + "[" * 5000 + "\n")


def older_version(folder: Path) -> None:
    rows = [{"input": f"q{n // 4}", "output": "3", "score": n % 2, "step": 9} for n in range(8)]
    write(folder / "rollouts" / "9.jsonl", lines(rows))


def link_out(folder: Path) -> None:
    outside = folder.parent / "outside.jsonl"
    write(outside, lines([{"input": "secret", "output": "b", "score": 1.0, "step": 9}]))
    (folder / "rollouts" / "9.jsonl").symlink_to(outside)


DAMAGE: dict[str, tuple[Write, str, int]] = {
    "torn line": (torn_line, "1 record could not be read", 8),
    "wrong types": (wrong_types, "could not be read", 8),
    "huge line": (huge_line, "2 records could not be read", 8),
    "torn Parquet": (torn_parquet, "", 8),
    "binary": (binary, "", 8),
    "deep": (deep, "", 8),
    "older version": (older_version, "", 9),
    "link out": (link_out, "is a link to a place outside", 8),
}


@pytest.mark.parametrize(("damage", "note", "steps"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_hides_no_other(
    damage: Write, note: str, steps: int, tmp_path: Path
) -> None:
    saved_rollouts.verl(tmp_path / "run", attempts())
    damage(tmp_path / "run")
    view = only(tmp_path / "run")
    assert view.rollout_steps == tuple(range(1, steps + 1))
    assert view.read_rollouts(1).num_rows == 64
    assert noted(view, note)
    assert "secret" not in str(
        [view.read_rollouts(step).to_pylist() for step in view.rollout_steps]
    )


def test_a_large_file_is_read_in_parts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"step": n // 16, "prompt": f"q{n // 4}", "response": "x" * 40, "reward": n % 2}
        for n in range(20_000)
    ]
    path = saved_rollouts.write_lines(tmp_path / "rollouts.jsonl", rows)
    whole = only(path)
    assert len(whole.rollout_steps) == 1250
    monkeypatch.setattr(saved, "MAX_INDEXED_BYTES", 160_000)
    monkeypatch.setattr(saved, "MAX_CURVE_BYTES", 40_000)
    part = only(path)
    assert noted(part, "16 parts of it")
    assert noted(part, "the curve made from them has one step in")
    assert part.rollout_steps[0] == 0
    assert part.rollout_steps[-1] > 1200
    assert 16 <= len(part.steps) < len(part.rollout_steps) < 130
    # No group is cut where a part begins or ends.
    assert {part.read_rollouts(step).num_rows for step in part.rollout_steps} == {16}
    monkeypatch.setattr(saved, "MAX_STEP_ROLLOUTS", 10)
    few = only(path)
    assert few.read_rollouts(0).num_rows == 10
    assert noted(few, "the first 10 were read")


def test_a_table_of_many_rows_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_rollouts.trl(tmp_path, attempts(steps=2))
    monkeypatch.setattr(saved, "MAX_STEP_ROLLOUTS", 20)
    view = only(tmp_path)
    assert view.read_rollouts(2).num_rows == 20
    assert noted(view, "Step 2 has more than")


def test_pickles_are_named_and_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "opened"),)

    saved_rollouts.verl(tmp_path / "run", attempts())
    write(tmp_path / "run" / "rollout_data" / "1.pt", pickle.dumps(Trap()))
    view = only(tmp_path / "run")
    assert noted(view, "1.pt were not read: opening a pickle")
    with pytest.raises(RecordError, match="opening a pickle runs whatever code is in it"):
        read_views(tmp_path / "run" / "rollout_data" / "1.pt")
    with pytest.raises(RecordError, match="opening a pickle"):
        read_views(tmp_path / "run" / "rollout_data")
    assert not (tmp_path / "opened").exists()


def test_a_hostile_database_is_a_sentence(tmp_path: Path) -> None:
    good = (FORMATS / "saved-trackio" / "raw" / "sums.db").read_bytes()
    for number, data in enumerate((good[:5000], good[:100] + bytes(20_000), good[:16] + bytes(99))):
        with pytest.raises(RecordError):
            read_views(write(tmp_path / f"{number}.db", data))


def test_parts_are_those_that_add_up(tmp_path: Path) -> None:
    def rows(extra: Callable[[int], dict[str, float]]) -> str:
        return lines(
            [
                {"input": f"q{n // 4}", "output": "a", "gts": "1", "score": n % 2 + 0.5, "step": 1, **extra(n)}
                for n in range(8)
            ]
        )  # fmt: skip

    write(tmp_path / "a" / "1.jsonl", rows(lambda n: {"right": n % 2, "form": 0.5}))
    write(tmp_path / "b" / "1.jsonl", rows(lambda n: {"right": n % 2, "length": 30.0 + n}))
    parts = only(tmp_path / "a").read_rollouts(1)["parts"].to_pylist()[1]
    assert {part["name"]: part["value"] for part in parts} == {"right": 1.0, "form": 0.5}
    assert only(tmp_path / "b").read_rollouts(1)["parts"].to_pylist() == [[]] * 8


def test_a_table_of_a_home_made_loop_is_read(tmp_path: Path) -> None:
    made = attempts(steps=3)
    table = pa.table({
        "step": [a.step for a in made], "prompt": [a.question for a in made],
        "response": [a.reply for a in made], "reward": [a.reward for a in made],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "all.parquet")
    view = only(tmp_path)
    assert view.rollout_steps == (1, 2, 3)
    assert view.read_rollouts(3).num_rows == 64


def rows_of(step: Any, count: int = 8) -> list[dict[str, Any]]:
    """Return rollouts of a home-made loop: groups of 4, half of them right."""
    rows = []
    for n in range(count):
        row = {"prompt": f"q{n // 4}", "response": f"a{n}", "reward": float(n % 2)}
        rows.append(row if step is None else {**row, "step": step})
    return rows


def test_a_reward_that_is_not_finite_spoils_no_other(tmp_path: Path) -> None:
    odd = '{"prompt": "q0", "response": "x", "reward": [0.5, NaN], "step": 1}\n'
    write(tmp_path / "own" / "1.jsonl", lines(rows_of(1)) + odd)
    turns = '[{"role": "user", "content": "q"}, {"message": {"role": "assistant"}}]'
    group = "".join(
        f'{{"trajectories": [{{"messages_and_choices": {turns}, "reward": {reward}}}]}}\n'
        for reward in ("NaN", "1.0", "0.0", "-Infinity")
    )
    write(tmp_path / "art" / "trajectories" / "train" / "0001.jsonl", group)
    for folder in ("own", "art"):
        view = only(tmp_path / folder)
        assert view.curve("reward/mean")[1].tolist() == [0.5]
        assert noted(view, "not finite, taken as missing")


def test_a_record_that_no_column_holds_hides_no_other(tmp_path: Path) -> None:
    half = {"prompt": "q0", "response": "\ud800", "reward": 1.0, "step": 1}
    view = only(write(tmp_path / "1.jsonl", lines([*rows_of(1), half])))
    assert view.read_rollouts(1).num_rows == 8
    assert noted(view, "1 rollout with damaged values left out")


@pytest.mark.parametrize("as_step", [str, float, int], ids=["texts", "floats", "integers"])
def test_rows_of_a_table_belong_to_the_step_that_they_name(
    as_step: Callable[[int], Any], tmp_path: Path
) -> None:
    rows = [row for step in (1, 2, 3) for row in rows_of(as_step(step))]
    # A row without a step belongs to none.
    rows.append({**rows[0], "step": None})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    view = only(tmp_path / "all.parquet")
    assert view.rollout_steps == (1, 2, 3)
    assert [view.read_rollouts(step).num_rows for step in (1, 2, 3)] == [8, 8, 8]


def test_one_text_in_many_rows_counts_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["x" * 100_000])
    table = pa.table({"prompt": ["q"] * 100, "response": texts, "reward": [0.0, 1.0] * 50})
    pq.write_table(table, tmp_path / "1.parquet")
    assert (tmp_path / "1.parquet").stat().st_size < 50_000
    monkeypatch.setattr(saved, "MAX_STEP_BYTES", 2_000_000)
    view = only(tmp_path / "1.parquet")
    assert view.read_rollouts(1).num_rows == 19
    assert noted(view, "the first 19 were read")


def test_folders_of_evaluations_and_runs_that_are_called_test(tmp_path: Path) -> None:
    for name in ("test_run", "eval-lr-3e-6", "validate"):
        write(tmp_path / "runs" / name / "1.jsonl", lines(rows_of(1)))
        assert len(only(tmp_path / "runs").steps) == 1
        shutil.rmtree(tmp_path / "runs")
    for name in ("eval", "val_generations", "test_5", "dumped_evals", "held-out"):
        write(tmp_path / "runs" / name / "1.jsonl", lines(rows_of(1)))
        assert len(only(tmp_path / "runs").evals) == 1
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize(
    "name", ["rollouts_step_{:06d}", "batch_{}", "dump_epoch0_step{}", "3-iter-{}"]
)
def test_files_of_one_step_each_are_one_run(name: str, tmp_path: Path) -> None:
    for step in (1, 2, 11):
        write(tmp_path / f"{name.format(step)}.jsonl", lines(rows_of(None)))
    assert only(tmp_path).rollout_steps == (1, 2, 11)


def test_an_archive_of_many_steps_is_read_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(lines(rows_of(step)) for step in range(50))
    path = write(tmp_path / "rollouts.jsonl.gz", gzip.compress(text.encode()))
    assert len(only(path).steps) == 50
    # Each step is behind all before it, which are unpacked again.
    monkeypatch.setattr(saved, "MAX_CURVE_BYTES", 4 * len(text))
    assert noted(only(path), "has one step in")
    monkeypatch.setattr(saved, "MAX_INDEXED_BYTES", len(text) // 2)
    half = only(path)
    assert 20 < len(half.rollout_steps) < 30
    assert noted(half, "only its first")


def test_a_file_without_records_is_given_up_after_its_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "1.jsonl", "no record\n" * 1000)
    parsed = []
    monkeypatch.setattr(saved, "parse_line", parsed.append)
    assert saved.recognize_file(path, tmp_path) is None
    assert len(parsed) == saved.N_HEAD_LINES


@pytest.mark.parametrize("steps", [1, 2])
def test_exports_of_tokens_join_the_episodes_of_few_steps_too(tmp_path: Path, steps: int) -> None:
    saved_rollouts.prime_rl(tmp_path, attempts(steps=steps))
    (view,) = read_views(tmp_path)
    table = view.read_rollouts(1)
    assert all(value is not None for value in table.column("learner").to_pylist())
