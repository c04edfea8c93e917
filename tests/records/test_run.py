"""Reading a run directory: of today, of schema 1 (tests/data/schema1 is as Uptrend 0.1 wrote it),
and what is none.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from synthetic import info_of
from uptrend.bridge.importers import read_views
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.probes import PROBES
from uptrend.records import (
    RecordError,
    Run,
    RunDirectory,
    Stop,
    from_lines,
    to_pandas,
    to_polars,
    view_of,
)
from uptrend.records.lines import append_line, read_lines
from uptrend.records.renamed import RenamedWarning, current, names, upgrade_keys, upgrade_metrics
from uptrend.records.summary import find_runs

MakeRun = Callable[..., Path]
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "run.md").read_text(encoding="utf-8")
SCHEMA1 = Path(__file__).parents[1] / "data" / "schema1"


@pytest.mark.parametrize(
    ("end", "status"), [(end, end or "killed") for end in ("finished", "stopped", "failed", None)]
)
def test_status_is_how_the_run_ended(make_run: MakeRun, end: str | None, status: str) -> None:
    path = make_run("demo", steps=1, end=end)
    assert Run(path).status == status
    assert all(file.name in PAGE for file in path.iterdir())


def test_a_resumed_run_is_running_then_killed_then_finished(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1, end="stopped")
    assert Run(path).stopped == Stop("", "observer")
    with RunDirectory.reopen(path) as directory:
        directory.event("resumed", step=1)
        assert (Run(path).status, Run(path).stopped) == ("running", None)
        directory.event("checkpoint", step=1)
    assert Run(path).status == "killed"
    with RunDirectory.reopen(path) as directory:
        directory.event("finished", step=1)
    assert Run(path).status == "finished"


def test_lines_are_tables(make_run: MakeRun, tmp_path: Path) -> None:
    run = Run(make_run("demo", steps=4))
    assert run.metrics["step"].to_pylist() == [1, 2, 3, 4]
    assert run.metrics["reward/mean"].type == pa.float64()
    assert run.metrics["loss/total"].to_pylist() == [0, None, 0, 0]
    assert run.evals["step"].to_pylist() == [0, 2, 4]
    assert run.evals["accuracy"].to_pylist()[0] == 15 / 40
    with RunDirectory.create(tmp_path / "late", info_of("late")) as directory:
        directory.step({"step": 1, "a": 1})
        directory.step({"step": 2, "b": 2.5, "a": 1.5})
    assert Run(tmp_path / "late").metrics.to_pydict() == {
        "step": [1, 2],
        "a": [1, 1.5],
        "b": [None, 2.5],
    }


def test_rollouts_of_one_step_of_all_and_of_an_evaluation(make_run: MakeRun) -> None:
    run = Run(make_run("demo", steps=4))
    assert run.rollouts(3)["step"].to_pylist() == [3]
    assert run.rollouts()["step"].to_pylist() == [1, 2, 3, 4]
    assert [sum(run.eval_rollouts(step)["correct"].to_pylist()) for step in (0, 4)] == [15, 28]
    with pytest.raises(RecordError, match="has no evaluation after step 3; it has 0, 2, 4"):
        run.eval_rollouts(3)
    with pytest.raises(RecordError, match="has no rollouts of step 9; it has 1 to 4"):
        run.rollouts(9)
    (run.path / "rollouts" / "000001" / "part-0.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RecordError, match=r"part-0\.parquet is damaged"):
        run.rollouts(1)


def test_a_run_that_has_just_begun_reads(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", info_of("run")):
        run = Run(tmp_path / "run")
        assert [
            run.last_step,
            run.metrics.num_rows,
            run.evals.num_rows,
            run.rollouts().num_rows,
        ] == [0] * 4
        assert (run.events, run.checkpoints, run.name, run.report) == ([], [], "run", None)
        assert repr(run).endswith("running, 0 of 100 steps)")
        (tmp_path / "run" / "findings.json").write_text("{")
        with pytest.raises(
            RecordError, match=r"findings\.json is not JSON.*Write it again: uptrend doctor"
        ):
            print(run.report)


def test_a_view_has_curves_values_and_parts(make_run: MakeRun) -> None:
    view = view_of(Run(make_run("demo", steps=4)))
    assert view.has("reward/mean", "loss/total")
    assert not view.has("reward/mean", "no/such")
    assert [len(x) for x in view.curve("no/such")] == [0, 0]
    assert view.curve("loss/total")[0].tolist() == [1, 3, 4]
    assert (view.nonfinite, view.rollout_steps) == ({"loss/total": (2,)}, (1, 2, 3, 4))
    assert (view.value("sampling.size"), view.value("sampling.no.key", 7)) == (16, 7)
    lines = [{"step": 1, "reward/part/exact/mean": 0.5}]
    other = from_lines(lines, "trl", source="log", name="")
    assert (other.parts(), other.read_rollouts(1).num_rows) == (["exact"], 0)


def test_frames(make_run: MakeRun) -> None:
    run = Run(make_run("demo", steps=4))
    for table in (run.metrics, run.evals, run.rollouts(), run.eval_rollouts(4)):
        assert len(to_pandas(table)) == to_polars(table).height == table.num_rows
    assert to_polars(run.rollouts())["versions"].to_list()[0] == [None, None, 1, 1, 1]


def test_the_page_has_every_key_of_run_json_and_its_snippet_runs(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(re.findall(r"`(\w+)`", PAGE.split("## run.json")[1].split("##")[0])) >= set(
        info_of("demo")
    )
    monkeypatch.chdir(make_run("quickstart", steps=4).parents[1])
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "run.md", "exec"), {})
    told = capsys.readouterr().out
    assert "finished, 4 of 4 steps" in told
    assert "0.375" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            json.dumps({**info_of("x"), "schema": 3}),
            "was written by a newer Uptrend (schema 3, this one reads 2)",
        ),
        ("{", "run.json is not JSON"),
        ("[]", "does not describe a run: it needs schema and config"),
        ('{"schema": "one", "config": {}}', "does not describe a run"),
        (None, "holds no run (no run.json)"),
    ],
)
def test_what_is_not_a_run_is_refused_with_a_sentence(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match=re.escape(said)):
        Run(tmp_path)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Run of schema 1 that a test may write to."""
    return Path(shutil.copytree(SCHEMA1, tmp_path / "schema1"))


