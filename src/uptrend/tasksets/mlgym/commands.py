"""The agent's commands, with MLGym's syntax: an editor that shows a window of a file, search, and a
shell.

Only the shell, search and the linter run inside the sandbox as processes. The editor reads and
writes files through the workspace, so its state (the open file, the window) is out of the agent's
reach.
"""

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from uptrend.records import Message
from uptrend.sandbox import FileProblem, Workspace

FENCED_BLOCK = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)
LINE_NUMBER = re.compile(r"[0-9]{1,9}")
LINE_RANGE = re.compile(r"^([0-9]{1,9}):([0-9]{1,9})$")
MAX_CHARACTERS_SHOWN = 400  # of a line in the editor
MAX_FILE_BYTES = 1 << 20  # that the editor opens
# Lines that a search returns; more are only counted.
MAX_MATCHES_SHOWN = 100
# Scrolls in a row after which the reply names a better way.
SCROLLS_BEFORE_HINT = 3
SCROLL_HINT = "Scrolling many times is slow: search_file <term> finds a line, goto <line> shows it."
LINT_TIMEOUT_S = 10
# Lines around a refused edit that the reply shows.
REFUSED_EDIT_CONTEXT = 3
# The line moved to appears this part of the window (a sixth) below its top, so that the lines that
# lead up to it show.
LINES_ABOVE_DIVISOR = 6
# Lines that two neighboring windows have in common when scrolling.
SCROLL_OVERLAP_LINES = 2
# In the system's text for a missing file (ENOENT), which the sandbox gives as the reason.
MISSING_FILE = "No such file"
# In the linter's messages on names that nothing defines; the others are syntax errors.
UNDEFINED_NAME = "undefined name"

# Runs inside the sandbox: reads source from stdin, and prints syntax errors and names that nothing
# in it defines.
LINT_PROGRAM = r"""
import ast, builtins, sys
try:
    tree = ast.parse(sys.stdin.buffer.read())
except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    sys.exit(f"line {getattr(error, 'lineno', '?')}: {getattr(error, 'msg', None) or error}")
known = {*dir(builtins), "__file__", "__name__", "__doc__"}
for node in ast.walk(tree):
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        known |= {(name.asname or name.name).split(".")[0] for name in node.names}
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        known.add(node.id)
    elif isinstance(node, ast.arg):
        known.add(node.arg)
    else:
        known.add(getattr(node, "name", None))
# Backward: of several uses of a name, the line of the first that ast.walk meets stays.
names = [node for node in reversed(list(ast.walk(tree))) if isinstance(node, ast.Name)]
unknown = {node.id: node.lineno for node in names if node.id not in known}
if unknown and "*" not in known:
    sys.exit("\n".join(f"line {line}: UNDEFINED_NAME {name!r}" for name, line in unknown.items()))
""".replace("UNDEFINED_NAME", UNDEFINED_NAME)


@dataclass(frozen=True)
class CommandReply:
    """Answer to one command."""

    text: str
    code: int = 0  # of the shell; 1 for a refused command of the editor or search
    stopped: str = ""  # bound that ended it
    kind: str = ""  # edit or shell, for the rates of errors


class WrongCommand(Exception):  # noqa: N818 (what it is)
    """A command that can't be carried out; its text tells the agent what would be right."""


def command_of(message: Message) -> str:
    """Return the one command of a message: a tool call, a fenced block, or the whole text."""
    if message.problem:
        raise WrongCommand(message.problem)
    if len(message.calls) > 1:
        raise WrongCommand(
            f"You gave {len(message.calls)} commands, and none was carried out. Give one per turn."
        )
    if message.calls:
        call = message.calls[0]
        argument = call.arguments.get("command")
        if call.name != "command" or not isinstance(argument, str):
            raise WrongCommand("There is one tool, command, with one argument, command: a text.")
        # Surrogates, which JSON may have, can't be sent to a sandbox.
        return argument.encode("utf-8", "replace").decode().strip("\n")
    blocks = FENCED_BLOCK.findall(message.content)
    if len(blocks) > 1:
        raise WrongCommand(
            f"You gave {len(blocks)} commands, and none was carried out. Give one per turn, in one"
            " ``` block."
        )
    command = (blocks[0] if blocks else message.content).strip("\n")
    if not command.strip():
        raise WrongCommand("You gave no command. Give one per turn, such as: ls")
    return str(command)


