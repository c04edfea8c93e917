"""Journals kept by hand: what of five invented ones is recognized, nothing is lost, and twice adds nothing."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uptrend.lab import blocks
from uptrend.lab.importing.bring import bring
from uptrend.lab.importing.found import FoundExperiment, FoundHypothesis, Journal
from uptrend.lab.importing.journal import read_journal
from uptrend.lab.importing.marks import fields_in, figures_in, reported, runs_in, settings_in, status_in
from uptrend.lab.importing.outline import sections_of
from uptrend.lab.importing.repair import repair
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Hypothesis, LabError, Priority, Status

JOURNALS = sorted((Path(__file__).parents[1] / "data" / "journals").glob("00*.txt"))


def journal(number: int) -> Journal:
    return read_journal(JOURNALS[number])


def experiment(of: Journal, key: str) -> FoundExperiment:
    return next(one for one in of.experiments if one.key == key)


def figures(one: FoundExperiment) -> dict[str, float]:
    return {figure.name: figure.value for figure in one.figures}


def everything(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md")))


def counted(text: str) -> Counter[str]:
    """Count each line that is not blank, however often it is quoted."""
    whole = text.replace("&lt;!-- uptrend:", "<!-- uptrend:").replace("&lt;!-- /", "<!-- /")
    lines = (line.strip().lstrip("> ").strip() for line in whole.split("\n"))
    return Counter(line for line in lines if line)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def lab(tmp_path: Path) -> Notebook:
    return Notebook.init(tmp_path / "lab")


def test_experiments_by_letter_with_commands_parameters_and_outcome() -> None:
    log = journal(0)
    assert " ".join(one.key for one in log.experiments) == "A1 A2 A3 B C1 C2 D1"
    assert experiment(log, "A1").settings == {
        "r": "48", "alpha": "96", "batch_size": "12", "num_generations": "6", "grad_accum": "4",
    }  # fmt: skip
    assert experiment(log, "A1").outcome == "The curve is as flat as before"
    assert experiment(log, "A2").settings == {"r": "48, 24, 4", "alpha": "48, 12, 8"}
    assert experiment(log, "A2").outcome == "All three stay level"
    assert experiment(log, "B").outcome == "The 3B planner does not fit in memory"
    assert experiment(log, "C1").settings == {"Tested": "2e-6, 2e-5, 9e-6"}
    d1 = experiment(log, "D1")
    assert d1.settings == {
        "loss-type": "bnpo", "learning-rate": "2e-6", "num-generations": "12", "center-rewards": "true",
    }  # fmt: skip
    assert d1.commands[0].startswith('--loss-type "bnpo" \\\n--learning-rate')
    assert sum(len(one.commands) for one in log.experiments) == 3


def test_the_problem_statement_is_known_as_one() -> None:
    assert [read_journal(path).is_problem for path in JOURNALS] == [False, True, False, False, False]


def test_hypotheses_by_number_with_priority_status_confidence_and_notes() -> None:
    found = {one.id: one for one in journal(2).hypotheses}
    assert list(found) == ["h01", "h02", "h03", "h04"]
    assert [one.priority for one in found.values()] == ["high", "medium", "low", "high"]
    told = [reported(one.statuses) for one in found.values()]
    assert told == ["pending", "partially validated", "pending", "testing"]
    h02 = found["h02"]
    assert (h02.claim, h02.confidence) == ("Penalty with the Wrong Sign", "high")
    assert h02.notes == "Without it the gradient is sane, the reward level"
    assert h02.fields["Test"] == "Run `--beta 0.0` beside the corrected term"
    assert found["h04"].claim == "Stale Sampler Copy"
    assert not found["h01"].confidence


def test_runs_with_dates_statuses_settings_and_figures() -> None:
    research = journal(3)
    runs = [run for one in research.experiments for run in one.runs]
    assert " ".join(runs) == "qk7wm2xa h3vz9tpb nd5ye8rc tunelwqo zx4bq6lu vm8cd1ky"
    assert {one.date for one in research.experiments} == {f"2026-03-0{day}" for day in (2, 3, 4, 5)}
    long = experiment(research, "qk7wm2xa")
    assert long.title == "Twice as Long (80 epochs)"
    assert long.settings == {"lr": "4e-6", "beta": "0.05", "batch_size": "48", "seed": "11"}
    assert figures(long) == {"reward": 0.8125, "kl divergence": 0.41}
    assert figures(experiment(research, "h3vz9tpb")) == {
        "final accuracy": 0.21, "final reward": 0.4375, "final loss": 0.12,
    }  # fmt: skip
    assert figures(experiment(research, "vm8cd1ky")) == {"reward": -1.0}
    assert experiment(research, "zx4bq6lu").settings == {"beta": "0.05", "loss_type": "grpo"}
    told = [reported(experiment(research, run).statuses) for run in runs]
    assert told == ["validated", "validated", "failing", "struggling", "", ""]


def test_hypotheses_that_a_line_states() -> None:
    found = journal(3).hypotheses
    assert len(found) == 4
    assert not any(one.id for one in found)
    assert found[0].claim == "Twice the epochs will lift accuracy past a third."
    assert (found[0].runs, reported(found[0].statuses)) == (("qk7wm2xa",), "validated")
    assert found[0].fields["Expected outcome"] == "Accuracy should reach 45% by epoch 80"
    assert found[-1].claim == "Thirty attempts for each sum will calm the curve"


def test_numbered_experiments_with_tables() -> None:
    found = journal(4)
    assert [one.key for one in found.experiments] == ["1.0", "1.1", "2", "3"]
    first = experiment(found, "1.0")
    assert (first.date, reported(first.statuses)) == ("2026-05-11", "finished")
    assert first.settings["LoRA Rank"] == "12"
    assert first.settings["Config File"] == "configs/stops/try.toml"
    assert figures(first) == {
        "container errors": 2, "throughput": 310, "peak memory": 4.2, "total time": 9, "loss": 0,
    }  # fmt: skip
    assert experiment(found, "1.1").settings["max_turns"] == "25"
    assert len(experiment(found, "1.1").commands) == 2
    assert reported(experiment(found, "2").statuses) == "pending"


def test_torn_characters_are_made_whole() -> None:
    assert [read_journal(path).repaired for path in JOURNALS] == [0, 0, 0, 6, 1]
    text = "\n".join(line.text for line in journal(3).lines)
    assert "FAILING ❌" in text
    assert "[0] Add: 31 + 4 =  → 35" in text
    assert "52.5% Final Accuracy! 🎉" in text
    assert "48 ÷ 6 = 8" in text
    assert not set("âðÃ") & set(text)


def test_nothing_of_the_five_is_lost(lab: Notebook) -> None:
    bring(JOURNALS, lab)
    lines = counted("\n".join(repair(path.read_text(encoding="utf-8"))[0] for path in JOURNALS))
    assert lines.total() > 200
    assert not lines - counted(everything(lab.folder))


def test_the_lab_that_comes_of_the_five(lab: Notebook) -> None:
    brought = bring(JOURNALS, lab)
    assert (len(brought.ids), brought.entries, brought.already) == (8, 18, 0)
    hypotheses = lab.hypotheses
    assert [h.id for h in hypotheses] == [f"h{n:02d}" for n in range(1, 9)]
    assert {h.status for h in hypotheses} == {Status.PENDING}
    assert {h.confidence for h in hypotheses} == {None}
    assert hypotheses[1].prerequisites == ("h01",)
    assert hypotheses[2].priority is Priority.LOW
    page = lab.path_of("h02").read_text()
    assert "Reported: partially validated, confidence high: Without it the gradient is sane, the reward level." in page
    assert blocks.get(page, "results") == "Nothing of it was run here yet, so that its status is pending."
    problem = (lab.folder / "00-problem-statement.md").read_text()
    assert "# Timetables That Do Not Improve: Problem Statement" in problem
    assert "*What does not happen that should?" not in problem
    log = lab.log.read_text()
    assert len(re.findall(r"^## ", log, re.MULTILINE)) == 18
    assert "## 2026-03-02: Twice as Long (80 epochs) (qk7wm2xa)" in log
    assert "| figures | reward 0.8125, kl divergence 0.41 |" in log
    readme = (lab.folder / "README.md").read_text()
    assert "H08: Thirty attempts for each sum will calm the curve" in readme


def test_twice_adds_nothing(lab: Notebook) -> None:
    bring(JOURNALS, lab)
    path = lab.path_of("h02")
    path.write_text(path.read_text().replace("## Invalidation criteria\n", "## Invalidation criteria\n\nBy hand.\n"))
    before = files(lab.folder)
    brought = bring(JOURNALS, lab)
    assert (len(brought.ids), brought.entries, brought.already, brought.written) == (0, 0, 26, [])
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


def write(folder: Path, text: str, name: str = "journal.md") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_small_journal(lab: Notebook, tmp_path: Path) -> None:
    brought = bring([write(tmp_path, JOURNAL)], lab)
    found = brought.journals[0]
    assert [one.key for one in found.experiments] == ["B", "abcd1234"]  # A is a chapter
    assert figures(found.experiments[1]) == {"reward": 0.4}
    (h,) = found.hypotheses
    assert (h.id, h.claim, h.priority, reported(h.statuses)) == ("h02", "Rewards are noisy", "low", "invalidated")
    assert found.prose == [(1, 4)]
    assert lab.hypothesis("h02").title == "Rewards are noisy"
    rest = (lab.folder / "imported" / "journal.md").read_text()
    assert "Words only." in rest
    assert "*→ H02: in the [hypotheses](../hypotheses/)*" in rest
    assert "*→ Full tuning: in the [log](../01-experiments-log.md)*" in rest


def test_a_journal_that_has_grown_brings_what_is_new(lab: Notebook, tmp_path: Path) -> None:
    bring([write(tmp_path, JOURNAL)], lab)
    lab.log.write_text(lab.log.read_text() + "\nMy own words.\n")
    more = JOURNAL + "- Loss: 0.5\n\n### C1. LoRA\n- **Outcome**: Better\n\n## H03: The mask is wrong\n"
    brought = bring([write(tmp_path, more)], lab)
    assert (len(brought.ids), brought.entries, brought.already) == (1, 1, 3)
    log = lab.log.read_text()
    assert log.count("(abcd1234)") == 1
    assert "| figures | reward 0.4, loss 0.5 |" in log
    assert "My own words." in log
    assert [h.id for h in lab.hypotheses] == ["h02", "h03"]


def test_a_number_that_is_taken_is_given_anew_and_prerequisites_follow(lab: Notebook, tmp_path: Path) -> None:
    arms = (Arm("a", {}, is_control=True), Arm("b"))
    lab.add(Hypothesis("h02", "Mine", "r.toml", arms), {})
    text = "# J\n## H01: One\n- **Prerequisites**: H02 first\n## H02: Two\n- **Issue**: x\n"
    bring([write(tmp_path, text)], lab)
    assert {h.id: (h.title, h.prerequisites) for h in lab.hypotheses} == {
        "h01": ("One", ("h03",)),
        "h02": ("Mine", ()),
        "h03": ("Two", ()),
    }


def test_a_problem_that_somebody_wrote_is_added_to(lab: Notebook, tmp_path: Path) -> None:
    path = lab.folder / "00-problem-statement.md"
    path.write_text("# Mine\n")
    source = write(tmp_path, "# The problem statement\n\nIt is flat.\n")
    bring([source], lab)
    assert path.read_text().startswith("# Mine\n")
    assert "It is flat." in path.read_text()
    before = path.read_bytes()
    bring([source], lab)
    assert path.read_bytes() == before


PIECES = """
# Title
## H01: A claim
### H01: Again ✅
## H02: 🎉
#### A1. Sweep
### B. Part
## Experiment 1.0: Try
```bash
```
--lr 1e-5 \\
- **Outcome**: flat
**Hypothesis**: it rises
**Run ID**: `abcd1234`
| H01: x | HIGH |
| H01: x | HIGH | ⏳ Pending | - | note |
<!-- uptrend:entry x -->
<!-- /uptrend:imported y -->
+++
> quoted
Run `abcd1234` achieved 0.5 reward
1. one
---
h01-x-y.md # [LOW] text
Ã©tude
	code
