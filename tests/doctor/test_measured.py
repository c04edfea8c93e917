"""Confidence that is measured: shares of right findings, shrunk toward their kind, with few runs at
most medium.
"""

from pathlib import Path

import pytest

from uptrend.doctor import catalogue
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.records import Basis, Confidence

TABLE = """
kinds.records.proof = { named = 50, right = 48 }
kinds.records.signal = { named = 20, right = 14 }
kinds.scalars.signal = { named = 20, right = 8 }
causes."kl.sign".records = { named = 8, right = 8, planted = 9, found = 8 }
causes."kl.reference".records = { named = 4, right = 4 }
causes."kl.runaway".records = { named = 10, right = 2 }
"""


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measured.toml").write_text(TABLE)
    monkeypatch.setattr(catalogue, "TRIALS_FILE", tmp_path / "measured.toml")
    catalogue._trials.cache_clear()
    yield
    catalogue._trials.cache_clear()


@pytest.mark.parametrize(
    ("id", "basis", "source", "confidence", "told"),
    [
        ("kl.sign", Basis.PROOF, "records", Confidence.HIGH, "right in 8 of 8"),
        ("kl.reference", Basis.PROOF, "records", Confidence.MEDIUM, "right in 4 of 4"),
        ("kl.runaway", Basis.PROOF, "records", Confidence.LOW, "right in 2 of 10"),
        ("kl.strangles", Basis.PROOF, "records", Confidence.MEDIUM, "never named first in a trial"),
        ("kl.strangles", Basis.SIGNAL, "scalars", Confidence.LOW, "its kind in 8 of 20"),
        ("kl.strangles", Basis.SUSPICION, "scalars", Confidence.LOW, ""),
    ],
)
def test_confidence(id: str, basis: Basis, source: str, confidence: Confidence, told: str) -> None:
    found, words = catalogue.confidence_of(id, basis, source)
    assert found is confidence
    assert told in words


def test_few_runs_do_not_make_a_cause_doubted() -> None:
    doubts = {
        id: catalogue.is_mostly_wrong(id, "records")
        for id in ("kl.sign", "kl.reference", "kl.runaway")
    }
    assert doubts == {"kl.sign": False, "kl.reference": False, "kl.runaway": True}
    assert not catalogue.is_mostly_wrong("kl.runaway", "scalars")


def test_the_page_tells_what_was_measured() -> None:
    page = cause_page(CATALOGUE["kl.sign"])
    assert (
        "right in 8 of 8 runs where it was named first, among the first three in 8 of 9 runs that had it"
        in page
    )
    assert "In trials" not in cause_page(CATALOGUE["kl.strangles"])
