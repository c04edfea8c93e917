"""The head of a hypothesis's file: read with its lines, changed by one value, otherwise byte for byte."""

import string
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.lab.front_matter import Page, read_page, set_value, split
from uptrend.records import LabError

PATH = Path("h01-x.md")
prose = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
words = st.text(string.ascii_letters + " =#[]'", max_size=30)
line_ends = st.sampled_from(["\n", "\r\n"])
keys = st.permutations(["title", "status", "confidence", "explains", "seeds"])
SETTINGS = {
    "title": 'title = "KL"  # status = "no"',
    "status": 'status = "pending"   # the machine\'s',
    "confidence": "'confidence' = ''",
    "explains": 'explains = """\nstatus = "pending"\nconfidence = "low"\n"""',
    "seeds": 'seeds = [\n  0,  # status = "pending"\n  1,\n]',
}


@st.composite
def pages(draw: st.DrawFn) -> str:
    """A file as a hand may leave it: any order, comments, blank lines, texts that look like settings."""
    end = draw(line_ends)
    lines = list[str]()
    for key in draw(keys):
        lines += [f"# {draw(words)}"] * draw(st.booleans()) + [SETTINGS[key]] + [""] * draw(st.booleans())
    arms = '[arms."a b"]\nstatus = "pending"\ncontrol = true'
    head = "\n".join(["+++", *lines, arms, "+++", ""]).replace("\n", end)
    return head + draw(prose)


@given(pages())
@settings(max_examples=200, deadline=None)
def test_setting_status_and_confidence_changes_two_lines_and_no_other_byte(text: str) -> None:
    page = split(text, PATH)
    assert page.head + page.body == text
    new = set_value(set_value(page, "status", "validated"), "confidence", "high")
    old_lines, new_lines = text.split("\n"), (new.head + new.body).split("\n")
    changed = [place for place, (a, b) in enumerate(zip(old_lines, new_lines, strict=True)) if a != b]
    assert len(changed) == 2
    assert new.body == page.body
    assert new.table == {**page.table, "status": "validated", "confidence": "high"}
    assert new.table["arms"]["a b"]["status"] == "pending"
    back = set_value(set_value(new, "status", "pending"), "confidence", "")
    assert back.table == page.table
    assert set_value(new, "status", "validated") is new


def test_a_comment_behind_the_value_stays() -> None:
    page = split('+++\nstatus = "pending"   # mine\n+++\n', PATH)
    assert set_value(page, "status", "testing").head == '+++\nstatus = "testing"   # mine\n+++\n'


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_key_that_is_absent_gets_a_line_at_the_top(end: str) -> None:
    page = split(f'+++{end}title = "x"{end}[arms.a]{end}status = "pending"{end}+++{end}text', PATH)
    new = set_value(page, "status", "testing")
    assert new.head == f'+++{end}status = "testing"{end}title = "x"{end}[arms.a]{end}status = "pending"{end}+++{end}'


def test_a_value_over_several_lines_is_refused_with_what_to_write() -> None:
    page = split('+++\nstatus = """\npending"""\n+++\n', PATH)
    with pytest.raises(LabError, match=r'h01-x.md:2: write status on a line of its own, as status = "pending"'):
        set_value(page, "status", "testing")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"h01-x.md:1: a hypothesis begins with a line \+\+\+"),
        ("# Title\n", r"begins with a line \+\+\+"),
        ('+++\ntitle = "x"\n', r"not closed. Write a line \+\+\+ between"),
    ],
)
def test_missing_fences(text: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        split(text, PATH)


def test_lines_are_counted_from_the_files_first() -> None:
    page = split('+++\ntitle = "x"\nseeds = [0, 1\nalpha = 0.05\n+++\n', PATH)
    with pytest.raises(LabError, match=r"h01-x.md: the front matter is not TOML: .*at line 4"):
        _ = page.table
    page = split('+++\ntitle = "x"\n\nalpha = 0.05\n[arms."a b"]\n[arms.c]\n+++\n', PATH)
    assert [page.line_of(key) for key in ("title", "alpha", "arms.a b", "arms.c", "steps")] == [2, 4, 5, 6, None]


def test_a_byte_order_mark_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "h01-x.md"
    path.write_bytes(b'\xef\xbb\xbf+++\r\nstatus = "pending"\r\n+++\r\nText\x0c\xe2\x80\xa8more')
    new = set_value(read_page(path), "status", "testing")
    assert (new.head + new.body).encode() == path.read_bytes().replace(b"pending", b"testing")


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"There is no file"):
        read_page(tmp_path / "h01-x.md")
    (tmp_path / "h02-x.md").write_bytes(b"+++\n\xff\n+++\n")
    with pytest.raises(LabError, match=r"not UTF-8 at byte 4: save it as UTF-8"):
        read_page(tmp_path / "h02-x.md")
    with pytest.raises(LabError, match=r"could not be read"):
        read_page(tmp_path)


def test_head_and_body_are_the_file() -> None:
    page = Page(PATH, '+++\na = "1"\n+++\n', "\n# x")
    assert tomllib.loads(page.inner) == page.table == {"a": "1"}