"""
pieces = st.sampled_from(PIECES.split("\n"))


@given(st.lists(pieces | st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20), max_size=40))
@example(["## H01: A claim", "> quoted"])
@settings(max_examples=40, deadline=None)
def test_no_line_of_any_journal_is_lost(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    lab, source = Notebook.init(folder / "lab"), write(folder, "\n".join(lines))
    bring([source], lab)
    wanted = counted(repair("\n".join(lines).removeprefix("\ufeff"))[0])
    assert not wanted - counted(everything(lab.folder))
    assert all(h.title for h in lab.hypotheses)
    before = files(lab.folder)
    bring([source], lab)
    assert files(lab.folder) == before


def test_what_can_not_be_read_is_said(lab: Notebook, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="There is no file"):
        bring([tmp_path / "none.md"], lab)
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    with pytest.raises(LabError, match=r"latin.md is not UTF-8 at byte 3: save it as UTF-8, then import it"):
        bring([tmp_path / "latin.md"], lab)


@pytest.mark.parametrize("text", ["→ ✅ 🎉 × ÷ é ä €", "naïve café", "Ã", "plain"])
def test_repair_leaves_what_is_whole(text: str) -> None:
    assert repair(text) == (text, 0)


@pytest.mark.parametrize("text", ["→", "✅", "🎉", "×", "é", "a – b", "❌", "“so”"])
def test_repair_mends_what_was_read_as_windows_1252(text: str) -> None:
    torn = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in text.encode())
    assert repair(torn)[0] == text
    assert repair("âŒ")[0] == "❌"  # as editors leave it


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("✅ **Validated**: x", "validated"),
        ("was VALIDATED!", "validated"),
        ("✅ PARTIALLY VALIDATED - y", "partially validated"),
        ("❌ Invalidated", "invalidated"),
        ("🧪 Testing", "testing"),
        ("⏳ Pending", "pending"),
        ("🤔 Inconclusive", "inconclusive"),
        ("(lo96kcmm) - FAILING", "failing"),
        ("nothing", ""),
    ],
)
def test_statuses(text: str, word: str) -> None:
    assert status_in(text) == word


def test_figures_are_what_was_measured_and_not_what_was_hoped() -> None:
    assert [(one.name, one.value) for one in figures_in("- Reward: 0.875 (87.5% accuracy!)", 1)] == [("reward", 0.875)]
    assert [(one.name, one.value) for one in figures_in("Already at 0.68 reward by epoch 12.3", 1)] == [
        ("reward", 0.68)
    ]
    assert [(one.name, one.value) for one in figures_in("| Peak Memory | 6.7 GiB |", 1)] == [("peak memory", 6.7)]
    for text in ("- Achieve >50% final accuracy", "Expected: 60% accuracy", "the predicted 25-30% accuracy range"):
        assert not figures_in(text, 1)


def test_runs_fields_and_settings() -> None:
    assert runs_in("Results (ab12cd34) and (standard)") == ["ab12cd34"]
    assert runs_in("Smaller (ulgmyabn)", {"ulgmyabn"}) == ["ulgmyabn"]
    assert fields_in("**Run ID**: `a` | **Script**: `b.py`  ") == {"Run ID": "`a`", "Script": "`b.py`"}
    assert fields_in("**Date:** 2026-02-05") == {"Date": "2026-02-05"}
    assert settings_in('lr=5e-6, loss_type="grpo", smoother than beta=0.1') == {"lr": "5e-6", "loss_type": "grpo"}
    assert settings_in('--bf16 \\\n--datasets "a,b" --lora-r 8', is_command=True) == {
        "bf16": "true", "datasets": "a,b", "lora-r": "8",
    }  # fmt: skip


def test_a_hash_in_code_is_no_heading() -> None:
    assert [section.title for section in sections_of("# A\n```bash\n# no\n```\n## B")] == ["A", "B"]


def test_the_status_that_counts() -> None:
    assert reported(("testing", "validated", "testing")) == "validated"
    assert reported(("pending", "testing")) == "testing"
    assert reported(()) == ""
    assert replace(FoundHypothesis("", "x"), statuses=("failing",)).statuses == ("failing",)