class Terminal:
    """The agent's side of a workspace: an open file with a window, and a shell."""

    def __init__(self, workspace: Workspace, window: int, seconds: float) -> None:
        self.workspace = workspace
        self._window = window
        self._seconds = seconds
        self.open_file = ""  # path of the open file, from the root
        self._top = 1  # first line of the window
        self._scrolls = 0  # in a row
        self._commands: dict[str, Callable[[str], Awaitable[CommandReply]]] = {
            "open": self._open,
            "goto": self._goto,
            "scroll_up": self._scroll_up,
            "scroll_down": self._scroll_down,
            "create": self._create,
            "search_dir": self._search_dir,
            "search_file": self._search_file,
            "find_file": self._find_file,
            "edit": self._edit,
            "insert": self._insert,
        }

    async def carry_out(self, command: str) -> CommandReply:
        """Carry out one command."""
        first, _, rest = command.strip().partition("\n")
        verb, _, arguments = first.strip().partition(" ")
        if not verb.startswith("scroll_"):
            self._scrolls = 0
        try:
            if verb not in self._commands:
                return await self._shell(command)
            arguments = arguments.strip()
            return await self._commands[verb](f"{arguments}\n{rest}" if rest else arguments)
        except WrongCommand as refusal:
            kind = "edit" if verb in ("edit", "insert") else ""
            return CommandReply(str(refusal), code=1, kind=kind)
        except FileProblem as problem:
            return CommandReply(f"Error: {problem}", code=1)
        except UnicodeDecodeError:
            error = f"Error: {self.open_file} is no UTF-8 text, which the editor needs."
            return CommandReply(error, code=1)

    async def _shell(self, command: str) -> CommandReply:
        outcome = await self.workspace.run(command, seconds=self._seconds)
        text = outcome.output.rstrip("\n")
        if outcome.stopped == "time":
            text += f"\nStopped: it took longer than {self._seconds:g} seconds."
        elif outcome.stopped:
            text += f"\nStopped: it exceeded the bound on {outcome.stopped}."
        elif outcome.code:
            text += f"\n(exit code {outcome.code})"
        text = text.strip("\n") or "The command ran and printed nothing."
        return CommandReply(text, outcome.code, outcome.stopped, kind="shell")

    # The editor.

    async def _lines(self, to_edit: bool = False) -> list[str]:
        if not self.open_file:
            raise WrongCommand("No file is open. Open one first: open <path>")
        content = await self.workspace.read(self.open_file, MAX_FILE_BYTES)
        text = content.decode("utf-8", "strict" if to_edit else "replace")
        return text.removesuffix("\n").split("\n") if text else []

    async def _show(self, note: str = "") -> CommandReply:
        """Return the window of the open file, with a note below it."""
        lines = await self._lines()
        self._top = max(1, min(self._top, len(lines) - self._window + 1))
        bottom = min(len(lines), self._top + self._window - 1)
        n_above = self._top - 1
        n_below = len(lines) - bottom
        parts = [f"[File: {self.open_file} ({len(lines)} lines)]"]
        if n_above:
            parts.append(f"({n_above} more lines above)")
        for number in range(self._top, bottom + 1):
            parts.append(f"{number}:{lines[number - 1][:MAX_CHARACTERS_SHOWN]}")
        if n_below:
            parts.append(f"({n_below} more lines below)")
        if note:
            parts.append(note)
        return CommandReply("\n".join(parts))

    def _move_to(self, line: int) -> None:
        self._top = max(1, line - self._window // LINES_ABOVE_DIVISOR)

    async def _open(self, arguments: str) -> CommandReply:
        usage = "open <path> [<line>]"
        path, *more = _words(arguments, usage, 1, 2)
        line = _number(more[0], usage) if more else 1
        # A folder, a link out of the workspace or a missing file is refused here.
        await self.workspace.read(path, MAX_FILE_BYTES)
        self.open_file = self._absolute(path)
        self._move_to(line)
        return await self._show()

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workspace.cwd}/{path.removeprefix('./')}"

    async def _goto(self, arguments: str) -> CommandReply:
        usage = "goto <line>"
        (word,) = _words(arguments, usage, 1)
        line = _number(word, usage)
        n_lines = len(await self._lines())
        if not 1 <= line <= n_lines:
            raise WrongCommand(f"There is no line {line}: the file has {n_lines}.")
        self._move_to(line)
        return await self._show()

    async def _scroll(self, lines: int) -> CommandReply:
        self._top = max(1, self._top + lines)
        self._scrolls += 1
        return await self._show(SCROLL_HINT if self._scrolls >= SCROLLS_BEFORE_HINT else "")

    async def _scroll_down(self, arguments: str) -> CommandReply:
        _words(arguments, "scroll_down", 0)
        return await self._scroll(self._window - SCROLL_OVERLAP_LINES)

    async def _scroll_up(self, arguments: str) -> CommandReply:
        _words(arguments, "scroll_up", 0)
        return await self._scroll(SCROLL_OVERLAP_LINES - self._window)

    async def _create(self, arguments: str) -> CommandReply:
        (path,) = _words(arguments, "create <path>", 1)
        try:
            await self.workspace.read(path, MAX_FILE_BYTES)
        except FileProblem as problem:
            if MISSING_FILE not in str(problem):
                raise
            await self.workspace.write(path, b"\n")
            return await self._open(shlex.quote(path))
        window = await self._open(shlex.quote(path))
        return CommandReply(f"Error: {path} exists already.\n{window.text}", code=1)

    async def _edit(self, arguments: str) -> CommandReply:
        usage = "edit <first line>:<last line>\n<new lines>\nend_of_edit"
        head, new_lines = _block(arguments, "end_of_edit", usage)
        line_range = LINE_RANGE.match(head)
        if line_range is None:
            raise WrongCommand(f"{head!r} is no range of lines. Usage:\n{usage}")
        first = int(line_range[1])
        last = int(line_range[2])
        lines = await self._lines(to_edit=True)
        # With last = first - 1, nothing is replaced: the lines are inserted before `first`.
        if not 1 <= first <= last + 1 or last > len(lines):
            raise WrongCommand(f"There are no lines {first} to {last}: the file has {len(lines)}.")
        return await self._replace(lines, first - 1, last, new_lines)

    async def _insert(self, arguments: str) -> CommandReply:
        usage = "insert <line>\n<new lines>\nend_of_insert"
        head, new_lines = _block(arguments, "end_of_insert", usage)
        line = _number(head, usage)
        lines = await self._lines(to_edit=True)
        if line > len(lines):
            raise WrongCommand(f"There is no line {line}: the file has {len(lines)}.")
        return await self._replace(lines, line, line, new_lines)

    async def _replace(
        self, lines: list[str], start: int, end: int, new_lines: list[str]
    ) -> CommandReply:
        """Replace lines from `start` up to `end`, unless the linter reports errors that were not
        there before.
        """
        edited = [*lines[:start], *new_lines, *lines[end:]]
        is_python = self.open_file.endswith(".py")
        if is_python:
            errors = await self.lint("\n".join(edited))
            if errors and _has_new_errors(errors, await self.lint("\n".join(lines))):
                low = max(0, start - REFUSED_EDIT_CONTEXT)
                high = start + len(new_lines) + REFUSED_EDIT_CONTEXT
                excerpt = "\n".join(
                    f"{number}:{line}" for number, line in enumerate(edited[low:high], low + 1)
                )
                raise WrongCommand(
                    f"The edit was NOT applied, since it brings in errors:\n{errors}\n"
                    f"It would have looked like this:\n{excerpt}\n"
                    "Correct the lines or their numbers; the same edit again fails again."
                )
        await self.workspace.write(self.open_file, ("\n".join(edited) + "\n").encode())
        self._move_to(start + 1)
        lint_result = ", and the linter found no new errors" if is_python else ""
        reply = await self._show(
            f"File updated{lint_result}. Check the lines, and edit again where needed."
        )
        return replace(reply, kind="edit")

    async def lint(self, source: str) -> str:
        """Return the errors of Python source, one per line; empty if there are none."""
        outcome = await self.workspace.run(
            f"python -I -S -c {shlex.quote(LINT_PROGRAM)}",
            stdin=source.encode(),
            seconds=LINT_TIMEOUT_S,
        )
        return outcome.output.strip() if outcome.code or outcome.stopped else ""

    # Search, by grep and find inside the sandbox.

    async def _search_dir(self, arguments: str) -> CommandReply:
        term, *more = _words(arguments, "search_dir <term> [<folder>]", 1, 2)
        folder = shlex.quote(more[0] if more else ".")
        options = "-rnIF --exclude-dir='.?*'"
        return await self._search(f"grep {options} -e {shlex.quote(term)} {folder}", term)

    async def _search_file(self, arguments: str) -> CommandReply:
        term, *more = _words(arguments, "search_file <term> [<file>]", 1, 2)
        if not more and not self.open_file:
            raise WrongCommand("No file is open. Name one: search_file <term> <file>")
        file = shlex.quote(more[0] if more else self.open_file)
        return await self._search(f"grep -nIF -e {shlex.quote(term)} {file}", term)

    async def _find_file(self, arguments: str) -> CommandReply:
        name, *more = _words(arguments, "find_file <name> [<folder>]", 1, 2)
        folder = shlex.quote(more[0] if more else ".")
        return await self._search(f"find {folder} -type f -name {shlex.quote(name)} | sort", name)

    async def _search(self, command: str, term: str) -> CommandReply:
        outcome = await self.workspace.run(command, seconds=self._seconds)
        # grep returns 1 if nothing matches.
        if outcome.code > 1 or outcome.stopped:
            error = outcome.output.strip() or f"The search was stopped: {outcome.stopped}."
            raise WrongCommand(error)
        matches = outcome.output.splitlines()
        n_matches = len(matches)
        if not matches:
            return CommandReply(f"Nothing found for {term!r}.")
        if n_matches > MAX_MATCHES_SHOWN:
            return CommandReply(f"{n_matches} lines match {term!r}: search for something narrower.")
        return CommandReply("\n".join([f"{n_matches} found for {term!r}:", *matches]))


