"""Reading a run directory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic import info_of
from uptrend.records import RecordError, Run, RunDirectory, to_pandas, to_polars

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("end", ["finished", "stopped", "failed"])
def test_status_is_how_the_run_ended(make_run: MakeRun, end: str) -> None:
    assert Run(make_run("demo", steps=1, end=end)).status == end


def test_status_without_an_end_is_killed(make_run: MakeRun) -> None:
    assert Run(make_run("demo", steps=1, end=None)).status == "killed"


def test_a_resumed_run_is_running_then_killed_then_finished(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1, end="stopped")
    with RunDirectory.reopen(path) as directory:
        directory.event("resumed", step=1)
        assert Run(path).status == "running"
        directory.event("checkpoint", step=1)
    assert Run(path).status == "killed"
    with RunDirectory.reopen(path) as directory:
        directory.event("finished", step=1)
    assert Run(path).status == "finished"


def test_metrics_are_one_row_a_step(make_run: MakeRun) -> None:
    metrics = Run(make_run("demo", steps=4)).metrics
    assert isinstance(metrics, pa.Table)
    assert metrics["step"].to_pylist() == [1, 2, 3, 4]
    assert metrics["reward/mean"].type == pa.float64()
    assert metrics["loss/total"].to_pylist() == [0, None, 0, 0]


def test_a_metric_that_appears_late_is_null_before(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", info_of("run")) as directory:
        directory.metrics({"step": 1, "a": 1})
        directory.metrics({"step": 2, "b": 2.5, "a": 1.5})
    assert Run(tmp_path / "run").metrics.to_pydict() == {"step": [1, 2], "a": [1, 1.5], "b": [None, 2.5]}


def test_evals_and_their_rollouts(make_run: MakeRun) -> None:
    run = Run(make_run("demo", steps=4))
    assert run.evals["step"].to_pylist() == [0, 2, 4]
    assert run.evals["accuracy"].to_pylist()[0] == 15 / 40
    assert run.eval_rollouts(0).num_rows == 40
    assert sum(run.eval_rollouts(4)["correct"].to_pylist()) == 28
    with pytest.raises(RecordError, match="has no evaluation after step 3; it has 0, 2, 4"):
        run.eval_rollouts(3)


def test_rollouts_of_one_step_and_of_all(make_run: MakeRun) -> None:
    run = Run(make_run("demo", steps=4))
    assert run.rollouts(3)["step"].to_pylist() == [3]
    assert run.rollouts()["step"].to_pylist() == [1, 2, 3, 4]
    with pytest.raises(RecordError, match="has no rollouts of step 9; it has 1 to 4"):
        run.rollouts(9)


def test_a_run_that_has_just_begun_reads(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", info_of("run")):
        run = Run(tmp_path / "run")
        assert (run.last_step, run.metrics.num_rows, run.evals.num_rows, run.rollouts().num_rows) == (
            0,
            0,
            0,
            0,
        )
        assert (run.events, run.checkpoints, run.name) == ([], [], "run")
        assert repr(run).endswith("running, 0 of 100 steps)")


def test_frames(make_run: MakeRun) -> None:
    run = Run(make_run("demo", steps=4))
    for table in (run.metrics, run.evals, run.rollouts(), run.eval_rollouts(4)):
        assert len(to_pandas(table)) == to_polars(table).height == table.num_rows
    assert to_pandas(run.metrics)["reward/mean"].dtype == "float64"
    assert to_polars(run.rollouts())["versions"].to_list()[0] == [None, None, 1, 1, 1]


def test_a_column_that_an_older_writer_lacked_is_null(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1) / "rollouts" / "000001" / "part-0.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["kept"]), path)
    assert Run(path.parents[2]).rollouts(1)["kept"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            json.dumps({**info_of("x"), "schema": 3}),
            "was written by a newer Uptrend (schema 3, this one reads 2)",
        ),
        ("{", "run.json is not JSON"),
        ("[]", "does not describe a run: it needs schema and config"),
        ("{}", "does not describe a run: it needs schema and config"),
        ('{"schema": "one", "config": {}}', "does not describe a run"),
    ],
)
def test_what_is_not_a_run_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError) as caught:
        Run(tmp_path)
    assert said in str(caught.value)


def test_no_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere holds no run \(no run\.json\)"):
        Run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="holds no run"):
        Run(tmp_path / "file")


def test_a_damaged_file_is_named(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1)
    (path / "rollouts" / "000001" / "part-0.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RecordError, match=r"part-0\.parquet is damaged"):
        Run(path).rollouts(1)


def test_records_and_config_load_no_torch() -> None:
    script = "import sys, uptrend.records, uptrend.config; print({'torch', 'pandas', 'polars'} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"
