"""A hypothesis's file: written and read back the same, changed by one value, errors with line and
key.
"""

import dataclasses
import re
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uptrend.lab.hypothesis_file import (
    BLOCK_FORM,
    KEY_COMMENTS,
    get_block,
    put_block,
    read,
    read_page,
    render,
    set_values,
)  # fmt: skip
from uptrend.records import Arm, Hypothesis, LabError, Source, Status

DOCS = (Path(__file__).parents[2] / "docs" / "guide" / "lab.md").read_text(encoding="utf-8")
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip)
numbers = st.one_of(
    st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), texts
)
overrides = st.dictionaries(
    st.sampled_from(["learning.lr", "tasks.reward", "model.lora.r", "sampling.stop"]),
    st.one_of(numbers, st.lists(texts, max_size=2)),
    max_size=3,
)
hypotheses = st.builds(
    Hypothesis,
    id=st.sampled_from(["h01", "h12", "h100"]),
    title=texts,
    recipe=texts,
    arms=st.dictionaries(texts, st.tuples(overrides, st.booleans()), max_size=3).map(
        lambda arms: tuple(Arm(name, *rest) for name, rest in arms.items())
    ),
    explains=texts,
    smallest=st.floats(0, 10),
    seeds=st.lists(st.integers(0, 99), max_size=8).map(tuple),
    steps=st.integers(0, 1000),
    source=st.none() | st.builds(Source, run=texts, step=st.integers(0, 50)),
    validated_if=texts,
    prerequisites=st.lists(st.just("h02"), max_size=2).map(tuple),
    allows=st.lists(st.just("kl.runaway"), max_size=2).map(tuple),
    **dict.fromkeys(
        ("priority", "status", "confidence", "direction", "method", "stops_early"), ...
    ),  # by their types
)


def write(folder: Path, inner: str, name: str = "h03-kl.md") -> Path:
    path = folder / name
    path.write_bytes(f"+++\n{inner}+++\n\n# Prose\n".encode())
    return path


@given(hypotheses)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, h: Hypothesis
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{h.id}-x.md"
    path.write_bytes(render(h, {}).encode())
    assert read(path) == h


def test_every_key_is_taught_in_the_file() -> None:
    text = render(Hypothesis("h03", "KL", "r.toml", (), source=Source("runs/x")), {})
    assert all(f"# {comment}\n" in text for comment in KEY_COMMENTS.values())
    assert set(KEY_COMMENTS) == {field.name for field in dataclasses.fields(Hypothesis)} - {
        "id",
        "arms",
    }


def test_the_pages_example_is_read(tmp_path: Path) -> None:
    example = re.search(r"```\n(\+\+\+\n.*?)```", DOCS, re.DOTALL)
    assert example
    path = tmp_path / "h01-kl.md"
    path.write_text(example[1], encoding="utf-8")
    assert read(path).treated == (
        Arm("with", {"learning.kl.beta": 0.1, "learning.skip_dead": False}),
    )


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
    h = read(write(tmp_path, f'title = "KL"\n[arms.without]\ncontrol = true\n[arms.with]\n{arm}'))
    assert (h.id, h.recipe, h.control) == ("h03", "", Arm("without", {}, is_control=True))
    assert h.treated == (Arm("with", {"learning.kl.beta": 0.1, "tasks.reward": "rich"}),)
    assert (h.metric, h.seeds, h.alpha, h.status) == (
        "eval/accuracy",
        (0, 1, 2, 3, 4),
        0.05,
        Status.PENDING,
    )


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("seeed = [0]\n", r"h03-kl.md:2: seeed is not a known key. Did you mean seeds\?"),
        (
            "wobble = 1\n",
            r"h03-kl.md:2: wobble is not a known key. The front matter takes title, priority",
        ),
        ("id = 'h04'\n", r"h03-kl.md:2: id is not a known key"),
        ("title = 3\n", r"h03-kl.md:2: title = 3 should be a text. Write the claim in a few words"),
        ('\nseeds = "0, 1"\n', r"h03-kl.md:3: seeds = '0, 1' should be a list"),
        (
            'priority = "hihg"\n',
            r"priority = 'hihg' is not one of high, medium, low. Did you mean high\?",
        ),
        ('confidence = ["high"]\n', r"confidence = \['high'\] is not one of"),
        ("source = { step = 1 }\n", r"source.run is missing"),
        ('arms = "two"\n', r"h03-kl.md:2: write each arm as a table \[arms.NAME\]"),
        ("[arms]\nlearning = 3\n", r"write each arm as a table \[arms.NAME\]"),
        (
            '[arms."a b"]\ncontrol = "yes"\n',
            r"h03-kl.md:2: control = 'yes' in arm a b should be true or false",
        ),
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


@pytest.mark.parametrize("name", ["kl.md", "h3-kl.md", "h03.md", "H03-kl.md", "h03-a b.md"])
def test_a_files_name_has_its_id(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabError, match=r"should be called hNN-a-few-words.md"):
        read(write(tmp_path, 'title = "x"\nrecipe = "y"\n', name))


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"+++\n\xff\n+++\n")
    (tmp_path / "prose").write_text("# Title\n")
    (tmp_path / "open").write_text('+++\ntitle = "x"\n')
    said = {"none": "There is no file", "bad": "not UTF-8 at byte 4", ".": "could not be read"}
    said |= {
        "prose": r"prose:1: a hypothesis begins with a line \+\+\+",
        "open": r"not closed. Write a line \+\+\+",
    }
    for name, why in said.items():
        with pytest.raises(LabError, match=why):
            read_page(tmp_path / name)


