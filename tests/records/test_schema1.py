"""Runs of schema 1 read as today's: tests/data/schema1 is a run of Uptrend 0.1, as that version wrote it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.probes import PROBES
from uptrend.records import Run, Stop, view_of
from uptrend.records.directory import append_line, read_lines
from uptrend.records.renamed import RenamedWarning, current, names, upgrade_keys, upgrade_metrics

RUN = Path(__file__).parents[1] / "data" / "schema1"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Run that a test may write to."""
    return Path(shutil.copytree(RUN, tmp_path / "schema1"))


def test_it_reads_under_todays_names() -> None:
    run = Run(RUN)
    assert (run.schema, run.status, run.last_step) == (1, "finished", 3)
    assert {"optimizer/lr", "optimizer/updates/count", "optimizer/skipped/count"} <= set(run.metrics.column_names)
    assert not [key for line in run.metric_lines for key in line if key in names("metrics")]
    assert run.rollouts(3).num_rows == 8
    assert run.eval_rollouts(3).num_rows == 4
    assert len(view_of(run).curve("optimizer/lr")[0]) == 3


def test_a_null_beside_a_finite_loss_is_a_value_that_does_not_exist() -> None:
    written = list(read_lines(RUN / "metrics.jsonl"))
    assert written[0]["learner/entropy/mean"] is None  # a step whose groups were all dead
    run = Run(RUN)
    assert "learner/entropy/mean" not in run.metric_lines[0]
    assert "learner/entropy/mean" in run.metric_lines[2]
    assert view_of(run).nonfinite == {}


@pytest.mark.parametrize("broken", ["loss/total", "gradient/norm/before"])
def test_a_null_beside_a_broken_loss_is_not_finite(broken: str) -> None:
    line = {
        "step": 1,
        "loss/total": 0.5,
        "gradient/norm/before": 1.0,
        "learner/entropy/mean": None,
        "reward/mean": None,
    }
    assert upgrade_metrics(line) == {key: line[key] for key in ("step", "loss/total", "gradient/norm/before")}
    line[broken] = None
    kept = {key: value for key, value in line.items() if key != "reward/mean"}  # nothing was scored
    assert upgrade_metrics(line) == kept


def test_its_report_has_todays_keys() -> None:
    written = json.loads((RUN / "findings.json").read_text())
    report = Run(RUN).report
    assert report is not None
    assert "verdict" not in report
    assert (report["trend"], report["sentence"]) == (written["verdict"], written["sentence"])
    assert {lack["id"] for lack in report["cannot_tell"]} <= set(CATALOGUE)


STOPS = [
    ("the doctor found optimiser.frozen: No bit changes.", Stop("No bit changes.", "doctor", "optimizer.frozen")),
    ("preflight: data.memorised: It knows them.", Stop("It knows them.", "preflight", "data.memorized")),
    ("interrupted by the user", Stop("interrupted by the user", "user")),
    ("enough: it learns", Stop("enough: it learns", "observer")),
]


@pytest.mark.parametrize(("reason", "stop"), STOPS)
def test_its_events_have_todays_ids_and_fields(copy: Path, reason: str, stop: Stop) -> None:
    found = {"event": "finding", "id": "optimiser.lr-small", "summary": "The optimiser/lr is small.", "step": 2}
    append_line(copy / "events.jsonl", found)
    append_line(copy / "events.jsonl", {"event": "stopped", "time": 1.0, "step": 2, "reason": reason})
    run = Run(copy)
    assert run.events[-2] == {**found, "id": "optimizer.lr-small"}
    assert run.stopped == stop


def test_reading_says_nothing_and_changes_no_file(copy: Path, recwarn: pytest.WarningsRecorder) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    run = Run(copy)
    assert all([run.metrics.num_rows, run.events, run.report, run.config])
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert not [w for w in recwarn if issubclass(w.category, RenamedWarning)]


def test_todays_names_are_known_and_old_ones_are_not() -> None:
    known: dict[str, Any] = {"causes": CATALOGUE, "probes": PROBES}
    for section, table in known.items():
        assert set(names(section).values()) <= set(table)
        assert not set(names(section)) & set(table)


def test_an_old_name_is_accepted_with_a_note_and_any_other_name_without() -> None:
    with pytest.warns(RenamedWarning, match=r"optimiser\.frozen is called optimizer\.frozen now"):
        assert current("optimiser.frozen") == "optimizer.frozen"
    assert current("optimizer.frozen") == "optimizer.frozen"
    assert current("no.such-cause") == "no.such-cause"


def test_renamed_config_keys_move_within_their_table() -> None:
    renamed = {"learning.rate": "learning.lr", "sampling.kl": "learning.kl.beta"}
    old = {"learning": {"rate": 1e-4, "steps": 3}, "sampling": {"kl": 0.1}, "name": "x"}
    with pytest.warns(RenamedWarning) as noted:
        new = upgrade_keys(old, renamed=renamed)
    assert len(noted) == 2
    assert new == {"learning": {"lr": 1e-4, "steps": 3, "kl": {"beta": 0.1}}, "sampling": {}, "name": "x"}
    assert old["learning"] == {"rate": 1e-4, "steps": 3}
    assert upgrade_keys({"learning": "fast"}, renamed=renamed) == {"learning": "fast"}
