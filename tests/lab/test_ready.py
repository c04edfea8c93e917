"""Hypotheses to start from: the ready ones, and every cause that arms can decide."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.config.tables import to_toml
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.probes import PROBES
from uptrend.lab import hypothesis_file, refuse
from uptrend.lab.draft import all_ready, blank_draft, draft_from_cause, draft_from_ready, find_cause
from uptrend.lab.hypothesis_file import SECTION_NAMES, get_block
from uptrend.lab.measure import titled
from uptrend.lab.notebook import Notebook
from uptrend.records import Basis, Evidence, Finding, LabError, Priority, Severity
from uptrend.records.metrics import LEVEL_OUTCOMES, outcome_of
from uptrend.tasks.pool import make_heldout, make_pool

ROOT = Path(__file__).parents[2]
BY_ARMS = [id for id, cause in CATALOGUE.items() if cause.experiment.arms]
NOT_BY_ARMS = [id for id, cause in CATALOGUE.items() if not cause.experiment.arms]

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
RECIPES = {
    "wrong": EVERYTHING_WRONG,
    "pulled": EVERYTHING_WRONG.replace("skip_dead = true", "kl = { beta = 0.1 }"),
    "tiny": "[model]\nname = 'tiny'\nweights = 'fp32'\n",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    Notebook.init(tmp_path / "lab")
    for name, text in RECIPES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path / "lab"


def arms_of(id: str, lab: Path, recipe: str = "wrong") -> dict[str, dict[str, object]]:
    h = draft_from_cause("h01", find_cause(id), lab.parent / f"{recipe}.toml", lab).hypothesis
    return {arm.name: dict(arm.overrides) for arm in h.arms}


@pytest.mark.parametrize("id", BY_ARMS)
def test_a_cause_that_arms_decide_makes_a_whole_file(lab: Path, id: str) -> None:
    recipe = "pulled" if id in ("kl.strangles", "kl.dead-group-pull") else "wrong"
    draft = draft_from_cause("h01", find_cause(id), lab.parent / f"{recipe}.toml", lab)
    path = Notebook(lab).add(draft.hypothesis, draft.prose)
    h = hypothesis_file.read(path)
    assert h == draft.hypothesis
    refuse.check(h, lab)
    assert h.cause == id
    assert h.control.name == "control"
    assert {arm.name for arm in h.arms} == set(CATALOGUE[id].experiment.arms)
    assert all(draft.prose[section] for section in SECTION_NAMES)
    assert get_block(path.read_text(), "results") == "Nothing was run yet."


@pytest.mark.parametrize("id", NOT_BY_ARMS)
def test_a_cause_that_a_probe_or_records_decide_says_so(lab: Path, id: str) -> None:
    probe = CATALOGUE[id].experiment.probe
    assert not probe or probe in PROBES
    for recipe, named in ((None, "RECIPE"), (lab.parent / "wrong.toml", ".*wrong.toml")):
        decides = (
            f"uptrend preflight {named} --only {probe}"
            if probe
            else "The doctor reads it from a run's records"
        )
        with pytest.raises(LabError, match=rf"{id} can't be decided by comparing arms.*{decides}"):
            draft_from_cause("h01", find_cause(id), recipe, lab)


def test_arms_are_made_concrete_by_the_recipe(lab: Path) -> None:
    assert len(BY_ARMS) >= 30
    arms = arms_of("optimizer.lr-small", lab)
    assert [arms[name]["learning.lr"] for name in ("higher", "much higher")] == pytest.approx(
        [3e-3, 3e-2]
    )
    assert arms["control"] == {
        "learning.warmup": 0
    }  # 40 steps of warm-up would outlast the 30 of the experiment
    assert {"learning.steps": 400} in arms_of("run.too-short", lab).values()
    arms = arms_of("kl.runaway", lab)
    assert arms["control"] == {"learning.kl.beta": 1e-6, "learning.skip_dead": False}
    assert arms["near"] == {"learning.kl.beta": 0.04, "learning.skip_dead": False}
    assert arms["slower"]["learning.lr"] == pytest.approx(1e-4)
    assert list(arms_of("run.nonfinite", lab, "tiny")) == [
        "control",
        "slower",
    ]  # fp32 is what the recipe has
    assert {arm["eval.attempts"] for arm in arms_of("sampling.entropy-collapse", lab).values()} == {
        8
    }
    h = draft_from_cause(
        "h01", find_cause("sampling.entropy-collapse"), lab.parent / "wrong.toml", lab
    ).hypothesis
    assert h.metric == "eval/pass@8"


def test_a_recipe_that_the_cause_is_not_about_is_refused(lab: Path) -> None:
    with pytest.raises(
        LabError, match=r"is about model.lora.dropout, and ../tiny.toml has no model.lora"
    ):
        arms_of("policy.dropout-on", lab, "tiny")
    (lab.parent / "broken.toml").write_text("[model]\nnames = 1\n")
    with pytest.raises(LabError, match=r"model.names is not a known key"):
        arms_of("optimizer.lr-small", lab, "broken")


def test_a_finding_brings_its_evidence(lab: Path) -> None:
    evidence = (Evidence("The KL is 0.9 at step 40."), Evidence("Accuracy is 31%."))
    finding = Finding(
        "kl.strangles", Severity.WARNING, Basis.SIGNAL, "The penalty holds it.", evidence
    )
    draft = draft_from_cause(
        "h02", find_cause("kl.strangles"), lab.parent / "pulled.toml", lab, finding
    )
    assert "(warning, medium confidence): The penalty holds it." in draft.prose["Description"]
    assert "- The KL is 0.9 at step 40.\n- Accuracy is 31%." in draft.prose["Description"]
    assert draft.hypothesis.priority is Priority.HIGH


def test_a_file_to_fill_in_lacks_its_arms(lab: Path) -> None:
    draft = blank_draft("h01", lab.parent / "wrong.toml", lab)
    assert list(draft.prose) == list(SECTION_NAMES)
    with pytest.raises(
        LabError, match=r"the arms control and changed don't differ on ../wrong.toml"
    ):
        refuse.check(draft.hypothesis, lab)


@pytest.mark.parametrize("id", all_ready())
def test_a_ready_one_can_be_decided_on_its_recipe(lab: Path, id: str) -> None:
    draft = draft_from_ready(id, id, None, lab, [])
    h = hypothesis_file.read(Notebook(lab).add(draft.hypothesis, draft.prose))
    assert h.explains
    assert all(draft.prose[section] for section in SECTION_NAMES)
    assert get_block(draft.prose["Results"], "results")
    assert (lab / h.recipe).resolve() == ROOT / all_ready()[id].hypothesis.recipe
    assert "RECIPE" not in "".join(draft.prose.values())
    if not h.arms:
        probes = draft.prose["Validation method"].split("--only ")[1:]
        assert {probe.split()[0] for probe in probes} <= set(PROBES)
        with pytest.raises(LabError, match="a probe decides it"):
            refuse.check(h, lab)
        return
    refuse.check(h, lab)
    for arm in h.arms:  # options of a taskset are only checked where tasks are made
        sets = [f"{key}={to_toml(value)}" for key, value in arm.overrides.items()]
        config = load_config(lab / h.recipe, [*sets, "tasks.train=32", "eval.tasks=8"])
        assert make_pool(config, make_heldout(config)).describe()["count"] == 32


# Words by which sentences told what nobody had measured.
CLAIMS = re.compile(
    r"collaps|hold|stay|rise|keep|teach|learns? (?!rate)|go away|exactly|no update|every value|is left",
    re.I,
)


@pytest.mark.parametrize(
    "id", [*BY_ARMS, *(id for id, draft in all_ready().items() if draft.hypothesis.arms)]
)
def test_a_claim_says_what_is_measured_and_nothing_else(lab: Path, id: str) -> None:
    if id in CATALOGUE:
        recipe = "pulled" if id in ("kl.strangles", "kl.dead-group-pull") else "wrong"
        h = draft_from_cause("h01", find_cause(id), lab.parent / f"{recipe}.toml", lab).hypothesis
    else:
        h = draft_from_ready(id, "h01", None, lab, []).hypothesis
    condition, comma, outcome = h.title.rpartition(", ")
    assert comma
    assert outcome == outcome_of(h.metric, h.direction)
    assert not CLAIMS.search(condition), condition
    assert titled(h) == h.title
    # A claim that another metric is put under does not lend it its words.
    other = replace(h, metric="eval/reward")
    assert titled(other) == f"{h.title} (measured: held-out reward {LEVEL_OUTCOMES[h.direction]})"


def test_the_cure_of_a_collapse_is_measured_by_the_fall() -> None:
    for id in ("run.collapsed", "optimizer.lr-large"):
        experiment = CATALOGUE[id].experiment
        assert (experiment.metric, experiment.direction) == ("reward/mean/fall", "down")
        assert experiment.claim.endswith(", the fall of training reward from its best is smaller.")


def test_a_ready_one_waits_only_for_ready_ones_that_are_there(lab: Path) -> None:
    first = draft_from_ready("h01", "h05", None, lab, []).hypothesis
    assert draft_from_ready("h03", "h06", None, lab, [first]).hypothesis.prerequisites == ("h05",)
    assert (
        draft_from_ready(
            "h03", "h06", None, lab, [replace(first, title="Mine")]
        ).hypothesis.prerequisites
        == ()
    )
