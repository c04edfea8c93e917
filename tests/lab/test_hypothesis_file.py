"""A hypothesis's file: written and read back the same, both ways of writing an arm, errors with line and key."""

import dataclasses
import re
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config.tables import to_toml
from uptrend.lab.hypothesis_file import COMMENTS, SECTIONS, read, render, sections
from uptrend.records import (
    Arm,
    Confidence,
    Direction,
    Hypothesis,
    LabError,
    Method,
    Priority,
    Source,
    Status,
)

PAGE = (Path(__file__).parents[2] / "docs" / "hypotheses.md").read_text(encoding="utf-8")
KL = Hypothesis(
    id="h03",
    title="A KL penalty is required",
    recipe="../recipes/tiny.toml",
    arms=(Arm("without", {"learning.kl.beta": 0.0}, is_control=True), Arm("with", {"learning.kl.beta": 0.1})),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip)
numbers = st.one_of(st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), texts)
overrides = st.dictionaries(
    st.sampled_from(["learning.lr", "tasks.reward", "model.lora.r", "sampling.stop"]),
    st.one_of(numbers, st.lists(texts, max_size=2)),
    max_size=3,
)


def write(folder: Path, inner: str, name: str = "h03-kl.md") -> Path:
    path = folder / name
    path.write_text(f"+++\n{inner}+++\n\n# Prose\n", encoding="utf-8")
    return path


def write_and_read(h: Hypothesis, folder: Path) -> Hypothesis:
    path = folder / f"{h.id}-x.md"
    path.write_bytes(render(h, {}).encode())
    return read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hypotheses")


hypotheses = st.builds(
    Hypothesis,
    id=st.sampled_from(["h01", "h12", "h100"]),
    title=texts,
    recipe=texts,
    arms=st.dictionaries(texts, st.tuples(overrides, st.booleans()), max_size=3).map(
        lambda arms: tuple(Arm(name, *rest) for name, rest in arms.items())
    ),
    priority=st.sampled_from(Priority),
    status=st.sampled_from(Status),
    confidence=st.none() | st.sampled_from(Confidence),
    cause=st.just("kl.strangles"),
    explains=texts,
    metric=texts,
    direction=st.sampled_from(Direction),
    smallest=st.floats(0, 10),
    seeds=st.lists(st.integers(0, 99), max_size=8).map(tuple),
    alpha=st.floats(0, 1),
    steps=st.integers(0, 1000),
    method=st.sampled_from(Method),
    source=st.none() | st.builds(Source, run=texts, step=st.integers(0, 50)),
    stops_early=st.booleans(),
    validated_if=texts,
    invalidated_if=texts,
    prerequisites=st.lists(st.just("h02"), max_size=2).map(tuple),
    allows=st.lists(st.just("kl.runaway"), max_size=2).map(tuple),
)


@given(hypotheses)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read_back(folder: Path, h: Hypothesis) -> None:
    assert write_and_read(h, folder) == h


def test_every_key_is_taught() -> None:
    fields = {field.name for field in dataclasses.fields(Hypothesis)} - {"id", "arms"}
    assert set(COMMENTS) == fields
    text = render(dataclasses.replace(KL, source=Source("runs/x")), {})
    for comment in COMMENTS.values():
        assert f"# {comment}\n" in text


def test_an_example_stands_where_no_arm_says_anything() -> None:
    empty = dataclasses.replace(KL, arms=(Arm("control", {}, is_control=True), Arm("changed")))
    assert '# "learning.kl.beta" = 0.1  # for example' in render(empty, {})
    full = dataclasses.replace(KL, arms=(Arm("lora", {"model.lora.r": 8}, is_control=True), Arm("full")))
    assert "for example" not in render(full, {})
    assert "# No arms: " in render(dataclasses.replace(KL, arms=()), {})


def test_the_page_has_a_line_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ?(.*?) ?\| (.+) \|$", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == [*COMMENTS, "arms"]
    for key, kinds, default, meaning in rows:
        field = Hypothesis.__dataclass_fields__[key]
        assert meaning
        if field.default is not dataclasses.MISSING and field.default not in (None, ""):
            assert default == f"`{to_toml(field.default)}`"
        if isinstance(field.default, StrEnum):
            assert kinds == ", ".join(type(field.default))
    for section in SECTIONS:
        assert section in PAGE


