"""Ctrl-C: the first is answered in a line, the second is heard at once."""

import os
import signal

import pytest
from rich.console import Console
from rich.live import Live

from uptrend.cli.interrupt import patiently

SAID = "Stopping after this step; Ctrl-C again ends at once.\n"


def test_the_first_says_what_the_second_does(capsys: pytest.CaptureFixture[str]) -> None:
    with patiently() as patience:
        assert patience.step(None) is None
        os.kill(os.getpid(), signal.SIGINT)
        assert capsys.readouterr() == ("", SAID)
        stop = patience.step(None)
        assert stop is not None
        assert stop.reason == "interrupted by the user"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert capsys.readouterr() == ("", "")


def test_a_live_panel_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """rich catches stderr while a panel stands, and writes the line above it."""
    with patiently(), Live("panel", console=Console(force_terminal=True), auto_refresh=False):
        capsys.readouterr()
        os.kill(os.getpid(), signal.SIGINT)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.index(SAID.strip()) < out.index("panel")
