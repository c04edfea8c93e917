"""One file, its format told by its content."""

import re
from pathlib import Path

from uptrend.bridge.importers.assemble import settings_alone, views_of_log
from uptrend.bridge.importers.beside import settings_beside, settings_in
from uptrend.bridge.importers.completions import read_completions
from uptrend.bridge.importers.console import read_console
from uptrend.bridge.importers.content import read_bytes, to_text
from uptrend.bridge.importers.events import is_events, read_events
from uptrend.bridge.importers.log import Log
from uptrend.bridge.importers.objects import read_json
from uptrend.bridge.importers.rollouts import is_rollouts, view_of_rollouts
from uptrend.bridge.importers.spreadsheet import read_spreadsheet
from uptrend.bridge.importers.wandb_file import MAGIC, read_wandb
from uptrend.records.errors import RecordError
from uptrend.records.view import RunView

PARQUET = b"PAR1"


def read_file(path: Path) -> list[RunView]:
    """The runs of a file."""
    data = read_bytes(path)
    if data.startswith(PARQUET):
        return [read_completions([path])]
    alone = settings_in(path)
    if alone:
        return [settings_alone(Log([], facts=alone), str(path))]
    logs = read_logs(path, data)
    if len(logs) == 1 and is_rollouts(logs[0].rows):
        return [view_of_rollouts(logs[0], str(path))]
    settings, name = settings_beside(path)
    for log in logs:
        if settings:
            log.facts = {**settings, **log.facts}
            log.notes.append(f"Settings were taken from {name} beside it.")
    views = [view for log in logs for view in views_of_log(log, str(path))]
    views = [view for view in views if view.metrics or view.evals or len(view.steps) > 1]
    if not views:
        raise RecordError(f"{path} holds no rows of metrics: neither a point of training nor an evaluation.")
    return views


def read_logs(path: Path, data: bytes) -> list[Log]:
    """The logs of a file; RecordError where none is found."""
    if data.startswith(MAGIC):
        return [read_wandb(data)]
    if is_events(data):
        return [read_events(data)]
    text = to_text(path, data)
    logs = read_json(text)
    if logs == []:
        raise RecordError(_nothing(path, text))
    logs = logs or read_spreadsheet(text)
    if logs is not None:
        return logs
    printed = read_console(text)
    if printed is not None:
        return [printed]
    raise RecordError(_nothing(path, text))


def _nothing(path: Path, text: str) -> str:
    """Why a text could not be used, in a sentence."""
    if re.match(r"\s*[\[{]", text):
        return f"{path} is JSON, but holds no rows of metrics: a list of objects, one a logged point, is looked for."
    return (
        f"{path} holds no metrics that could be recognized: JSON, CSV, dictionaries that a trainer printed, "
        "and lines that say a step and named numbers, such as `step 7, reward: 0.5, kl: 0.01`, are."
    )