def test_the_pages_example_is_read(tmp_path: Path) -> None:
    example = re.search(r"```\n(\+\+\+\n.*?)```", PAGE, re.DOTALL)
    assert example
    path = tmp_path / "h01-kl.md"
    path.write_text(example[1], encoding="utf-8")
    h = read(path)
    assert h.treated == (Arm("with", {"learning.kl.beta": 0.1, "learning.skip_dead": False}),)


def test_the_sections_stand_in_the_seeds_order() -> None:
    text = render(KL, {"Results": "Nothing yet.", "Description": "What might be wrong.", "Reported": "VALIDATED!"})
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [*SECTIONS, "Reported"]
    assert text.splitlines()[text.splitlines().index("+++", 1) + 2] == "# H03: A KL penalty is required"
    found = sections(text)
    assert found["Description"] == "What might be wrong."
    assert found["Results"] == "Nothing yet."
    assert found["Validation method"] == ""


@pytest.mark.parametrize(
    "arm",
    [
        '"learning.kl.beta" = 0.1\n"tasks.reward" = "rich"\n',
        'learning.kl.beta = 0.1\ntasks.reward = "rich"\n',
        'learning = { kl = { beta = 0.1 } }\n[arms.with.tasks]\nreward = "rich"\n',
    ],
    ids=["quoted", "dotted", "tables"],
)
def test_overrides_may_be_quoted_dotted_or_nested(tmp_path: Path, arm: str) -> None:
    path = write(tmp_path, f'title = "KL"\nrecipe = "r.toml"\n[arms.without]\ncontrol = true\n[arms.with]\n{arm}')
    h = read(path)
    assert h.id == "h03"
    assert h.control == Arm("without", {}, is_control=True)
    assert h.treated == (Arm("with", {"learning.kl.beta": 0.1, "tasks.reward": "rich"}),)
    assert (h.metric, h.seeds, h.alpha, h.status) == ("eval/accuracy", (0, 1, 2, 3, 4), 0.05, Status.PENDING)


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("seeed = [0]\n", r"h03-kl.md:2: seeed is not a known key. Did you mean seeds\?"),
        ("wobble = 1\n", r"h03-kl.md:2: wobble is not a known key. The front matter takes title, priority"),
        ("id = 'h04'\n", r"h03-kl.md:2: id is not a known key"),
        ("title = 3\n", r"h03-kl.md:2: title = 3 should be a text. Write the claim in a few words"),
        ('\nseeds = "0, 1"\n', r"h03-kl.md:3: seeds = '0, 1' should be a list"),
        ("seeds = [0, 1.5]\n", r"h03-kl.md:2: seeds\[1\] = 1.5 should be a whole number"),
        ('priority = "hihg"\n', r"priority = 'hihg' is not one of high, medium, low. Did you mean high\?"),
        ('status = "done"\n', r"status = 'done' is not one of pending, testing, validated"),
        ('confidence = "sure"\n', r"confidence = 'sure' is not one of high, medium, low"),
        ('confidence = ["high"]\n', r"confidence = \['high'\] is not one of"),
        ('source = "runs/x"\n', r"source = 'runs/x' should be a table with run, step. Write what a replay replays"),
        ("source = { step = 1 }\n", r"source.run is missing"),
        ('arms = "two"\n', r"h03-kl.md:2: write each arm as a table \[arms.NAME\]"),
        ("[arms]\nlearning = 3\n", r"write each arm as a table \[arms.NAME\]"),
        ('[arms.a]\ncontrol = "yes"\n', r"h03-kl.md:2: control = 'yes' in arm a should be true or false"),
        ("alpha = nan\n", r"h03-kl.md:2: alpha = nan is out of range"),
        ("", r"h03-kl.md: title is missing. Write the claim in a few words"),
        ('title = " "\n', r"h03-kl.md:2: title is missing"),
        ('title = "x\n', r"h03-kl.md: the front matter is not TOML: .*at line 2"),
        ('title = "x"\ntitle = "y"\n', r"the front matter is not TOML: .*at line 3"),
    ],
)
def test_errors_name_file_line_and_what_to_write(tmp_path: Path, inner: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        read(write(tmp_path, inner))


def test_a_recipe_may_come_later(tmp_path: Path) -> None:
    assert read(write(tmp_path, 'title = "x"\n')).recipe == ""


@pytest.mark.parametrize("name", ["kl.md", "h3-kl.md", "h03.md", "H03-kl.md", "h03-a b.md"])
def test_a_files_name_has_its_id(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabError, match=r"should be called hNN-a-few-words.md"):
        read(write(tmp_path, 'title = "x"\nrecipe = "y"\n', name))
