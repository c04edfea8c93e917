"""The differential of runs that do not learn: what remains, why, how likely, and what to do next."""

import json
import shlex
from collections import Counter
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from curve_runs import evaluations, flat, healthy, ramp
from synthetic import info_of
from uptrend.bridge.convert import load_recipe
from uptrend.config import load_config, to_table
from uptrend.doctor import catalogue
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.differential import calibrated, lift, odds_unseen, prior
from uptrend.doctor.report import print_report, to_html, to_markdown
from uptrend.doctor.report import to_table as report_table
from uptrend.lab.roadmap import roadmap_of
from uptrend.records import Differential, LabError, RunView, Standing, Suspect

REWARD, KL, DEAD, CUT = (
    "reward/mean", "kl/reference/mean", "advantage/dead/share", "sampling/ended/length/share")  # fmt: skip
FLAT: dict[str, Any] = {REWARD: flat()}
OURS = {"trainer": "uptrend", "source": "runs/mine"}
TABLE = """
signs.records.kinds.I = { looked = 20, seen = 20, without = 100, false = 0 }
signs.scalars.kinds.C = { looked = 20, seen = 10, without = 100, false = 10 }
signs.scalars.causes."kl.runaway" = { looked = 5, seen = 5, without = 20, false = 0 }
threads.causes = { "tokens.retokenized" = 9 }
threads.counts = { total = 20, without_page = 1, no_fault = 1 }
links.explains = { hits = 9, expected = 1 }
calibration.records = { runs = 50, stated = 45, right = 35 }
probes = { asked = 18, passed = 1 }
"""


def differential(view: RunView) -> Differential:
    result = diagnose(view).differential
    assert result is not None
    return result


def suspect(view: RunView, id: str) -> Suspect:
    return next(each for each in differential(view).suspects if each.id == id)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = tmp_path / "likelihoods.toml"
    path.write_text(TABLE)
    monkeypatch.setattr(catalogue, "LIKELIHOODS_FILE", path)
    catalogue._trials.cache_clear()
    yield
    catalogue._trials.cache_clear()


@pytest.mark.parametrize(
    "learns",
    [healthy(), healthy(**FLAT, evals=evaluations(0.3, 0.5, 0.7))],
    ids=["reward", "held out"],
)
def test_a_run_that_learns_has_none(learns: RunView) -> None:
    assert diagnose(learns).differential is None


@pytest.mark.parametrize(
    "view",
    [
        healthy(**FLAT),
        healthy(**FLAT, **OURS),
        healthy(steps=1, **{REWARD: 0.0}),
        healthy(**{REWARD: ramp(0.7, 0.3, noise=0.03), KL: ramp(0, 4)}),
        healthy(**FLAT, **{DEAD: 0.9, KL: 1e-4}),
    ],
    ids=["flat", "ours", "one line", "falling", "dead"],
)
def test_every_cause_has_one_standing_evidence_and_a_probability(view: RunView) -> None:
    report = diagnose(view)
    found = report.differential
    assert found is not None
    assert Counter(each.id for each in found.suspects) == Counter(CATALOGUE.keys())
    total = found.elsewhere + sum(each.probability for each in found.suspects)
    assert total == pytest.approx(1.0)
    assert all(each.evidence and all(each.evidence) for each in found.suspects)
    assert found.elsewhere > 0

    alarms = [finding.id for finding in report.findings if finding.severity != "note"]
    supported = found.with_standing(Standing.SUPPORTED)
    assert [each.id for each in supported] == alarms, "the same order everywhere"
    assert [each.id for each in found.suspects[: len(alarms)]] == alarms
    order = list(Standing)
    ranks = [(order.index(each.standing), -each.probability) for each in found.suspects]
    assert [rank for rank, _ in ranks] == sorted(rank for rank, _ in ranks)
    for standing in Standing:
        shares = [each.probability for each in found.with_standing(standing)]
        assert shares == sorted(shares, reverse=True)


