"""The machine's blocks: replaced in place, put under a heading, and nothing outside them touched."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uptrend.lab.blocks import closing, get, names, opening, put
from uptrend.records import LabError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120).filter(lambda text: "uptrend:" not in text)
contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=80)


@given(texts, texts, contents, contents)
@settings(max_examples=200, deadline=None)
def test_replacing_a_block_leaves_every_byte_around_it(before: str, after: str, old: str, new: str) -> None:
    text = f"{before}\n{opening('results')}\n{old}\n{closing('results')}\n{after}"
    written = put(text, "results", new)
    assert written.startswith(f"{before}\n{opening('results')}")
    assert written.endswith(f"{closing('results')}\n{after}")
    assert put(written, "results", new) == written


@given(texts, contents.filter(lambda text: "uptrend:" not in text))
@example("\r", "")
@settings(max_examples=200, deadline=None)
def test_a_new_block_keeps_all_that_was_there(text: str, content: str) -> None:
    written = put(text, "results", content, "## Results")
    assert written.startswith(text)
    end = "\r\n" if "\r\n" in text or text.endswith("\r") else "\n"
    assert get(written, "results") == content.strip("\r\n").replace("\n", end)
    assert put(written, "results", content, "## Results") == written


def test_a_new_block_goes_under_its_heading() -> None:
    text = "# H01\n\n## Results\n\nMy own note.\n\n## Next\n"
    assert put(text, "results", "Validated.", "## Results") == (
        "# H01\n\n## Results\n\n<!-- uptrend:results -->\nValidated.\n<!-- /uptrend:results -->\n\nMy own note.\n\n"
        "## Next\n"
    )


def test_a_heading_at_the_very_end_or_not_there() -> None:
    block = "<!-- uptrend:results -->\nx\n<!-- /uptrend:results -->\n"
    assert put("## Results", "results", "x", "## Results") == f"## Results\n\n{block}"
    assert put("## Results in short\n", "results", "x", "## Results") == (
        f"## Results in short\n\n## Results\n\n{block}"
    )
    assert put("", "results", "x") == block
    assert put("Log.\n", "entry h01 2026-01-02", "x").startswith("Log.\n\n<!-- uptrend:entry h01 2026-01-02 -->\n")


def test_line_ends_stay_as_the_file_has_them() -> None:
    text = put("a\r\n## Results\r\nb\r\n", "results", "one\ntwo", "## Results")
    assert "\n" not in text.replace("\r\n", "")
    assert get(text, "results") == "one\r\ntwo"


def test_blocks_are_found_by_name() -> None:
    text = put(put("Log\n", "entry h01 a", "1"), "entry h02 b", "2")
    assert names(text, "entry ") == ["entry h01 a", "entry h02 b"]
    assert names(text, "results") == []
    assert (get(text, "entry h02 b"), get(text, "entry h02")) == ("2", None)


def test_content_can_not_end_its_own_block() -> None:
    text = put("", "results", f"{closing('results')}\n{opening('status')}\nmore")
    assert get(text, "results") == "&lt;!-- /uptrend:results -->\n&lt;!-- uptrend:status -->\nmore"
    assert names(text) == ["results"]


@pytest.mark.parametrize(
    "text",
    [
        opening("results"),
        closing("results"),
        f"{closing('results')}\n{opening('results')}",
        f"{opening('results')}\n{closing('results')}\n{opening('results')}\n{closing('results')}",
    ],
    ids=["open", "closed", "crossed", "twice"],
)
def test_marks_that_are_no_pair_are_an_error(text: str) -> None:
    for call in (lambda: get(text, "results"), lambda: put(text, "results", "x")):
        with pytest.raises(LabError, match="The marks of the block results are not a pair: write <!-- uptrend:results"):
            call()


def test_a_mark_in_the_middle_of_a_line_is_text() -> None:
    assert get(f"see {opening('results')} and {closing('results')}", "results") is None
