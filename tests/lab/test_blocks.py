"""The machine's blocks: replaced in place, put under a heading, and nothing outside them touched."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uptrend.lab.blocks import closing, get, names, opening, put
from uptrend.records import LabError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120).filter(lambda text: "uptrend:" not in text)
contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=80)
OPEN, CLOSE = opening("results"), closing("results")
BLOCK = f"{OPEN}\nx\n{CLOSE}\n"


@given(texts, texts, contents, contents)
@settings(max_examples=200, deadline=None)
def test_replacing_a_block_leaves_every_byte_around_it(before: str, after: str, old: str, new: str) -> None:
    written = put(f"{before}\n{OPEN}\n{old}\n{CLOSE}\n{after}", "results", new)
    assert written.startswith(f"{before}\n{OPEN}")
    assert written.endswith(f"{CLOSE}\n{after}")
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


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("## Results\n\nMine.\n\n## Next\n", "## Results", f"## Results\n\n{BLOCK}\nMine.\n\n## Next\n"),
        ("## Results", "## Results", f"## Results\n\n{BLOCK}"),
        ("## Results in short\n", "## Results", f"## Results in short\n\n## Results\n\n{BLOCK}"),
        ("", "", BLOCK),
        ("Log.\n", "", f"Log.\n\n{BLOCK}"),
        ("a\r\n## Results\r\nb\r\n", "## Results", f"a\n## Results\n\n{BLOCK}\nb\n".replace("\n", "\r\n")),
    ],
)
def test_where_a_new_block_goes(text: str, after: str, expected: str) -> None:
    assert put(text, "results", "x", after) == expected


def test_blocks_are_found_by_name() -> None:
    text = put(put("Log\n", "entry h01 a", "1"), "entry h02 b", "2")
    assert (names(text, "entry "), names(text, "results")) == (["entry h01 a", "entry h02 b"], [])
    assert (get(text, "entry h02 b"), get(text, "entry h02")) == ("2", None)
    harmless = put("", "results", f"{CLOSE}\n{opening('status')}\nmore")  # content can't end its own block
    assert get(harmless, "results") == "&lt;!-- /uptrend:results -->\n&lt;!-- uptrend:status -->\nmore"
    assert names(harmless) == ["results"]
    assert get(f"see {OPEN} and {CLOSE}", "results") is None


@pytest.mark.parametrize("text", [OPEN, CLOSE, f"{CLOSE}\n{OPEN}", f"{OPEN}\n{CLOSE}\n{OPEN}\n{CLOSE}"])
def test_marks_that_are_no_pair_are_an_error(text: str) -> None:
    for call in (lambda: get(text, "results"), lambda: put(text, "results", "x")):
        with pytest.raises(LabError, match="The marks of the block results are not a pair: write <!-- uptrend:results"):
            call()