EXCLUDED: dict[str, tuple[dict[str, Any], str, str]] = {
    "by a setting": (
        {"config": {"learning": {"kl": {"beta": 0.0}}}}, "kl.strangles", "learning.kl.beta = 0.0 is in force"),
    "by a number of rollouts": (
        {"config": {"sampling": {"size": 16}}}, "sampling.few-generations", "it takes a value below 16"),
    "by a metric": ({KL: ramp(0, 0.3)}, "optimizer.lr-small", "kl/reference/mean is 0.2"),
    "by its highest value": ({CUT: 0.01}, "sampling.no-stop", "is 0.01 at most: it takes a value above 0.1"),
    "by a probe": ({"events": ({"event": "acquitted", "id": "sync.stale-weights"},)}, "sync.stale-weights", "probe"),
    "by what a log shows for certain": ({}, "run.nonfinite", "No sign in loss/total"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCLUDED)
def test_what_can_not_be_is_excluded_by_the_values_in_force(name: str) -> None:
    bent, id, words = EXCLUDED[name]
    excluded = suspect(healthy(**FLAT, **bent), id)
    assert excluded.standing is Standing.EXCLUDED
    assert words in " ".join(excluded.evidence)


def test_a_kl_that_was_never_computed_excludes_nothing() -> None:
    assert suspect(healthy(**FLAT, **{KL: 0.0}), "optimizer.lr-large").standing is Standing.POSSIBLE


@pytest.mark.usefixtures("table")
def test_preflight_that_passed_is_quoted_and_counts() -> None:
    probes = [{"name": "sign", "ok": True, "figure": "all 12 follow", "skipped": ""}]
    event = {"event": "preflight", "probes": probes, "findings": []}
    before = suspect(healthy(**FLAT, **OURS), "advantage.sign")
    after = suspect(healthy(**FLAT, **OURS, events=(event,)), "advantage.sign")
    assert before.standing is Standing.POSSIBLE
    assert after.standing is Standing.EXCLUDED, "of 18 that were asked one passed"
    assert after.probability < before.probability / 5
    assert "Preflight's probe sign passed: all 12 follow." in after.evidence


def test_a_probe_that_failed_in_one_source_or_later_did_not_pass() -> None:
    passed = {"name": "gold", "ok": True, "figure": "12 of 12", "skipped": ""}
    failed = passed | {"ok": False, "figure": "0 of 12"}
    skipped = passed | {"skipped": "no time"}
    words = "Preflight's probe gold passed"
    runs = {True: [[passed], [passed, passed]], False: [[passed, failed], [passed, skipped]]}
    for is_quoted, all_probes in runs.items():
        for probes in all_probes:
            event = {"event": "preflight", "probes": probes, "findings": []}
            view = healthy(**FLAT, **OURS, events=(event,))
            evidence = " ".join(suspect(view, "reward.gold-rejected").evidence)
            assert (words in evidence) == is_quoted, probes
    both = [{"event": "preflight", "probes": [each], "findings": []} for each in (passed, failed)]
    later = suspect(healthy(**FLAT, **OURS, events=tuple(both)), "reward.gold-rejected")
    assert words not in " ".join(later.evidence)


@pytest.mark.usefixtures("table")
def test_odds_are_what_was_measured_shrunk_toward_their_kind() -> None:
    # Of its own 5 of 5, with 5 runs of a kind of 11/22; without it 0 of 20, with 5 of 11/102.
    seen = (5 + 5 * 11 / 22) / 10
    false = (0 + 5 * 11 / 102) / 25
    expected = (1 - seen) / (1 - false)
    assert odds_unseen(CATALOGUE["kl.runaway"], "scalars") == pytest.approx(expected)
    assert odds_unseen(CATALOGUE["mask.tool-trained"], "records") < 0.1
    assert prior("tokens.retokenized") == pytest.approx(9.5)
    assert prior("kl.sign") == pytest.approx(0.5)
    assert lift("explains") == pytest.approx(5.0)
    assert lift("rivals") == pytest.approx(1.0)
    assert calibrated(0.9, "records") == pytest.approx(0.9 * 40 / 50)
    assert calibrated(0.9, "scalars") == pytest.approx(0.9)


@pytest.mark.usefixtures("table")
def test_what_would_explain_a_finding_is_likelier() -> None:
    still = {KL: 1e-4, "trainer": "trl", "config": {}}
    explaining = suspect(healthy(**FLAT, **still), "optimizer.frozen")
    assert "It would explain optimizer.lr-small." in explaining.evidence
    other = suspect(healthy(**FLAT, **still), "sync.partial")
    assert explaining.probability > 3 * other.probability


def test_the_next_command_works_for_the_run() -> None:
    ours = healthy(**FLAT, trainer="uptrend", source="runs/mine", config={"learning": {"lr": 1e-5}})
    first, *later = differential(ours).next_steps
    assert first.command == "uptrend preflight runs/mine"
    assert "reward.gold-rejected" in first.splits
    rate = next(step for step in later if step.name == "rate")
    assert rate.command == (
        "uptrend train runs/mine --set learning.lr=0.0001 --set learning.steps=20 --name rate"
    )

    theirs = healthy(**FLAT, trainer="trl")
    first, *later = differential(theirs).next_steps
    assert first.command.startswith("from uptrend.bridge.trl import watch; ")
    assert "; watch(trainer); " in first.command
    assert first.seconds is None
    rate = next(step for step in later if step.name == "rate")
    assert rate.command == "learning_rate = 0.0001, max_steps = 20"

    unknown = healthy(**FLAT, trainer="unknown", config={})
    commands = {step.name: step.command for step in differential(unknown).next_steps}
    assert commands["rate"].startswith("learning.lr = ")
    assert commands["rate"].endswith("# in Uptrend's keys")
    assert "10 × its value" in commands["rate"]
    assert "watch" not in commands


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("recipe", ["tiny", "quickstart"])
@pytest.mark.parametrize("warmup", [0, 50])
def test_every_command_for_a_recipe_loads(recipe: str, warmup: int) -> None:
    path = RECIPES / f"{recipe}.toml"
    config = to_table(load_recipe(path, ["learning.steps=100", f"learning.warmup={warmup}"]))
    bent = {KL: ramp(0, 4), "learner/entropy/mean": ramp(1, 0.01)}
    views = [
        healthy(**FLAT, **OURS, config=config),
        healthy(**{REWARD: ramp(0.7, 0.3)}, **bent, **OURS, config=config),
    ]
    commands = [step.command for view in views for step in differential(view).next_steps]
    trained = [shlex.split(command) for command in commands if " train " in command]
    assert trained
    for words in trained:
        sets = [value for flag, value in pairwise(words) if flag == "--set"]
        load_config(config, sets)


def test_a_test_that_changes_only_the_length_is_none() -> None:
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    view = healthy(**FLAT, **{DEAD: 0.9}, trainer="unknown", config={"sampling": sampling})
    names = [step.name for step in differential(view).next_steps]
    assert names
    assert "temperature" not in names
    other = healthy(**FLAT, **{DEAD: 0.9}, trainer="unknown", config={})
    (step,) = [step for step in differential(other).next_steps if step.name == "temperature"]
    assert "top_p" in step.command


def test_a_short_run_without_a_fault_may_learn() -> None:
    short = healthy(steps=6, **OURS)
    assert diagnose(short).differential is None
    nothing_earned = healthy(steps=6, **{REWARD: 0.0}, **OURS)
    assert diagnose(nothing_earned).differential is not None


def test_a_test_is_not_proposed_twice_and_costs_what_steps_cost() -> None:
    view = healthy(**FLAT, **OURS, **{"seconds/step": 30.0})
    steps = differential(view).next_steps
    decided = [id for step in steps for id in step.splits]
    assert len(decided) == len(set(decided))
    assert steps[0].seconds == pytest.approx(30 * steps[0].steps)
    probes = {cause.experiment.probe for cause in CATALOGUE.values() if cause.experiment.probe}
    rows = [{"name": name, "ok": True, "figure": "1", "skipped": ""} for name in probes]
    asked = replace(view, events=({"event": "preflight", "probes": rows, "findings": []},))
    assert "preflight" not in [step.name for step in differential(asked).next_steps]


def test_a_run_directory_is_its_own_recipe(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(info_of("mine", ("learning.lr=3e-5",))))
    config = load_recipe(tmp_path, ["learning.steps=20"])
    assert (config.learning.lr, config.learning.steps) == (3e-5, 20)
    assert load_config(to_table(config)) == config


def printed(view: RunView, lists_all: bool = False) -> str:
    page = StringIO()
    console = Console(file=page, width=200)
    print_report(diagnose(view), console, lists_all=lists_all)
    return page.getvalue()


def test_the_terminal_lists_a_few_and_all_on_request() -> None:
    few, everything = printed(healthy(**FLAT)), printed(healthy(**FLAT), lists_all=True)
    assert "What remains" in few
    assert "next: " in few
    assert "--all lists them" in few
    assert few.count(", possible") <= 5
    assert everything.count(", possible") + everything.count(", excluded") == len(CATALOGUE)
    assert "What remains" not in printed(healthy())


def test_the_json_has_it() -> None:
    found = report_table([diagnose(healthy(**FLAT))])["differential"]
    assert {each["standing"] for each in found["suspects"]} <= set(Standing)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {"command", "splits", "steps", "seconds"} <= found["next_steps"][0].keys()
    assert report_table([diagnose(healthy())])["differential"] is None
    assert np.isfinite(found["elsewhere"])


def test_pages_list_what_remains_and_the_next_command() -> None:
    report = diagnose(healthy(**FLAT))
    first = report.differential.next_steps[0] if report.differential else None
    assert first is not None
    for page in (to_markdown([report]), to_html([report])):
        assert "What remains" in page
        assert first.command in page
    assert "What remains" not in to_markdown([diagnose(healthy())])


def test_the_lab_writes_it_as_a_roadmap() -> None:
    report = diagnose(healthy(**FLAT, **{KL: 1e-4}, **OURS))
    page = roadmap_of(report)
    phases = [line for line in page.splitlines() if line.startswith("### ")]
    assert phases[0] == "### Phase 1: high priority, test these first"
    first = page.split("#### H01: ")[1].split("#### ")[0]
    assert first.startswith("optimizer.lr-small")
    for part in ("**Issue**", "**Test**", "**Time**", "**Impact**", "**Status**: ⏳ supported"):
        assert part in first
    named = [line.split(": ")[1] for line in page.splitlines() if line.startswith("#### ")]
    excluded = [
        line.split(" ")[2].rstrip(":") for line in page.splitlines() if line.startswith("- ❌")
    ]
    less_likely = page.split("Less likely: ")[1].split(".\n")[0].split(", ")
    assert sorted([*named, *excluded, *less_likely]) == sorted(CATALOGUE)
    with pytest.raises(LabError, match="no differential of a run that learns"):
        roadmap_of(diagnose(healthy()))
