"""`uptrend explain`: causes, config keys and metrics, with their names completed and corrected."""

import json
from dataclasses import fields

import pytest

from uptrend.cli.explain import config_keys
from uptrend.cli.main import main
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records.metrics import sections
from uptrend.tasks.registry import BUILT_IN, find


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["explain", *arguments])
    told = capsys.readouterr()
    assert end.value.code == (2 if told.err.startswith("error: ") else 0)
    return told.out + told.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "optimizer.lr-large",
            ["# optimizer.lr-large", "## How to prove it", "uptrend train recipe.toml", "**TRL**"],
        ),
        ("optimiser.frozen", ["note: ", "# optimizer.frozen"]),
        (
            "learning.lr",
            [
                "# learning.lr",
                "The learning rate, once warm.",
                "number, above 0",
                "default: by the model's size",
            ],
        ),
        ("sampling.stop", ["list of texts", "default: []"]),
        ("reward/mean", ["Mean total reward.", "Flat: check dead groups first", "reward.constant"]),
        ("reward/part/exact/mean", ["# reward/part/NAME/mean"]),
        ("eval/accuracy", ["accuracy"]),
        ("lr", ["learning.lr", "warmstart.lr", "optimizer/lr"]),
        (
            "num_generations",
            [
                "error: There is no cause, config key or metric num_generations. Did you mean sampling.size?"
            ],
        ),
        (
            "learnin.lr",
            [
                "error: There is no cause, config key or metric learnin.lr. Did you mean learning.lr?"
            ],
        ),
    ],
)
def test_a_name_is_explained(
    name: str, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = explain(capsys, name)
    assert [words for words in said if words not in told] == []
    assert ".md)" not in told, "a link to a page that is not here"


def test_programs_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    cause = json.loads(explain(capsys, "kl.sign", "--json"))
    assert (cause["kind"], cause["meaning"]) == ("cause", CATALOGUE["kl.sign"].what)
    assert json.loads(explain(capsys, "learning.beta2", "--json"))["default"] == "0.999"
    lr = json.loads(explain(capsys, "learning.lr", "--json"))
    assert lr["is_chosen"]
    assert "1e-6 from there up; ten times that with model.lora" in lr["default"]
    listed = [each["name"] for each in json.loads(explain(capsys, "--json"))["names"]]
    metrics = [metric.key for section in sections() for metric in section.metrics]
    options = {
        f"tasks.{field.name}" for cls in map(find, BUILT_IN) for field in fields(cls.Options)
    }
    assert set(listed) == {*CATALOGUE, *(key.name for key in config_keys()), *metrics, *options}
    bounds = json.loads(explain(capsys, "tasks.bounds", "--json"))
    assert (bounds["kind"], bounds["meaning"][:28]) == ("option", "data: Bounds of your functio")


@pytest.mark.parametrize("id", list(CATALOGUE)[::12])
def test_a_cause_has_its_page_and_is_found_by_a_slip(
    id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(capsys, id).startswith(f"# {id}\n")
    assert f"Did you mean {id}?" in explain(capsys, id[:-1] + "_")
