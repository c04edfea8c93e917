"""Reading files that others may write or change, within bounds, and the memory of this machine.

Only regular files are opened, and only below some folders if a reader sets them. A server reads
folders in which others write: between a check of a path and its opening a link or a pipe may take
its place, so the open file is checked, never the path before.

A file beyond a bound is refused in a sentence before it is in memory: files of others may have
gigabytes in a few megabytes on disk. The bounds are far above any log that is known here: the
largest has a million lines and 250 MB, the largest run 100,000 steps of 65 metrics.
"""

import contextlib
import errno
import io
import json
import os
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from uptrend.records.errors import RecordError, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes, decompressed, of a log that is read line by line: four times the largest that is known.
MAX_LOG_BYTES = 1 << 30
# Bytes, decompressed, of a line or of a file that is in memory whole: its text and its values take
# several times that.
MAX_FILE_BYTES = 128 << 20
# Bytes of a recipe, a script or settings: thousands of times what people write.
MAX_RECIPE_BYTES = 16 << 20
# Reason of a refusal: the limit is that of Python's own stack.
TOO_DEEP = "its values are nested too deeply"
# Values in one piece of JSON. Python takes about 100 bytes for each, in a list or with its name.
MAX_VALUES = 5_000_000
VALUE_BYTES = 100
_TEXT_OFFSET_BYTES = 4
# Bytes, by `size_in_memory`, of the lines of a file that are held at a time: 100,000 lines of 65
# metrics take 0.9 GB.
MAX_LINES_BYTES = 1_500_000_000
# Rows times columns of a table of numbers, 8 bytes each.
MAX_CELLS = 50_000_000
# Rows of the rollouts of a step, and bytes that they take decoded: 1,000 rollouts of 30,000 tokens
# take as much. A Parquet file's size says nothing of either, as any number of equal values takes a
# few bytes there.
MAX_TABLE_ROWS = 300_000
MAX_TABLE_BYTES = 1 << 30
_ROWS_AT_ONCE = 1024
_BYTES_AT_ONCE = 128 << 20
# Bytes of a value by Parquet's type of a column; other types are texts, whose offsets take 4.
_BYTES_BY_TYPE = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
# Bytes beyond those of a process at its start, for whatever the other bounds miss: judging 100,000
# steps takes 1 GB.
MAX_PROCESS_BYTES = 3 << 30
# Tries to open a file that its writer is just replacing.
MAX_TRIES = 5
# O_NONBLOCK: opening a pipe would wait for its writer. Windows has neither the flag nor such pipes.
OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_folders: ContextVar[tuple[Path, ...] | None] = ContextVar("folders", default=None)


@contextlib.contextmanager
def reading_below(folders: Iterable[Path | str] | None) -> Iterator[None]:
    """Let `open_file` open only files that are really below these folders, links followed; None
    sets no limit.
    """
    real_folders = None
    if folders is not None:
        real_folders = tuple(Path(os.path.realpath(folder)) for folder in folders)
    token = _folders.set(real_folders)
    try:
        yield
    finally:
        _folders.reset(token)


