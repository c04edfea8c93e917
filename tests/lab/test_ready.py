"""What a hypothesis can be started from: the ready ones, and every cause that arms can decide."""

from dataclasses import replace
from pathlib import Path

import pytest

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.probes import PROBES
from uptrend.lab import blocks, hypothesis_file, refuse
from uptrend.lab.draft import by_hand, find_cause, of_cause, relative, retitled
from uptrend.lab.hypothesis_file import SECTIONS
from uptrend.lab.notebook import Notebook
from uptrend.lab.ready import all_ready, of_ready
from uptrend.records import Confidence, Evidence, Finding, LabError, Priority, Severity

ROOT = Path(__file__).parents[2]
BY_ARMS = [id for id, cause in CATALOGUE.items() if cause.experiment.arms]
BY_PROBE = [id for id, cause in CATALOGUE.items() if not cause.experiment.arms and cause.experiment.probe]
BY_RECORDS = [id for id, cause in CATALOGUE.items() if not cause.experiment.arms and not cause.experiment.probe]

EVERYTHING_WRONG = """
[model]
name = "tiny"
weights = "bf16"
lora = { r = 8, dropout = 0.1 }
[tasks]
reward = "partial"
stages = [{ start = 1, high = 10 }, { start = 50 }]
[learning]
lr = 3e-4
steps = 100
warmup = 40
schedule = "linear"
skip_dead = true
max_grad_norm = 0.01
updates = 4
"""
PULLED = EVERYTHING_WRONG.replace("skip_dead = true", "kl = { beta = 0.1 }")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    Notebook.init(tmp_path / "lab")
    (tmp_path / "wrong.toml").write_text(EVERYTHING_WRONG)
    (tmp_path / "pulled.toml").write_text(PULLED)
    return tmp_path / "lab"


def base_of(id: str, lab: Path) -> Path:
    """A recipe that has what a cause is about."""
    return lab.parent / ("pulled.toml" if id in ("kl.strangles", "kl.dead-group-pull") else "wrong.toml")


def test_the_catalogue_has_both_kinds() -> None:
    assert len(BY_ARMS) >= 30
    assert len(BY_PROBE) >= 30


@pytest.mark.parametrize("id", BY_ARMS)
def test_a_cause_that_arms_decide_makes_a_whole_file(lab: Path, id: str) -> None:
    notebook = Notebook(lab)
    draft = of_cause("h01", find_cause(id), base_of(id, lab), lab)
    path = notebook.add(draft.hypothesis, draft.prose)
    h = hypothesis_file.read(path)
    assert h == draft.hypothesis
    refuse.check(h, lab)
    assert h.cause == id
    assert h.control.name == "control"
    assert {arm.name for arm in h.arms} == set(CATALOGUE[id].experiment.arms)
    assert all(draft.prose[section] for section in SECTIONS)
    assert blocks.get(path.read_text(), "results") == "Nothing was run yet."


@pytest.mark.parametrize("id", BY_PROBE)
def test_a_cause_that_a_probe_decides_names_it(lab: Path, id: str) -> None:
    probe = CATALOGUE[id].experiment.probe
    assert probe in PROBES
    with pytest.raises(LabError, match=rf"{id} can't be decided by .*uptrend preflight RECIPE --only {probe}"):
        of_cause("h01", find_cause(id), None, lab)
    with pytest.raises(LabError, match=rf"uptrend preflight .*wrong.toml --only {probe}"):
        of_cause("h01", find_cause(id), lab.parent / "wrong.toml", lab)


@pytest.mark.parametrize("id", BY_RECORDS)
def test_a_cause_that_records_decide_says_so(lab: Path, id: str) -> None:
    with pytest.raises(LabError, match=r"can't be decided by comparing arms. The doctor reads it from a run's records"):
        of_cause("h01", find_cause(id), None, lab)


def test_relative_values_are_multiplied_out_by_the_recipe(lab: Path) -> None:
    draft = of_cause("h01", find_cause("optimizer.lr-small"), lab.parent / "wrong.toml", lab)
    arms = {arm.name: arm.overrides for arm in draft.hypothesis.arms}
    assert arms["10 times"]["learning.lr"] == pytest.approx(3e-3)
    assert arms["100 times"]["learning.lr"] == pytest.approx(3e-2)
    assert arms["control"] == {"learning.warmup": 0}  # 40 steps of warm-up would outlast the 30 of the experiment
    draft = of_cause("h01", find_cause("run.too-short"), lab.parent / "wrong.toml", lab)
    assert draft.hypothesis.treated[0].overrides == {"learning.steps": 400}
    draft = of_cause("h01", find_cause("kl.runaway"), lab.parent / "wrong.toml", lab)
    arms = {arm.name: arm.overrides for arm in draft.hypothesis.arms}
    assert arms["control"] == {"learning.kl.beta": 1e-6, "learning.skip_dead": False}
    assert arms["beta 0.04"] == {"learning.kl.beta": 0.04, "learning.skip_dead": False}
    assert arms["slower"]["learning.lr"] == pytest.approx(1e-4)


def test_an_arm_that_the_recipe_has_already_is_left_out(lab: Path) -> None:
    tiny = lab.parent / "tiny.toml"
    tiny.write_text("[model]\nname = 'tiny'\nweights = 'fp32'\n")
    h = of_cause("h01", find_cause("run.nonfinite"), tiny, lab).hypothesis
    assert [arm.name for arm in h.arms] == ["control", "slower"]
    refuse.check(h, lab)