def test_schema_1_reads_under_todays_names() -> None:
    run = Run(SCHEMA1)
    assert (run.schema, run.status, run.last_step) == (1, "finished", 3)
    assert {"optimizer/lr", "optimizer/updates/count", "optimizer/skipped/count"} <= set(
        run.metrics.column_names
    )
    assert not [key for line in run.metric_lines for key in line if key in names("metrics")]
    assert (run.rollouts(3).num_rows, run.eval_rollouts(3).num_rows) == (8, 4)
    assert len(view_of(run).curve("optimizer/lr")[0]) == 3
    written = json.loads((SCHEMA1 / "findings.json").read_text())
    report = run.report
    assert report is not None
    assert "verdict" not in report
    assert (report["trend"], report["sentence"]) == (written["verdict"], written["sentence"])
    assert {lack["id"] for lack in report["cannot_tell"]} <= set(CATALOGUE)


def test_a_null_of_schema_1_beside_a_finite_loss_is_a_value_that_does_not_exist() -> None:
    assert (
        next(read_lines(SCHEMA1 / "metrics.jsonl"))["learner/entropy/mean"] is None
    )  # all groups were dead
    run = Run(SCHEMA1)
    assert "learner/entropy/mean" not in run.metric_lines[0]
    assert "learner/entropy/mean" in run.metric_lines[2]
    assert view_of(run).nonfinite == {}
    line = {
        "loss/total": 0.5,
        "gradient/norm/before": 1.0,
        "learner/entropy/mean": None,
        "reward/mean": None,
    }
    assert set(upgrade_metrics(line)) == {"loss/total", "gradient/norm/before"}
    for broken in ("loss/total", "gradient/norm/before"):
        assert set(upgrade_metrics(line | {broken: None})) == set(line) - {
            "reward/mean"
        }  # nothing was scored


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        (
            "the doctor found optimiser.frozen: No bit changes.",
            Stop("No bit changes.", "doctor", "optimizer.frozen"),
        ),
        (
            "preflight: data.memorised: It knows them.",
            Stop("It knows them.", "preflight", "data.memorized"),
        ),
        ("interrupted by the user", Stop("interrupted by the user", "user")),
        ("enough: it learns", Stop("enough: it learns", "observer")),
    ],
)
def test_events_of_schema_1_have_todays_ids_and_fields(copy: Path, reason: str, stop: Stop) -> None:
    found = {
        "event": "finding",
        "id": "optimiser.lr-small",
        "summary": "The optimiser/lr is small.",
        "step": 2,
    }
    append_line(copy / "events.jsonl", found)
    append_line(
        copy / "events.jsonl", {"event": "stopped", "time": 1.0, "step": 2, "reason": reason}
    )
    run = Run(copy)
    assert run.events[-2] == {**found, "id": "optimizer.lr-small"}
    assert run.stopped == stop


def test_reading_schema_1_says_nothing_and_changes_no_file(
    copy: Path, recwarn: pytest.WarningsRecorder
) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    run = Run(copy)
    assert all([run.metrics.num_rows, run.events, run.report, run.config])
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert not [w for w in recwarn if issubclass(w.category, RenamedWarning)]


