"""Journals kept by hand: facts of five invented ones are recognized, nothing is lost, and twice
adds nothing.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uptrend.lab.hypothesis_file import get_block
from uptrend.lab.importing import import_journals, reading
from uptrend.lab.importing.reading import Journal, JournalItem, read_journal, reported
from uptrend.lab.notebook import Notebook
from uptrend.records import LabError, Priority, Status

DATA = Path(__file__).parents[1] / "data" / "journals"
JOURNALS = sorted(DATA.glob("00*.txt"))
EXPECTED = tomllib.loads((DATA / "expected.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def read() -> list[Journal]:
    return [read_journal(path) for path in JOURNALS]


@pytest.fixture
def lab(tmp_path: Path) -> Notebook:
    return Notebook.init(tmp_path / "lab")


def experiment(of: Journal, key: str) -> JournalItem:
    return next(one for one in of.experiments if one.key == key)


def figures(one: JournalItem) -> dict[str, float]:
    return {figure.name: figure.value for figure in one.figures}


def everything(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md")))


def counted(text: str) -> Counter[str]:
    """Count each line that is not blank, however often it is quoted."""
    whole = text.replace("&lt;!-- uptrend:", "<!-- uptrend:").replace("&lt;!-- /", "<!-- /")
    lines = (line.strip().lstrip("> ").strip() for line in whole.split("\n"))
    return Counter(line for line in lines if line)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(folder: Path, text: str) -> Path:
    path = folder / "journal.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_experiments_with_settings_figures_and_outcomes(read: list[Journal]) -> None:
    assert [" ".join(one.key for one in journal.experiments) for journal in read] == [
        "A1 A2 A3 B C1 C2 D1", "", "", "qk7wm2xa h3vz9tpb nd5ye8rc tunelwqo  zx4bq6lu vm8cd1ky", "1.0 1.1 2 3",
    ]  # fmt: skip
    parts = {
        "settings": lambda one: one.settings,
        "figures": figures,
        "outcomes": lambda one: one.outcome,
    }
    for name, part in parts.items():
        named = {place: experiment(read[int(place[0])], place[2:]) for place in EXPECTED[name]}
        assert {place: part(one) for place, one in named.items()} == EXPECTED[name]
    table = experiment(read[4], "1.0").settings
    assert (table["LoRA Rank"], table["Config File"]) == ("12", "configs/stops/try.toml")
    assert experiment(read[4], "1.1").settings["max_turns"] == "25"
    assert [
        sum(len(one.commands) for one in journal.experiments) for journal in (read[0], read[4])
    ] == [3, 2]
    assert (
        experiment(read[0], "D1").commands[0].startswith('--loss-type "bnpo" \\\n--learning-rate')
    )
    told = [
        reported(one.statuses) for one in (*read[3].experiments, *read[4].experiments) if one.key
    ]
    assert (
        " ".join(told)
        == "validated validated failing struggling   finished testing pending pending"
    )
    assert experiment(read[3], "qk7wm2xa").title == "Twice as Long (80 epochs)"
    assert {one.date for one in read[3].experiments} == {f"2026-03-0{day}" for day in (2, 3, 4, 5)}
    assert experiment(read[4], "1.0").date == "2026-05-11"
    assert [journal.is_problem for journal in read] == [False, True, False, False, False]


def test_hypotheses_by_number_and_those_that_a_line_states(read: list[Journal]) -> None:
    found = read[2].hypotheses
    assert [one.key for one in found] == ["h01", "h02", "h03", "h04"]
    assert [one.priority for one in found] == ["high", "medium", "low", "high"]
    assert [reported(one.statuses) for one in found] == [
        "pending",
        "partially validated",
        "pending",
        "testing",
    ]
    assert [one.confidence for one in found] == ["", "high", "", ""]
    assert (found[1].title, found[3].title) == ("Penalty with the Wrong Sign", "Stale Sampler Copy")
    assert found[1].notes == "Without it the gradient is sane, the reward level"
    assert found[1].fields["Test"] == "Run `--beta 0.0` beside the corrected term"
    first, *_, last = stated = read[3].hypotheses
    assert [one.key for one in stated] == [""] * 4
    assert first.title == "Twice the epochs will lift accuracy past a third."
    assert (first.runs, reported(first.statuses)) == (("qk7wm2xa",), "validated")
    assert last.title == "Thirty attempts for each sum will calm the curve"


def test_the_lab_that_comes_of_the_five(lab: Notebook) -> None:
    imported = import_journals(JOURNALS, lab)
    assert (len(imported.ids), imported.entries, imported.already) == (8, 18, 0)
    lines = counted("\n".join(path.read_text(encoding="utf-8") for path in JOURNALS))
    assert lines.total() > 200
    assert not lines - counted(everything(lab.folder))  # nothing is lost
    hypotheses = lab.hypotheses
    assert [h.id for h in hypotheses] == [f"h{n:02d}" for n in range(1, 9)]
    assert {(h.status, h.confidence) for h in hypotheses} == {(Status.PENDING, None)}
    assert hypotheses[1].prerequisites == ("h01",)
    assert hypotheses[2].priority is Priority.LOW
    page = lab.path_of("h02").read_text()
    assert (
        "Reported: partially validated, confidence high: Without it the gradient is sane, the reward level."
        in page
    )
    assert get_block(page, "results")
    assert (
        "*What does not happen that should?"
        not in (lab.folder / "00-problem-statement.md").read_text()
    )
    log = lab.log.read_text()
    assert log.count("\n## ") == 18
    assert "## 2026-03-02: Twice as Long (80 epochs) (qk7wm2xa)" in log
    assert "| figures | reward 0.8125, kl divergence 0.41 |" in log
    path = lab.path_of("h02")
    path.write_text(
        page.replace("## Invalidation criteria\n", "## Invalidation criteria\n\nBy hand.\n")
    )
    before = files(lab.folder)
    again = import_journals(JOURNALS, lab)
    assert (len(again.ids), again.entries, again.already, again.written) == (0, 0, 26, [])
    assert files(lab.folder) == before


JOURNAL = """# My journal

