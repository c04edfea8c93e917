"""`uptrend runs`, on run directories that the real writer wrote."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from typer.testing import CliRunner

from synthetic import rollout_of
from uptrend.cli.runs import app
from uptrend.records import RecordError, Run, RunDirectory, rollouts_table

MakeRun = Callable[..., Path]
DOCS = Path(__file__).parents[2] / "docs"


def output(*arguments: object, width: int = 160) -> str:
    """What a command prints."""
    result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    return result.output


def as_json(*arguments: object) -> Any:
    """What a command prints with --json."""
    return json.loads(output(*arguments, "--json"))


@pytest.fixture
def two_runs(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """`slow` and `fast`, which is newer; the working directory is the one above ./runs."""
    slow = make_run("slow", rights=(15, 22), lift=0.2)
    fast = make_run("fast", steps=10, seed=1, overrides=("learning.lr=2e-5", "learning.loss=dapo"))
    info = json.loads((fast / "run.json").read_text())
    (fast / "run.json").write_text(json.dumps({**info, "created": "2025-12-01T08:30:00+00:00"}))
    monkeypatch.chdir(slow.parents[1])
    return slow, fast


@pytest.mark.usefixtures("two_runs")
def test_list_has_one_line_a_run_newest_first() -> None:
    lines = output("list").splitlines()
    assert len(lines) == 3
    words = " ".join(lines[1].split())
    assert words.startswith("fast finished 10/10 tiny arithmetic dapo 37.5% (24.2–53.0) → 70.0% (54.6–81.9)")
    assert words.endswith("2025-12-01 08:30 1.0 s")
    assert lines[2].startswith("slow")
    assert "37.5% (24.2–53.0) → 55.0% (39.8–69.3)" in lines[2]


@pytest.mark.usefixtures("two_runs")
def test_list_json_has_every_value() -> None:
    told = as_json("list")
    assert [run["name"] for run in told["runs"]] == ["fast", "slow"]
    assert told["broken"] == []
    slow = told["runs"][1]
    assert {k: slow[k] for k in ("status", "step", "steps", "model", "taskset", "loss", "seed", "path")} == {
        "status": "finished", "step": 20, "steps": 20, "model": "tiny", "taskset": "arithmetic",
        "loss": "grpo", "seed": 0, "path": "runs/slow",
    }  # fmt: skip
    assert slow["before"]["accuracy"] == 15 / 40
    assert (slow["after"]["step"], slow["after"]["correct"], slow["after"]["tasks"]) == (20, 22, 40)
    assert slow["seconds_per_step"] == 1.0
    assert 0.2 < slow["reward"] < 0.6


def test_list_ignores_other_folders_and_names_broken_ones(two_runs: tuple[Path, Path]) -> None:
    folder = two_runs[0].parent
    (folder / "notes").mkdir()
    for name, text in {"torn": "{", "newer": '{"schema": 9, "config": {}}'}.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (two_runs[1] / "evals.jsonl").write_text('{"step": 0}\n')
    told = output("list", folder)
    assert "notes" not in told
    assert "torn can't be read:" in told
    assert "by a newer Uptrend (schema 9" in told
    assert "fast can't be read:" in told
    broken = {Path(b["path"]).name: b["reason"] for b in as_json("list", folder)["broken"]}
    assert set(broken) == {"torn", "newer", "fast"}


def test_no_runs_say_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output("list") == "There are no runs in runs/. Make one with: uptrend train recipe.toml\n"
    assert as_json("list") == {"runs": [], "broken": []}


def test_a_run_that_has_just_begun_can_be_listed_shown_and_compared(
    two_runs: tuple[Path, Path], tmp_path: Path
) -> None:
    info = json.loads((two_runs[0] / "run.json").read_text())
    with RunDirectory.create(tmp_path / "runs" / "new", info):
        assert "running" in output("list")
        assert "0 of 20 steps" in output("show", "new")
        assert "They share no held-out task" in output("compare", "slow", "new")


@pytest.mark.usefixtures("two_runs")
def test_show_has_curves_evaluations_time_and_files() -> None:
    told = output("show", "slow")
    assert told.startswith("slow  finished  20 of 20 steps, 1.0 s a step  runs/slow")
    assert "loss grpo, scale group, lr 1e-05" in told
    for key in ("reward/mean", "held-out accuracy", "advantage/dead/share", "sampling/length/mean",
                "kl/reference/mean", "learner/entropy/mean", "gradient/norm/before"):  # fmt: skip
        assert key in told
    assert "kl/reference/mean     ▁▁▁▂▂▃▃▃▄▄▅▅▆▆▆▇▇███" in told
    assert "held-out after step 20  55.0% (39.8–69.3)  22 of 40" in told
    assert "sample 60%" in told
    assert "metrics.jsonl" in told


def test_show_takes_a_path_and_says_what_is_near(two_runs: tuple[Path, Path]) -> None:
    assert as_json("show", two_runs[0])["name"] == "slow"
    told = as_json("show", "slow")
    assert len(told["curves"]["reward/mean"]) == 20
    assert told["phases"]["sample"] == pytest.approx(0.6)
    assert told["config"]["learning"]["lr"] == 1e-5
    assert told["files"]["run.json"] == (two_runs[0] / "run.json").stat().st_size
    with pytest.raises(RecordError, match=r"There is no run at slo or runs/slo\. Did you mean slow\?"):
        output("show", "slo")
    with pytest.raises(RecordError, match=r"runs/ holds fast, slow\."):
        output("show", "zzzzzz")


@pytest.mark.usefixtures("two_runs")
def test_compare_pairs_the_held_out_tasks() -> None:
    told = as_json("compare", "slow", "fast")
    assert told["difference"]["learning.lr"] == [1e-5, 2e-5]
    assert set(told["difference"]) == {"name", "seed", "learning.lr", "learning.loss", "learning.steps"}
    paired = told["paired"]
    counts = {key: paired[key] for key in ("tasks", "both", "only_a", "only_b", "neither")}
    assert counts == {"tasks": 40, "both": 22, "only_a": 0, "only_b": 6, "neither": 12}
    assert paired["p"] == pytest.approx(stats.binomtest(0, 6).pvalue)
    assert (paired["step_a"], paired["step_b"]) == (20, 10)
    assert [len(told["curves"]["reward/mean"][side]) for side in "ab"] == [20, 10]


def test_sampled_attempts_are_not_taken_for_the_answer(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b")]
    attempts = [rollout_of(20, f"e{i}", 0, False, f"task-{i}") for i in range(40)]
    for run in runs[1:]:
        path = run / "evals" / "000020.parquet"
        table = pa.concat_tables([Run(run).eval_rollouts(20), rollouts_table("b", attempts)])
        pq.write_table(table, path)
    assert as_json("compare", *runs)["paired"]["both"] == 28


@pytest.mark.usefixtures("two_runs")
def test_compare_says_what_it_does_not_say() -> None:
    told = " ".join(output("compare", "slow", "fast").split())
    assert "0 were answered rightly by A alone and 6 by B alone (exact McNemar p .031)" in told
    assert "It does not say that one config is better than the other" in told
    assert "learning.loss grpo dapo" in told


@pytest.mark.usefixtures("two_runs")
def test_curves_side_by_side_share_their_scale_and_their_steps() -> None:
    lines = output("compare", "slow", "fast").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("reward/mean"))
    a, b = (line.split("A  " if i == 0 else "B  ")[1] for i, line in enumerate(lines[start : start + 2]))
    assert len(a.split()[0]) == 20
    assert len(b.split()[0]) == 10
    assert "█" not in a
    assert "█" in b


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_page_fits_its_terminal(width: int) -> None:
    for command in (("list",), ("show", "slow"), ("compare", "slow", "fast")):
        lines = output(*command, width=width).splitlines()
        assert max(map(len, lines)) <= width, command
        assert not any("…" in line for line in lines), command


def test_the_json_objects_are_documented() -> None:
    page = (DOCS / "records.md").read_text()
    for key in ("seconds_per_step", "only_a", "only_b", "caveat", "difference", "curves", "phases", "broken"):
        assert f"`{key}`" in page


def test_it_loads_no_torch() -> None:
    modules = "uptrend.cli.runs, uptrend.cli.plot, uptrend.cli.view"
    script = f"import sys, {modules}; print({{'torch', 'matplotlib', 'pandas'}} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"