def test_an_old_name_is_accepted_with_a_note_and_any_other_name_without() -> None:
    known: dict[str, Any] = {"causes": CATALOGUE, "probes": PROBES}
    for section, table in known.items():
        assert set(names(section).values()) <= set(table)
        assert not set(names(section)) & set(table)
    with pytest.warns(RenamedWarning, match=r"optimiser\.frozen is called optimizer\.frozen now"):
        assert current("optimiser.frozen") == "optimizer.frozen"
    assert current("no.such-cause") == "no.such-cause"


def test_renamed_config_keys_move_within_their_table() -> None:
    renamed = {"learning.rate": "learning.lr", "sampling.kl": "learning.kl.beta"}
    old = {"learning": {"rate": 1e-4, "steps": 3}, "sampling": {"kl": 0.1}, "name": "x"}
    with pytest.warns(RenamedWarning) as noted:
        new = upgrade_keys(old, renamed=renamed)
    assert len(noted) == 2
    assert new == {
        "learning": {"lr": 1e-4, "steps": 3, "kl": {"beta": 0.1}},
        "sampling": {},
        "name": "x",
    }
    assert old["learning"] == {"rate": 1e-4, "steps": 3}
    assert upgrade_keys({"learning": "fast"}, renamed=renamed) == {"learning": "fast"}


def put_line(path: Path, line: bytes) -> None:
    """Put a line in the place of the second one."""
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:], b""]))


BAD = {
    "no step": b'{"reward/mean": 0.5, "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1}',
    "no number": b'{"step": "2", "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1}',
    "true": b'{"step": true, "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1}',
    "no UTF-8": b'{"step": 2, "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1, "a\xff": 1}',
    "half a character": b'{"step": 2, "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1, "\\ud800": 1}',
    "nested": b'{"step": 2, "accuracy": 1, "low": 1, "high": 1, "correct": 1, "tasks": 1, "event": "x", "deep": '
    + 300_000 * b"["
    + 300_000 * b"]"
    + b"}",
    "a step that no file can hold": b'{"step": ' + 100_000 * b"9" + b"}",
    "a list": b'[{"step": 2}]',
    "zeros": bytes(40),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl", "events.jsonl"])
def test_a_bad_line_is_one_bad_line(make_run: Callable[..., Path], name: str, bad: bytes) -> None:
    path = make_run("damaged", steps=6)
    if name == "events.jsonl":
        append_line(path / name, {"event": "finished", "step": 6})
    whole = Run(path)
    lines = {
        "metrics.jsonl": whole.metric_lines,
        "evals.jsonl": whole.eval_lines,
        "events.jsonl": whole.events,
    }
    del lines[name][1]
    put_line(path / name, bad)
    run = Run(path)
    assert lines == {
        "metrics.jsonl": run.metric_lines,
        "evals.jsonl": run.eval_lines,
        "events.jsonl": run.events,
    }
    assert run.notes == [f"1 line of {name} could not be read and is left out."]
    assert view_of(run).notes == tuple(run.notes)
    assert (run.metrics.num_rows, run.status) == (len(run.metric_lines), "finished")
    runs, broken = find_runs(path.parent)
    assert ([run["step"] for run in runs], broken) == ([6], {})


def test_a_number_of_any_length_is_a_number(make_run: Callable[..., Path]) -> None:
    path = make_run("demo", steps=6)
    put_line(
        path / "metrics.jsonl",
        b'{"step": 2, "reward/mean": 0.5, "gradient/norm/before": ' + 100_000 * b"9" + b"}",
    )
    run = Run(path)
    assert (run.metric_lines[1]["reward/mean"], run.notes) == (0.5, [])
    assert view_of(run).nonfinite == {"gradient/norm/before": (2,)}


def test_a_metric_that_is_no_number_is_absent(make_run: Callable[..., Path]) -> None:
    path = make_run("demo", steps=6)
    put_line(
        path / "metrics.jsonl",
        b'{"step": 2, "reward/mean": "much", "seconds/step": [1], "time": {}, "own": "x"}',
    )
    assert Run(path).metric_lines[1] == {"step": 2, "own": "x"}
    assert find_runs(path.parent)[1] == {}


def test_a_run_that_cannot_be_read_hides_no_other(make_run: Callable[..., Path]) -> None:
    whole = make_run("whole", steps=6)
    for name, config in (
        ("a list", []),
        ("a text", "x"),
        ("odd values", {"learning": {"steps": "many"}}),
    ):
        info = json.loads((make_run(name, steps=2) / "run.json").read_text()) | {"config": config}
        (whole.with_name(name) / "run.json").write_text(json.dumps(info))
    (make_run("a pipe", steps=2) / "metrics.jsonl").unlink()
    os.mkfifo(whole.with_name("a pipe") / "metrics.jsonl")
    runs, broken = find_runs(whole.parent)
    assert [run["name"] for run in runs] == ["whole"]
    assert {path.name for path in broken} == {"a list", "a text", "odd values", "a pipe"}
    views = read_views(whole.parent)
    assert "whole" in [view.name for view in views]
    assert any("a pipe" in note for note in views[0].notes)
