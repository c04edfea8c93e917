"""Logs of other trainers as views of runs: `read_views(path)` recognises the format."""

from pathlib import Path

from uptrend.bridge.importers.files import read_file
from uptrend.bridge.importers.folder import read_folder
from uptrend.records.errors import RecordError
from uptrend.records.run import Run
from uptrend.records.view import RunView, view_of


def read_views(path: Path) -> list[RunView]:
    """Every run that a file or folder holds, whoever wrote it; RecordError where nothing can be read."""
    if not path.exists():
        raise RecordError(f"{path} does not exist.")
    if not path.is_dir():
        return read_file(path)
    if (path / "run.json").exists():
        return [view_of(Run(path))]
    return read_folder(path)