def _has_new_errors(errors: str, errors_before: str) -> bool:
    """Return True if there are errors that were not there before, on whatever line."""
    # After a syntax error, the linter looked for nothing else.
    had_syntax_error = bool(errors_before) and UNDEFINED_NAME not in errors_before
    if had_syntax_error:
        return False
    return not _without_lines(errors) <= _without_lines(errors_before)


def _without_lines(errors: str) -> set[str]:
    return {error.partition(": ")[2] for error in errors.splitlines()}


def _words(arguments: str, usage: str, least: int, most: int | None = None) -> list[str]:
    """Split arguments as a shell does; `most` is `least` by default."""
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise WrongCommand(f"{error}. Usage: {usage}") from None
    if not least <= len(words) <= (least if most is None else most):
        raise WrongCommand(f"Usage: {usage}")
    return words


def _number(text: str, usage: str) -> int:
    if not LINE_NUMBER.fullmatch(text.strip()):
        raise WrongCommand(f"{text!r} is no line number. Usage: {usage}")
    return int(text)


def _block(arguments: str, end: str, usage: str) -> tuple[str, list[str]]:
    """Split a command of several lines into the rest of its first line, and the lines up to one
    with `end`.
    """
    head, *lines = arguments.split("\n")
    for i, line in enumerate(lines):
        if line.strip() == end:
            return head.strip(), lines[:i]
    raise WrongCommand(f"A line with {end} is missing. Usage:\n{usage}")