SETTINGS = {
    "title": 'title = "KL"  # status = "no"',
    "status": 'status = "pending"   # the machine\'s',
    "confidence": "'confidence' = ''",
    "explains": 'explains = """\nstatus = "pending"\nconfidence = "low"\n"""',
    "seeds": 'seeds = [\n  0,  # status = "pending"\n  1,\n]',
}


@st.composite
def pages(draw: st.DrawFn) -> str:
    """A file as a hand may leave it: any order, comments, blank lines, texts that look like
    settings.
    """
    lines = list[str]()
    for key in draw(st.permutations(list(SETTINGS))):
        comment = draw(st.text(string.ascii_letters + " =#[]'", max_size=30))
        lines += (
            [f"# {comment}"] * draw(st.booleans()) + [SETTINGS[key]] + [""] * draw(st.booleans())
        )
    arms = '[arms."a b"]\nstatus = "pending"\ncontrol = true'
    head = "\n".join(["+++", *lines, arms, "+++", ""]).replace(
        "\n", draw(st.sampled_from(["\n", "\r\n"]))
    )
    return head + draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))


@given(pages())
@settings(max_examples=200, deadline=None)
def test_setting_status_and_confidence_changes_two_lines_and_no_other_byte(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "h01-x.md"
    path.write_bytes(text.encode())
    page = read_page(path)
    new = set_values(page, {"status": "validated", "confidence": "high"})
    old_lines, new_lines = text.split("\n"), (new.head + new.body).split("\n")
    changed = [
        place for place, (a, b) in enumerate(zip(old_lines, new_lines, strict=True)) if a != b
    ]
    assert len(changed) == 2
    assert new.table == {**page.table, "status": "validated", "confidence": "high"}
    assert new.table["arms"]["a b"]["status"] == "pending"
    assert set_values(new, {"status": "pending", "confidence": ""}).table == page.table
    assert set_values(new, {"status": "validated"}) == new


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_absent_key_gets_a_line_at_the_top_and_every_other_byte_is_kept(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "h01-x.md"
    rest = f'title = "x"  # mine{end}[arms.a]{end}status = "pending"{end}+++{end}Text\x0c\u2028more'
    path.write_bytes(f"\ufeff+++{end}{rest}".encode())
    new = set_values(read_page(path), {"status": "testing"})
    assert new.head + new.body == f'\ufeff+++{end}status = "testing"{end}{rest}'


unmarked = st.text(st.characters(exclude_categories=["Cs"]), max_size=120).filter(
    lambda text: "uptrend:" not in text
)
contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=80)
OPEN, CLOSE = "<!-- uptrend:results -->", "<!-- /uptrend:results -->"
RESULTS = f"{OPEN}\nx\n{CLOSE}\n"


@given(unmarked, unmarked, contents, contents)
@settings(max_examples=100, deadline=None)
def test_replacing_a_block_leaves_every_byte_around_it(
    before: str, after: str, old: str, new: str
) -> None:
    written = put_block(f"{before}\n{OPEN}\n{old}\n{CLOSE}\n{after}", "results", new)
    assert written.startswith(f"{before}\n{OPEN}")
    assert written.endswith(f"{CLOSE}\n{after}")
    assert put_block(written, "results", new) == written


@given(unmarked, contents.filter(lambda text: "uptrend:" not in text))
@example("\r", "")
@settings(max_examples=100, deadline=None)
def test_a_new_block_keeps_all_that_was_there(text: str, content: str) -> None:
    written = put_block(text, "results", content, "## Results")
    assert written.startswith(text)
    end = "\r\n" if "\r\n" in text or text.endswith("\r") else "\n"
    assert get_block(written, "results") == content.strip("\r\n").replace("\n", end)
    assert put_block(written, "results", content, "## Results") == written


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        (
            "## Results\n\nMine.\n\n## Next\n",
            "## Results",
            f"## Results\n\n{RESULTS}\nMine.\n\n## Next\n",
        ),
        ("## Results", "## Results", f"## Results\n\n{RESULTS}"),
        ("## Results in short\n", "## Results", f"## Results in short\n\n## Results\n\n{RESULTS}"),
        ("Log.\n", "", f"Log.\n\n{RESULTS}"),
        (
            "a\r\n## Results\r\nb\r\n",
            "## Results",
            f"a\n## Results\n\n{RESULTS}\nb\n".replace("\n", "\r\n"),
        ),
    ],
)
def test_where_a_new_block_goes(text: str, after: str, expected: str) -> None:
    assert put_block(text, "results", "x", after) == expected


def test_content_can_not_end_its_own_block_and_marks_come_in_pairs() -> None:
    text = put_block("", "results", f"{CLOSE}\n<!-- uptrend:status -->\nmore")
    assert (
        get_block(text, "results")
        == "&lt;!-- /uptrend:results -->\n&lt;!-- uptrend:status -->\nmore"
    )
    assert [name for name, _ in BLOCK_FORM.findall(text)] == ["results"]
    assert get_block(f"see {OPEN} and {CLOSE}", "results") is None
    for broken in (OPEN, CLOSE, f"{CLOSE}\n{OPEN}", f"{OPEN}\n{CLOSE}\n{OPEN}\n{CLOSE}"):
        with pytest.raises(LabError, match="The marks of the block results are not a pair"):
            put_block(broken, "results", "x")
