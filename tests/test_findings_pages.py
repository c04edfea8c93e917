"""The findings' pages: one for each cause, whole, and true to the catalogue, the config and the metrics."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.resolve import complete_fix
from uptrend.records import ConfigError, Times
from uptrend.records.metrics import find_metric
from uptrend.tasks import registry

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "findings"
HEADINGS = [
    "What it is",
    "How it shows",
    "A real figure",
    "What else it could be",
    "How to prove it",
    "How to fix it",
]
TRAINERS = {"uptrend": "Uptrend", "trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl", "verl": "verl"}
ROOMS = "reward|advantage|sampling|sampler|learner|clip|kl|loss|gradient|optimizer|weights|tokens|seconds|eval"
NO_FIGURE = re.compile(r"No figure")

by_id = pytest.mark.parametrize("id", sorted(CATALOGUE))


def read(id: str) -> str:
    return (FOLDER / f"{id}.md").read_text(encoding="utf-8")


def section(id: str, heading: str) -> str:
    """What stands under a heading."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", read(id), re.MULTILINE | re.DOTALL)
    assert found, f"{id} has no section {heading!r}"
    return found[1].strip()


def fix_of(id: str, trainer: str) -> str:
    """The line of a trainer in the fix, or nothing."""
    found = re.search(rf"^- \*\*{TRAINERS[trainer]}\*\*.*$", section(id, "How to fix it"), re.MULTILINE)
    return found[0] if found else ""


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def is_known(key: str) -> bool:
    """Whether a dotted key is one of the config, or an option of a taskset."""
    room, _, rest = key.partition(".")
    options = {each.name for name in registry.names() for each in fields(registry.find(name).Options)}
    if room in ("tasks", "eval") and rest.split(".")[0] in options:
        return True
    try:
        load_config({}, [f"{key}=[[]]"])  # no value of any key: a known key is refused for its value
    except ConfigError as error:
        return str(error).startswith((f"{key} ", f"{key}[")) and "is not a known key" not in str(error)
    return False


def test_every_id_has_a_page_and_every_page_an_id() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} - {"README"} == set(CATALOGUE)


@by_id
def test_a_page_has_all_its_sections(id: str) -> None:
    text = read(id)
    assert text.startswith(f"# {id}\n\n{CATALOGUE[id].what}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert all(len(section(id, heading)) > 30 for heading in HEADINGS)
    assert 20 <= len(text.splitlines()) <= 55


@by_id
def test_a_figure_is_given_or_said_to_be_missing(id: str) -> None:
    figure = section(id, "A real figure")
    if NO_FIGURE.search(figure):
        assert f"python -m benchmarks.faults {id}" in figure or " 0" in figure
    else:
        assert re.search(r"\d", figure)


@by_id
def test_rivals_are_the_catalogues(id: str) -> None:
    lines = section(id, "What else it could be").splitlines()
    assert len(lines) == len(CATALOGUE[id].rivals)
    for line, rival in zip(lines, CATALOGUE[id].rivals, strict=True):
        name = f"[{rival.id}]({rival.id}.md)" if rival.id in CATALOGUE else rival.id
        assert line.lower() == f"- {name}: {rival.tells_apart}.".lower()


@by_id
def test_the_proof_is_the_catalogues_experiment(id: str) -> None:
    experiment, proof = CATALOGUE[id].experiment, section(id, "How to prove it")
    assert "```bash\nuptrend " in proof
    assert f"--only {experiment.probe}\n" in proof if experiment.probe else True
    for name, keys in experiment.arms.items():
        line = next(line for line in proof.splitlines() if f"--name {name.replace(' ', '-')}" in line)
        assert all(f"{key}=" in line for key in keys)


@by_id
def test_commands_set_values_that_load(id: str) -> None:
    for line in section(id, "How to prove it").splitlines():
        if line.startswith("uptrend train"):
            load_config({}, re.findall(r"--set '?([^\s']+)'?", line))


@by_id
def test_the_fix_is_the_catalogues(id: str) -> None:
    assert CATALOGUE[id].fix.sentence in section(id, "How to fix it")
    for trainer, changes in complete_fix(CATALOGUE[id].fix).changes.items():
        line = fix_of(id, trainer)
        for key, value in changes.items():
            assert key in line, (trainer, key)
            assert _says(line, value), (trainer, key, value)


def _says(line: str, value: Any) -> bool:
    if isinstance(value, Times):
        return "its value" in line
    if isinstance(value, bool):
        return str(value).lower() in line.lower()
    if isinstance(value, int | float):
        return f"{value:g}" in line
    return not isinstance(value, str) or value in line


@by_id
def test_uptrend_keys_of_the_fix_exist(id: str) -> None:
    named = [re.match(r"[a-z_]+(\.[a-z_]+)+", span) for span in spans(fix_of(id, "uptrend"))]
    for key in (found[0] for found in named if found):
        assert is_known(key), key


def test_an_unknown_key_is_seen() -> None:
    assert is_known("learning.kl.beta")
    assert is_known("model.lora.targets")
    assert is_known("tasks.scale_by_hops")
    assert not is_known("learning.lrr")
    assert not is_known("sampling.size.of")


@by_id
def test_metrics_named_are_those_of_the_metrics_page(id: str) -> None:
    for span in spans(section(id, "How it shows")):
        if re.fullmatch(rf"({ROOMS})(/[\w-]+)+", span):
            assert find_metric(span) is not None, span


@by_id
def test_links_lead_somewhere(id: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", read(id))
    assert all((FOLDER / target).exists() for target in targets if "://" not in target)


def test_the_index_has_every_page_with_what_it_is() -> None:
    index = read("README")
    rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\.md\) \| ([IPC]) \| (.+) \|$", index, re.MULTILINE)
    assert {id: (link, kind, what) for id, link, kind, what in rows} == {
        id: (id, cause.kind.value, cause.what) for id, cause in CATALOGUE.items()
    }
    assert len(rows) == len(CATALOGUE)
