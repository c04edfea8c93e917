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

FENCE = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)
RANGE = re.compile(r"^([0-9]{1,9}):([0-9]{1,9})$")
LONGEST = 400  # characters of a line that the editor shows
LARGEST = 1 << 20  # bytes of a file that the editor opens
# Scrolls in a row before the agent is told of a better way.
SCROLLS = 3

# Runs inside the sandbox: syntax errors, and names that nothing in the file defines.
LINT = r"""
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
names = [node for node in reversed(list(ast.walk(tree))) if isinstance(node, ast.Name)]
unknown = {node.id: node.lineno for node in names if node.id not in known}
if unknown and "*" not in known:
    sys.exit("\n".join(f"line {line}: undefined name {name!r}" for name, line in unknown.items()))
"""


@dataclass(frozen=True)
class CommandReply:
    """Answer to one command."""

    text: str
    code: int = 0  # of the shell; 1 where a command of ours was refused
    stopped: str = ""  # bound that ended it
    kind: str = ""  # edit or shell, for the rates of errors


class WrongCommand(Exception):  # noqa: N818 (what it is)
    """A command that can't be carried out; its text teaches."""


def command_of(message: Message) -> str:
    """Return the one command of a message: a tool call, a fenced block, or all that was said."""
    if message.problem:
        raise WrongCommand(message.problem)
    if len(message.calls) > 1:
        raise WrongCommand(
            f"You gave {len(message.calls)} commands, and none was carried out. Give one per turn."
        )
    if message.calls:
        given = message.calls[0].arguments.get("command")
        if message.calls[0].name != "command" or not isinstance(given, str):
            raise WrongCommand("There is one tool, command, with one argument, command: a text.")
        return given.encode("utf-8", "replace").decode().strip("\n")
    blocks = FENCE.findall(message.content)
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
        self._top = 1  # first line that is shown
        self._scrolls = 0
        self._verbs: dict[str, Callable[[str], Awaitable[CommandReply]]] = {
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
            if verb in self._verbs:
                return await self._verbs[verb](
                    f"{arguments.strip()}\n{rest}" if rest else arguments.strip()
                )
            return await self._shell(command)
        except WrongCommand as refused:
            return CommandReply(
                str(refused), code=1, kind="edit" if verb in ("edit", "insert") else ""
            )
        except FileProblem as problem:
            return CommandReply(f"Error: {problem}", code=1)
        except UnicodeDecodeError:
            return CommandReply(
                f"Error: {self.open_file} is no UTF-8 text, which the editor needs.", code=1
            )

    async def _shell(self, command: str) -> CommandReply:
        outcome = await self.workspace.run(command, seconds=self._seconds)
        text = outcome.output.rstrip("\n")
        if outcome.stopped == "time":
            text += f"\nStopped: it took longer than {self._seconds:g} seconds."
        elif outcome.stopped:
            text += f"\nStopped: it exceeded the bound on {outcome.stopped}."
        elif outcome.code:
            text += f"\n(exit code {outcome.code})"
        return CommandReply(
            text.strip("\n") or "The command ran and printed nothing.",
            outcome.code,
            outcome.stopped,
            "shell",
        )

    # The editor.

    async def _lines(self, to_edit: bool = False) -> list[str]:
        if not self.open_file:
            raise WrongCommand("No file is open. Open one first: open <path>")
        text = (await self.workspace.read(self.open_file, LARGEST)).decode(
            "utf-8", "strict" if to_edit else "replace"
        )
        return text.removesuffix("\n").split("\n") if text else []

    async def _show(self, before: str = "", after: str = "") -> CommandReply:
        lines = await self._lines()
        self._top = max(1, min(self._top, len(lines) - self._window + 1))
        end = min(len(lines), self._top + self._window - 1)
        above = self._top - 1
        below = len(lines) - end
        parts = [
            before,
            f"[File: {self.open_file} ({len(lines)} lines)]",
            f"({above} more lines above)" if above else "",
        ]
        parts += [f"{number}:{lines[number - 1][:LONGEST]}" for number in range(self._top, end + 1)]
        parts += [f"({below} more lines below)" if below else "", after]
        return CommandReply("\n".join(part for part in parts if part))

    async def _open(self, arguments: str) -> CommandReply:
        words = _words(arguments, "open <path> [<line>]", 1, 2)
        line = _number(words[1], "open <path> [<line>]") if len(words) > 1 else 1
        # a folder, a link or a missing file is refused here
        await self.workspace.read(words[0], LARGEST)
        self.open_file, self._top = self._absolute(words[0]), max(1, line - self._window // 6)
        return await self._show()

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workspace.cwd}/{path.removeprefix('./')}"

    async def _goto(self, arguments: str) -> CommandReply:
        line = _number(_words(arguments, "goto <line>", 1)[0], "goto <line>")
        if not 1 <= line <= (count := len(await self._lines())):
            raise WrongCommand(f"There is no line {line}: the file has {count}.")
        self._top = max(1, line - self._window // 6)
        return await self._show()

    async def _scroll(self, lines: int) -> CommandReply:
        self._top = max(1, self._top + lines)
        self._scrolls += 1
        hint = (
            "Scrolling many times is slow: search_file <term> finds a line, goto <line> shows it."
        )
        return await self._show(after=hint if self._scrolls >= SCROLLS else "")

    async def _scroll_down(self, arguments: str) -> CommandReply:
        _words(arguments, "scroll_down", 0)
        return await self._scroll(self._window - 2)

    async def _scroll_up(self, arguments: str) -> CommandReply:
        _words(arguments, "scroll_up", 0)
        return await self._scroll(2 - self._window)

    async def _create(self, arguments: str) -> CommandReply:
        path = _words(arguments, "create <path>", 1)[0]
        try:
            await self.workspace.read(path, LARGEST)
        except FileProblem as problem:
            if "No such file" not in str(problem):
                raise
            await self.workspace.write(path, b"\n")
            return await self._open(shlex.quote(path))
        shown = await self._open(shlex.quote(path))
        return CommandReply(f"Error: {path} exists already.\n{shown.text}", code=1)

    async def _edit(self, arguments: str) -> CommandReply:
        usage = "edit <first line>:<last line>\n<new lines>\nend_of_edit"
        head, text = _block(arguments, "end_of_edit", usage)
        if (found := RANGE.match(head)) is None:
            raise WrongCommand(f"{head!r} is no range of lines. Usage:\n{usage}")
        first = int(found[1])
        last = int(found[2])
        lines = await self._lines(to_edit=True)
        if not 1 <= first <= last + 1 or last > len(lines):
            raise WrongCommand(f"There are no lines {first} to {last}: the file has {len(lines)}.")
        return await self._replace(lines, first - 1, last, text)

    async def _insert(self, arguments: str) -> CommandReply:
        usage = "insert <line>\n<new lines>\nend_of_insert"
        head, text = _block(arguments, "end_of_insert", usage)
        after = _number(head, usage)
        lines = await self._lines(to_edit=True)
        if after > len(lines):
            raise WrongCommand(f"There is no line {after}: the file has {len(lines)}.")
        return await self._replace(lines, after, after, text)

    async def _replace(
        self, lines: list[str], start: int, end: int, text: list[str]
    ) -> CommandReply:
        """Put lines in the place of others, unless the linter finds something that was not there
        before.
        """
        changed = [*lines[:start], *text, *lines[end:]]
        if self.open_file.endswith(".py"):
            problems = await self.lint("\n".join(changed))
            if problems and _new(problems, await self.lint("\n".join(lines))):
                low = max(0, start - 3)
                high = start + len(text) + 3
                shown = "\n".join(
                    f"{n}:{line}" for n, line in enumerate(changed[low:high], low + 1)
                )
                raise WrongCommand(
                    f"The edit was NOT applied, since it brings in errors:\n{problems}\n"
                    f"It would have looked like this:\n{shown}\n"
                    "Correct the lines or their numbers; the same edit again fails again."
                )
        await self.workspace.write(self.open_file, ("\n".join(changed) + "\n").encode())
        self._top = max(1, start + 1 - self._window // 6)
        checked = ", and the linter found no new errors" if self.open_file.endswith(".py") else ""
        reply = await self._show(
            after=f"File updated{checked}. Check the lines, and edit again where needed."
        )
        return replace(reply, kind="edit")

    async def lint(self, source: str) -> str:
        """Return what is wrong with Python source, one line per error; empty where nothing is."""
        outcome = await self.workspace.run(
            f"python -I -S -c {shlex.quote(LINT)}", stdin=source.encode(), seconds=10
        )
        return outcome.output.strip() if outcome.code or outcome.stopped else ""

    # Search, by grep and find inside the sandbox.

    async def _search_dir(self, arguments: str) -> CommandReply:
        words = _words(arguments, "search_dir <term> [<folder>]", 1, 2)
        folder = shlex.quote(words[1] if len(words) > 1 else ".")
        return await self._matches(
            f"grep -rnIF --exclude-dir='.?*' -e {shlex.quote(words[0])} {folder}", words[0]
        )

    async def _search_file(self, arguments: str) -> CommandReply:
        words = _words(arguments, "search_file <term> [<file>]", 1, 2)
        if len(words) < 2 and not self.open_file:
            raise WrongCommand("No file is open. Name one: search_file <term> <file>")
        file = shlex.quote(words[1] if len(words) > 1 else self.open_file)
        return await self._matches(f"grep -nIF -e {shlex.quote(words[0])} {file}", words[0])

    async def _find_file(self, arguments: str) -> CommandReply:
        words = _words(arguments, "find_file <name> [<folder>]", 1, 2)
        folder = shlex.quote(words[1] if len(words) > 1 else ".")
        return await self._matches(
            f"find {folder} -type f -name {shlex.quote(words[0])} | sort", words[0]
        )

    async def _matches(self, command: str, term: str) -> CommandReply:
        outcome = await self.workspace.run(command, seconds=self._seconds)
        if outcome.code > 1 or outcome.stopped:
            raise WrongCommand(
                outcome.output.strip() or f"The search was stopped: {outcome.stopped}."
            )
        found = outcome.output.splitlines()
        if not found:
            return CommandReply(f"Nothing found for {term!r}.")
        if len(found) > 100:
            return CommandReply(
                f"{len(found)} lines match {term!r}: search for something narrower."
            )
        return CommandReply("\n".join([f"{len(found)} found for {term!r}:", *found]))


def _new(problems: str, before: str) -> bool:
    """Return True where there are errors that were not there before, wherever they stand now."""
    now, then = (
        {line.partition(": ")[2] for line in text.splitlines()} for text in (problems, before)
    )
    was_broken = bool(before) and "undefined name" not in before  # then nothing else was looked for
    return bool(now - then) and not was_broken


def _words(arguments: str, usage: str, least: int, most: int | None = None) -> list[str]:
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise WrongCommand(f"{error}. Usage: {usage}") from None
    if not least <= len(words) <= (least if most is None else most):
        raise WrongCommand(f"Usage: {usage}")
    return words


def _number(text: str, usage: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise WrongCommand(f"{text!r} is no line number. Usage: {usage}")
    return int(text)


def _block(arguments: str, end: str, usage: str) -> tuple[str, list[str]]:
    """Split a command of several lines into what follows its verb and its text, which a line with
    `end` closes.
    """
    head, *lines = arguments.split("\n")
    places = [i for i, line in enumerate(lines) if line.strip() == end]
    if not places:
        raise WrongCommand(f"A line with {end} is missing. Usage:\n{usage}")
    return head.strip(), lines[: places[0]]
