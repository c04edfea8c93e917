"""The fault benchmark end to end: real runs with a planted cause, and one without, as the
scoreboard counts them.
"""

import json
from pathlib import Path

import pytest
from benchmarks.faults.board import upper_bound
from benchmarks.faults.case import all_cases, cases_of, healthy_cases, sampled_cases
from benchmarks.faults.fault import Fault
from benchmarks.faults.judge import Said, is_among, is_first, is_fixed, judge_case, until
from benchmarks.faults.make import make_run
from benchmarks.faults.mapping import PEERS
from benchmarks.faults.planted import FAULTS

from uptrend.bridge.importers import read_views
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.records import Run, view_of


@pytest.mark.parametrize(
    "id", ["mask.attention-blind", "reward.misaligned", "precision.update-underflow"]
)
def test_a_planted_cause_is_named_first_before_the_first_update(id: str, tmp_path: Path) -> None:
    judged = judge_case(make_run(cases_of(FAULTS[id])[0], tmp_path))
    assert judged.full.alarms[0] == id
    assert judged.noticed_at == 0
    assert ("precision.mismatch" in judged.sampled.alarms) is (id == "mask.attention-blind")
    assert judged.fault is not None
    assert is_fixed(judged.full, judged.fault)


def test_a_healthy_run_is_left_alone_and_its_scalars_are_read_as_trls(tmp_path: Path) -> None:
    case = next(c for c in healthy_cases() if c.name == "healthy~sums~plain")
    short = type(case)(**{**vars(case), "steps": 12})
    folder = make_run(short, tmp_path)
    judged = judge_case(folder)
    assert judged.full.alarms == () == judged.scalars.alarms == judged.sampled.alarms
    (more,) = read_views(folder / "with_vllm.json")
    assert 0 < more.curve("sampler/gap/mean")[1].max() < 1e-4, "fp32 on both sides"
    view = view_of(Run(folder / "run"))
    (log,) = read_views(folder / "trainer_state.json")
    assert log.trainer == "trl"
    for metric in ("reward/mean", "learner/entropy/mean", "gradient/norm/before"):
        assert log.curve(metric)[1].tolist() == view.curve(metric)[1].tolist()
    assert not log.has("kl/reference/mean")
    early = until(view, 4)
    assert (len(early.steps), early.rollout_steps[-1], early.evals[-1]["step"]) == (4, 4, 0)


def test_the_ward_covers_the_catalogue() -> None:
    assert len(FAULTS) >= 45
    for fault in FAULTS.values():
        assert fault.right <= CATALOGUE.keys()
    assert len(healthy_cases()) >= 25
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    assert {case.name for case in sampled_cases()} <= set(names)
    assert all(case.half == "fitting" for case in all_cases() if case.recipe == "sums")
    assert all(id in CATALOGUE for means in PEERS.values() for ids in means.values() for id in ids)


def test_a_score_counts_what_stands_first() -> None:
    fault = Fault("optimizer.lr-small", (), fix=("learning.lr",))
    said = Said(("kl.strangles", "optimizer.lr-small"), (("learning.kl.beta",), ("learning.lr",)))
    assert (is_first(said, fault), is_among(said, fault), is_fixed(said, fault)) == (
        False,
        True,
        False,
    )
    right = Said(("optimizer.lr-small",), (("learning.lr",),))
    assert (is_first(right, fault), is_fixed(right, fault)) == (True, True)
    assert not is_first(Said(()), fault)


def test_no_alarm_in_thirty_runs_still_has_an_upper_bound() -> None:
    assert upper_bound(0, 30) == pytest.approx(1 - 0.05 ** (1 / 30))
    assert upper_bound(0, 30) == pytest.approx(3 / 30, rel=0.06)  # the rule of three
    assert upper_bound(3, 3) == 1.0


def test_ids_that_the_pages_plant_can_be_planted() -> None:
    import re

    pages = [cause_page(cause) for cause in CATALOGUE.values()]
    named = {id for page in pages for id in re.findall(r"benchmarks\.faults ([a-z.-]+)", page)}
    assert named <= set(FAULTS), named - set(FAULTS)


def test_a_case_keeps_what_was_planted(tmp_path: Path) -> None:
    case = cases_of(FAULTS["advantage.sign"])[0]
    folder = make_run(type(case)(**{**vars(case), "steps": 1}), tmp_path)
    facts = json.loads((folder / "case.json").read_text())
    assert (facts["fault"], facts["half"], Run(folder / "run").last_step) == (
        "advantage.sign",
        "fitting",
        1,
    )
    assert make_run(case, tmp_path) == folder  # what is there is left alone