def test_pass_at_k_has_its_attempts(lab: Path) -> None:
    h = of_cause("h01", find_cause("sampling.entropy-collapse"), lab.parent / "wrong.toml", lab).hypothesis
    assert h.metric == "eval/pass@8"
    assert {arm.overrides["eval.attempts"] for arm in h.arms} == {8}


def test_a_recipe_without_what_a_cause_is_about_is_refused(lab: Path) -> None:
    tiny = lab.parent / "tiny.toml"
    tiny.write_text("[model]\nname = 'tiny'\n")
    with pytest.raises(
        LabError, match=r"policy.dropout-on is about model.lora.dropout, and ../tiny.toml has no model.lora"
    ):
        of_cause("h01", find_cause("policy.dropout-on"), tiny, lab)
    draft = of_cause("h01", find_cause("reward.scale-moves"), tiny, lab)
    with pytest.raises(LabError, match=r"control and one mix don't differ on ../tiny.toml"):
        refuse.check(draft.hypothesis, lab)


def test_an_unknown_cause_has_a_near_one() -> None:
    with pytest.raises(LabError, match=r"There is no kl.strangle in the catalogue. Did you mean kl.strangles\?"):
        find_cause("kl.strangle")
    with pytest.raises(LabError, match=r"no zzzz in the catalogue. Their ids: docs/findings/"):
        find_cause("zzzz")


def test_a_finding_brings_its_evidence(lab: Path) -> None:
    evidence = (Evidence("The KL is 0.9 at step 40."), Evidence("Accuracy is 31%."))
    finding = Finding("kl.strangles", Severity.WARNING, Confidence.MEDIUM, "The penalty holds it.", evidence)
    draft = of_cause("h02", find_cause("kl.strangles"), lab.parent / "pulled.toml", lab, finding)
    assert "found it (warning, medium confidence): The penalty holds it." in draft.prose["Description"]
    assert "- The KL is 0.9 at step 40.\n- Accuracy is 31%." in draft.prose["Description"]
    assert draft.hypothesis.priority is Priority.HIGH


def test_a_file_to_fill_in_says_what_it_lacks(lab: Path) -> None:
    draft = retitled(by_hand("h01", lab.parent / "wrong.toml", lab), "Groups are too small")
    assert draft.hypothesis.title == "Groups are too small"
    assert draft.hypothesis.recipe == "../wrong.toml"
    with pytest.raises(LabError, match=r"the arms control and changed don't differ on ../wrong.toml. Write into one"):
        refuse.check(draft.hypothesis, lab)
    with pytest.raises(LabError, match=r"Name the recipe that the arms start from with --recipe"):
        relative(None, lab)
    with pytest.raises(LabError, match=r"There is no recipe at nowhere.toml"):
        relative(Path("nowhere.toml"), lab)


def test_the_ready_ones_are_the_eight() -> None:
    assert list(all_ready()) == [f"h0{n}" for n in range(1, 9)]
    for draft in all_ready().values():
        assert all(draft.prose[section] for section in SECTIONS)
        assert blocks.get(draft.prose["Results"], "results") == "Nothing was run yet."
        assert draft.hypothesis.explains
        assert (ROOT / draft.hypothesis.recipe).is_file()


@pytest.mark.parametrize("id", all_ready())
def test_a_ready_one_can_be_decided_on_its_recipe(lab: Path, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    draft = of_ready(id, id, None, lab, [])
    h = hypothesis_file.read(Notebook(lab).add(draft.hypothesis, draft.prose))
    assert (lab / h.recipe).resolve() == ROOT / all_ready()[id].hypothesis.recipe
    assert "RECIPE" not in "".join(draft.prose.values())
    if h.arms:
        refuse.check(h, lab)
    else:
        probes = draft.prose["Validation method"].split("--only ")[1:]
        assert {probe.split()[0] for probe in probes} <= set(PROBES)
        with pytest.raises(LabError, match="a probe decides it"):
            refuse.check(h, lab)


def test_a_ready_one_waits_only_for_ready_ones_that_are_there(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first = of_ready("h01", "h05", None, lab, []).hypothesis
    assert of_ready("h03", "h06", None, lab, [first]).hypothesis.prerequisites == ("h05",)
    assert of_ready("h03", "h06", None, lab, [replace(first, title="Mine")]).hypothesis.prerequisites == ()
    with pytest.raises(LabError, match=r"There is no ready hypothesis h99; there are h01, h02"):
        of_ready("h99", "h01", None, lab, [])


def test_the_taskset_knows_the_options_that_the_ready_ones_set() -> None:
    """Options of a taskset are only checked where tasks are made; this makes them."""
    from uptrend.config import load_config
    from uptrend.config.tables import to_toml
    from uptrend.tasks.pool import heldout, pool

    for draft in all_ready().values():
        for arm in draft.hypothesis.arms:
            few = ["tasks.train=32", "eval.tasks=8"]
            sets = [*few, *(f"{key}={to_toml(value)}" for key, value in arm.overrides.items())]
            config = load_config(ROOT / draft.hypothesis.recipe, sets)
            assert pool(config, heldout(config)).describe()["count"] == 32
