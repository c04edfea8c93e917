"""Logs of other trainers as views of runs: `read_views(path)` recognizes the format."""

from dataclasses import replace
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
    return _runs_in(path) or read_folder(path)


def _runs_in(folder: Path) -> list[RunView]:
    """The run directories in a folder such as `runs`; one that can't be read is named beside the others."""
    views, broken = list[RunView](), list[str]()
    for child in sorted(file.parent for file in folder.glob("*/run.json")):
        try:
            views.append(view_of(Run(child)))
        except RecordError as error:
            broken.append(f"Left out: {error}")
    return [replace(view, notes=(*view.notes, *broken)) for view in views]
