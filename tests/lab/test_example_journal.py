"""examples/journal, a record of experiments with version 0.1, still verifies: hashes, criteria,
arms and tasks.
"""

import shutil
from pathlib import Path

import pytest

from uptrend.lab import specification
from uptrend.lab.experiment import ExperimentRuns
from uptrend.lab.journal.page import to_markdown
from uptrend.lab.journal.stored import read_verdict
from uptrend.lab.notebook import Notebook
from uptrend.records import LabError
from uptrend.runner.runs import TrainLauncher

JOURNAL = Path(__file__).parents[2] / "examples" / "journal"
IDS = [h.id for h in Notebook(JOURNAL).hypotheses]


@pytest.fixture
def journal(tmp_path: Path) -> Notebook:
    """Copy that may be written to."""
    return Notebook(shutil.copytree(JOURNAL, tmp_path / "journal"))


@pytest.mark.parametrize("id", IDS)
@pytest.mark.filterwarnings("ignore::uptrend.records.renamed.RenamedWarning")
def test_it_says_today_what_it_said_then(journal: Notebook, id: str) -> None:
    then = specification.read(journal, id)  # refuses a file whose hash is another
    assert then is not None
    now = specification.describe(journal, journal.hypothesis(id), TrainLauncher(), like=then)
    assert specification.changed(then, now) == []
    kept = read_verdict(journal.results(id) / "verdict.json")
    assert kept is not None
    assert kept[0].specification == then.hash


@pytest.mark.filterwarnings("ignore::uptrend.records.renamed.RenamedWarning")
def test_another_version_may_judge_its_runs_and_make_none(
    journal: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = journal.hypothesis("h01")
    then = specification.read(journal, "h01")
    assert then is not None
    monkeypatch.setattr(specification, "version", lambda: "99")
    judged = ExperimentRuns(journal, h, TrainLauncher(), makes_runs=False)
    assert judged.changes == []
    recorded = {row["hash"] for row in judged.rows_before()}
    assert {planned.hash for planned in judged.planned_runs} == recorded
    assert ExperimentRuns(journal, h, TrainLauncher()).changes == [f"uptrend {then.uptrend} → 99"]


def test_a_hypothesis_with_other_criteria_is_listed_and_refused_when_it_is_judged(
    journal: Notebook,
) -> None:
    path = journal.path_of("h01")
    text = path.read_text(encoding="utf-8")
    assert 'validated_if = "low > 0"' in text
    path.write_text(
        text.replace('validated_if = "low > 0"', 'validated_if = "effect > 2 * smallest"'),
        encoding="utf-8",
    )
    changed = Notebook(journal.folder)
    h = changed.hypothesis("h01")
    assert h.validated_if == "effect > 2 * smallest"
    assert "h01" in to_markdown(changed).lower()
    with pytest.raises(
        LabError,
        match=r"h01: validated_if = 'effect > 2 \* smallest': every verdict uses 'low > 0'",
    ):
        ExperimentRuns(changed, h, TrainLauncher(), makes_runs=False)