### A. Setup
Words only.

### B. Full tuning
- **Outcome**: Flat

## H02: Rewards are noisy **[LOW]**
- **Issue**: The grader guesses.
### Results
INVALIDATED by a second grader.

## Long run (2025-01-02)
**Run ID**: `abcd1234`
- Reward: 40%
"""


def test_a_small_journal_and_later_a_longer_one(lab: Notebook, tmp_path: Path) -> None:
    found = import_journals([write(tmp_path, JOURNAL)], lab).journals[0]
    assert [one.key for one in found.experiments] == ["B", "abcd1234"]  # A is a chapter
    assert figures(found.experiments[1]) == {"reward": 0.4}
    (h,) = found.hypotheses
    assert (h.key, h.title, h.priority, reported(h.statuses)) == (
        "h02",
        "Rewards are noisy",
        "low",
        "invalidated",
    )
    assert found.prose == [(1, 4)]
    assert lab.hypothesis("h02").title == "Rewards are noisy"
    rest = (lab.folder / "imported" / "journal.md").read_text()
    for said in (
        "Words only.",
        "*→ H02: in the [hypotheses](../",
        "*→ Full tuning: in the [log](../01-",
    ):
        assert said in rest
    lab.log.write_text(lab.log.read_text() + "\nMy own words.\n")
    more = (
        JOURNAL
        + "- Loss: 0.5\n\n### C1. LoRA\n- **Outcome**: Better\n\n## H03: The mask is wrong\n"
    )
    imported = import_journals([write(tmp_path, more)], lab)
    assert (len(imported.ids), imported.entries, imported.already) == (1, 1, 3)
    log = lab.log.read_text()
    assert log.count("(abcd1234)") == 1
    assert "| figures | reward 0.4, loss 0.5 |" in log
    assert "My own words." in log
    assert [h.id for h in lab.hypotheses] == ["h02", "h03"]


pieces = st.sampled_from((DATA / "pieces.md").read_text(encoding="utf-8").split("\n"))


@given(
    st.lists(
        pieces | st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20),
        max_size=40,
    )
)
@example(["## H01: A claim", "> quoted"])
@example(["## H01: ## A claim", "## H02: +++", "- **Issue**: ## x"])
@settings(max_examples=40, deadline=None)
def test_no_line_of_any_journal_is_lost(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lab, source = Notebook.init(folder / "lab"), write(folder, "\n".join(lines))
    import_journals([source], lab)
    wanted = counted("\n".join(lines).removeprefix("\ufeff"))
    assert not wanted - counted(everything(lab.folder))
    assert all(h.title for h in lab.hypotheses)
    before = files(lab.folder)
    import_journals([source], lab)
    assert files(lab.folder) == before


def test_what_can_not_be_read_is_said(lab: Notebook, tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    for name, message in (
        (".", "could not be read"),
        ("latin.md", r"latin.md is not UTF-8 at byte 3"),
    ):
        with pytest.raises(LabError, match=message):
            import_journals([tmp_path / name], lab)


def test_facts_of_a_line() -> None:
    assert {text: reported(reading.statuses_in(text)) for text in EXPECTED["statuses"]} == EXPECTED[
        "statuses"
    ]
    measured = {
        text: [list(one[:2]) for one in reading.figures_in(text, 1)]
        for text in EXPECTED["measured"]
    }
    assert measured == EXPECTED["measured"]
    assert reading.runs_in("Results (ab12cd34) and (standard)") == ["ab12cd34"]
    assert reading.fields_in("**Run ID**: `a` | **Script**: `b.py`  ") == {
        "Run ID": "`a`",
        "Script": "`b.py`",
    }
    assert [section.title for section in reading.sections_of("# A\n```bash\n# no\n```\n## B")] == [
        "",
        "A",
        "B",
    ]
    assert reported(("testing", "validated", "testing")) == "validated"
