"""Large tables read by Arrow, several times faster than by Python; None where Arrow is stricter than the log."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj

from uptrend.bridge.importers.log import Row

LARGE = 500_000


def large_json_lines(text: str) -> list[Row] | None:
    """The rows of many JSON lines; None where they are few, or not all as JSON has it (NaN, a torn line)."""
    if len(text) < LARGE:
        return None
    try:
        return _rows(pj.read_json(io.BytesIO(text.encode())))
    except (pa.ArrowException, UnicodeError):
        return None


def large_spreadsheet(text: str, delimiter: str) -> tuple[list[Row], int] | None:
    """The rows of a large table and how many lines did not fit it; None where it is small or odd."""
    if len(text) < LARGE:
        return None
    torn: list[Any] = []

    def skip(row: Any) -> str:
        torn.append(row)
        return "skip"

    parsing = pc.ParseOptions(delimiter=delimiter, invalid_row_handler=skip)
    converting = pc.ConvertOptions(null_values=[""], strings_can_be_null=True, timestamp_parsers=[])
    try:
        table = pc.read_csv(io.BytesIO(text.encode()), parse_options=parsing, convert_options=converting)
    except (pa.ArrowException, UnicodeError):
        return None
    return _rows(table.rename_columns([name.strip() for name in table.column_names])), len(torn)


def _rows(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    if any(column.null_count for column in table.columns):
        return [{key: value for key, value in row.items() if value is not None} for row in rows]
    return rows