def open_file(path: Path) -> BinaryIO:
    """Open a file to read its bytes; raise RecordError for a pipe, a device, or a file outside the
    folders of `reading_below`.

    Errors of the system, such as FileNotFoundError, are passed on.
    """
    folders = _folders.get()
    for _ in range(MAX_TRIES):
        descriptor = os.open(path, OPEN_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError(f"{path} could not be read: it is no file.")
            if folders is None:
                return os.fdopen(descriptor, "rb")
            real_path = Path(os.path.realpath(path))
            with contextlib.suppress(FileNotFoundError):
                # The real path must be that of the open file: it may have been replaced since.
                if os.path.samestat(os.lstat(real_path), status):
                    if not any(real_path.is_relative_to(folder) for folder in folders):
                        raise RecordError(
                            f"{path} is a link to a place outside the folders that are read: not"
                            " read."
                        )
                    return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise RecordError(f"{path} could not be read: it is being replaced over and over.")


def open_named(path: Path) -> BinaryIO:
    """Open a file that a user named: unless folders are set it may be a pipe, such as
    /dev/stdin.
    """
    return path.open("rb") if _folders.get() is None else open_file(path)


def megabytes(size: int) -> str:
    """Return a number of bytes for a sentence."""
    return f"{size / 1e6:,.0f} MB"


def check_size(path: Path | str, size: int, max_bytes: int) -> None:
    """Raise RecordError for a file with more bytes than are read."""
    if size > max_bytes:
        raise RecordTooLarge(
            f"{path} is too large: it holds {megabytes(size)}, and {megabytes(max_bytes)} at most"
            " are read."
        )


def read_named(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a file that a user named; raise RecordError if there are too many."""
    with open_named(path) as file:
        return _read_all(path, file, max_bytes)


def _read_all(path: Path, file: BinaryIO, max_bytes: int) -> bytes:
    check_size(path, os.fstat(file.fileno()).st_size, max_bytes)
    data = file.read(max_bytes + 1)  # a pipe has no size, and a file may grow
    check_size(path, len(data), max_bytes)
    return data


def count_values(text: str | bytes) -> int:
    """Estimate the number of values in a text of JSON without parsing it."""
    if isinstance(text, bytes):
        return text.count(b",") + text.count(b"[") + text.count(b"{")
    return text.count(",") + text.count("[") + text.count("{")


def size_in_memory(line: str | bytes) -> int:
    """Estimate the bytes of a line of JSON or of a table, together with its values as Python
    objects.
    """
    return len(line) + VALUE_BYTES * (count_values(line) + 1)


def check_values(path: Path, text: str) -> None:
    """Raise RecordError for JSON with too many values."""
    count = count_values(text)
    if count > MAX_VALUES:
        raise RecordTooLarge(
            f"{path} is too large: it holds about {count:,} values in one piece of JSON, and"
            f" {MAX_VALUES:,} at most are read. One object per line (.jsonl) may be longer."
        )


def check_cells(path: Path | str, rows: int, columns: int) -> None:
    """Raise RecordError for a table that would have too many cells: each row may bring columns of
    its own.
    """
    if rows * columns > MAX_CELLS:
        raise RecordTooLarge(
            f"{path} is too large: {rows:,} rows with {columns:,} columns are a table of more than"
            f" {MAX_CELLS:,} cells."
        )


def read_json(path: Path) -> Any:
    """Return the value in a file of JSON; raise RecordError for a file that is too large,
    ValueError for one that is no JSON.
    """
    text = read_file(path).decode("utf-8")
    check_values(path, text)
    return parse_json(text)


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a file; raise RecordError for a pipe or a device, and if there are too
    many.
    """
    with open_file(path) as file:
        return _read_all(path, file, max_bytes)


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file, read by `read_file`, with one kind of line end."""
    with io.StringIO(read_file(path).decode("utf-8", errors), newline=None) as text:
        return text.read()


def parse_json(text: str | bytes) -> Any:
    """Return the value in a text of JSON; raise ValueError for any other text, and for nesting that
    is too deep for Python.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a text of TOML; raise TOMLDecodeError for any other text, for too deep
    nesting and for too many digits.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from None
    except ValueError as error:  # an integer of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)) from None


def read_table(
    path: Path, columns: Sequence[str] | None = None, size_before: int = 0
) -> "pa.Table":
    """Return a Parquet file, or some of its columns; raise RecordError if it is damaged or too
    large.

    `size_before` are the bytes of tables in memory that count towards the limit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table, which loads pandas.
        with open_file(path) as raw_file, pq.ParquetFile(raw_file) as file:
            rows_at_once = _check_metadata(path, file.metadata, columns)
            schema = file.schema_arrow
            if columns is not None:
                columns = [name for name in schema.names if name in columns]
                schema = pa.schema([schema.field(name) for name in columns])
            batches = []
            size = size_before
            # Metadata may be wrong: decoded bytes are counted too.
            for batch in file.iter_batches(rows_at_once, columns=columns, use_threads=False):
                size += batch.nbytes
                check_size(path, size, MAX_TABLE_BYTES)
                batches.append(batch)
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    except pa.ArrowMemoryError:
        raise too_much_memory(path) from None
    return pa.Table.from_batches(batches, schema)


def read_batches(
    path: Path, columns: Sequence[str] | None = None, max_rows: int = MAX_TABLE_ROWS
) -> "Iterator[pa.RecordBatch]":
    """Yield the first rows of a Parquet file of any size, few at a time; raise RecordError if it is
    damaged, or if a column takes more memory than a table may have.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as raw_file, pq.ParquetFile(raw_file, pre_buffer=False) as file:
            rows_at_once = _rows_at_once(_chunks(file.metadata, columns), file.metadata.num_rows)
            rows_at_once = min(rows_at_once, max_rows)
            names = file.schema_arrow.names
            selected = None if columns is None else [name for name in names if name in columns]
            n_rows = 0
            for batch in file.iter_batches(rows_at_once, columns=selected, use_threads=False):
                batch = _without_dictionaries(batch)
                check_size(path, batch.nbytes, MAX_TABLE_BYTES)
                yield batch
                n_rows += len(batch)
                if n_rows >= max_rows:
                    return
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise RecordError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    except pa.ArrowMemoryError:
        raise too_much_memory(path) from None


def _without_dictionaries(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return a batch whose bytes are those of its rows: values of a dictionary are in memory once,
    however many rows have them.
    """
    for number, field in enumerate(batch.schema):
        type = _value_type(field.type)
        if type != field.type:
            column = batch.column(number).cast(type)
            batch = batch.set_column(number, field.with_type(type), column)
    return batch


def _value_type(type: "pa.DataType") -> "pa.DataType":
    """Return an Arrow type with the values of dictionaries instead of places in them."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return _value_type(type.value_type)
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_value_type(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_value_type(field.type)) for field in type])
    return type


def _check_metadata(path: Path, metadata: Any, columns: Sequence[str] | None) -> int:
    """Return the number of rows to read at once; raise RecordTooLarge for a file that is too large
    by its own metadata.
    """
    if metadata.num_rows > MAX_TABLE_ROWS:
        raise RecordTooLarge(
            f"{path} is too large: it holds {metadata.num_rows:,} rows, and {MAX_TABLE_ROWS:,} at"
            " most are read."
        )
    chunks = _chunks(metadata, columns)
    size = 0
    for chunk in chunks:
        size += chunk.num_values * _BYTES_BY_TYPE.get(chunk.physical_type, _TEXT_OFFSET_BYTES)
    # Small integers take less in memory than Parquet's types do.
    check_size(path, size // 2, MAX_TABLE_BYTES)
    return _rows_at_once(chunks, metadata.num_rows)


def _chunks(metadata: Any, columns: Sequence[str] | None) -> list[Any]:
    """Return the chunks of some columns of a Parquet file, or of all."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    if columns is not None:
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
    return chunks


def _rows_at_once(chunks: Sequence[Any], n_rows: int) -> int:
    """Return how many rows of a Parquet file with `n_rows` are read at once."""
    number_bytes = 0
    text_bytes: dict[str, int] = {}  # of the largest chunk, by column
    for chunk in chunks:
        if chunk.physical_type not in _BYTES_BY_TYPE:
            column = chunk.path_in_schema
            text_bytes[column] = max(chunk.total_uncompressed_size, text_bytes.get(column, 1))
        else:
            number_bytes += chunk.num_values * _BYTES_BY_TYPE[chunk.physical_type]
    # A text that many rows share is in the file once, and in each row when it is read: each row
    # may have all texts.
    max_row_bytes = max(1, sum(text_bytes.values()) + number_bytes // max(1, n_rows))
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max_row_bytes))


def limit_memory(max_bytes: int = MAX_PROCESS_BYTES) -> None:
    """Limit this process to `max_bytes` beyond its present memory, for whatever the bounds above
    miss.

    Only for processes of our own: addresses that are reserved, as CUDA and threads do, count too.
    """
    # Windows and macOS have no such limit.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + max_bytes
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def too_much_memory(path: Path | str, max_bytes: int = MAX_PROCESS_BYTES) -> RecordTooLarge:
    """Return the error of a file that takes more memory than a process may have."""
    return RecordTooLarge(
        f"{path} is too large: reading it takes more than {megabytes(max_bytes)} of memory."
    )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    if sys.platform == "win32":  # which can't do so for a folder, nor for a file opened to read
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network disks can do so only for files.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file under another name and rename it, so that readers never see half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


_DISK_PROBLEMS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "it would be larger than a file may be here",
    errno.EACCES: "permission was denied",
    errno.EROFS: "the disk can only be read",
}


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into a RecordError that a person can act on."""
    try:
        yield
    except OSError as error:
        reason = _DISK_PROBLEMS.get(error.errno or 0) or error.strerror or str(error)
        raise RecordError(f"{path} could not be written: {reason}.") from error
