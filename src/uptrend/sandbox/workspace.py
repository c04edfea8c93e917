"""A workspace: the folder and the processes of one rollout, seen from the host."""

import asyncio
import codecs
import contextlib
import json
import re
import struct
import subprocess
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from uptrend.records import SandboxFailed

Reply = tuple[dict[str, Any], bytes]
GRACE = 60.0
"""Seconds after which an agent that should have answered is given up; a loaded machine may take
many.
"""
HOME = "/workspace"
KILLED = (-9, 128 + 9)  # exit codes of a process, and of a shell or bubblewrap whose child it was
# Control characters but newline and tab, and what changes the direction of text.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Bounds:
    """Bounds of one workspace."""

    seconds: float = 30.0
    """Time of one command."""
    memory: int = 1 << 30
    """Bytes, of all its processes together."""
    processes: int = 64
    """Processes and threads at once."""
    disk: int = 256 << 20
    """Bytes in the workspace, with temporary files."""
    files: int = 20_000
    """Files, folders and links."""
    output: int = 16_384
    """Bytes of a command's output that are kept: head and tail, the middle is cut."""


@dataclass(frozen=True)
class CommandOutcome:
    """Result of one command."""

    output: str
    """Stdout and stderr as they came, with control characters made visible; a line says how much
    was cut.
    """
    code: int
    """Exit status; negative for a signal."""
    seconds: float
    stopped: str = ""
    """Bound that ended it: time, memory, processes, disk, files or output; empty where it ended by
    itself.
    """


class FileProblem(Exception):  # noqa: N818 (told to a model)
    """A file that can't be read or written; the text is for the model."""


class Silent(FileProblem):
    """A process that gave no line: it ended, was slow, wrote too long a line or reached a bound."""


class Workspace:
    """A fresh folder in which commands run, until it is closed."""

    def __init__(
        self, process: Process, bounds: Bounds, root: str = HOME, sweep: Sequence[str] = ()
    ) -> None:
        self.cwd = HOME
        self.bounds = bounds
        self.has_hard_limit = False
        """Whether the kernel limits its memory; else it is measured alone."""
        assert process.stdin
        assert process.stdout
        self._process = process
        self._sent = process.stdin
        self._got = process.stdout
        self._root = root  # where /workspace is for the agent
        self._sweep = sweep  # command that removes what an agent leaves that did not end by itself
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self, command: str, *, seconds: float | None = None, stdin: bytes = b""
    ) -> CommandOutcome:
        """Run a command with bash, and end whatever it leaves running."""
        most = self.bounds.seconds if seconds is None else seconds
        told, data = await self._ask(
            "run", stdin, wait=most, command=self._real(command), seconds=most
        )
        self.cwd = self._shown(told["cwd"])
        text = self._shown(readable(data, told["total"]))
        return CommandOutcome(text, told["code"], told["seconds"], told["stopped"])

    async def read(self, path: str, most: int = 1 << 24) -> bytes:
        """Read a regular file of the workspace, relative to `cwd`."""
        return (await self._ask("read", shown=path, path=self._real(path), most=most))[1]

    async def write(self, path: str, data: bytes) -> None:
        """Write a file of the workspace, relative to `cwd`; missing folders are made."""
        await self._ask("write", data, shown=path, path=self._real(path))

    async def listing(self) -> list[tuple[str, int]]:
        """List the regular files below the root with their sizes, sorted; at most 1,000."""
        told, _ = await self._ask("list")
        return [
            (readable(path.encode("utf-8", "surrogateescape")), size)
            for path, size in told["files"]
        ]

    async def start(self, command: str) -> "Conversation":
        """Start a process that is talked to line by line; the next command or process ends it."""
        await self._ask("start", command=self._real(command))
        return Conversation(self)

    async def close(self) -> None:
        """End every process and remove the folder, whatever happened; a second call does
        nothing.
        """
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def begin(
        self, source: bytes, setup: Mapping[str, Any], program: bytes, files: Mapping[str, bytes]
    ) -> None:
        """Send the agent its source and its bounds, and write the first files."""
        self._sent.write(source)
        setup = {**setup, "root": self._root, "bounds": asdict(self.bounds)}
        self.has_hard_limit = (await self._exchange(setup, program, GRACE))[0]["has_hard_limit"]
        try:
            for path, data in files.items():
                await self.write(path, data)
        except FileProblem as problem:
            raise SandboxFailed(f"Could not write the task's {problem}.") from None

    async def _ask(
        self, do: str, data: bytes = b"", wait: float = 0.0, shown: str = "", **request: Any
    ) -> Reply:
        """Ask the agent for something and wait for the answer; `shown` is the file that may be
        refused.
        """
        request = {"do": do, "cwd": self._real(self.cwd), **request}
        async with self._turn:
            told, content = await self._exchange(request, data, wait + GRACE)
        if "refused" in told:
            why = self._shown(told["refused"])
            if do == "ask":
                raise Silent(readable(why.encode("utf-8", "replace")))
            if shown:
                raise FileProblem(f"{readable(shown.encode('utf-8', 'replace'))}: {why}")
            raise SandboxFailed(f"The sandbox could not {do}: {why}.")
        return told, content

    async def _exchange(self, request: Mapping[str, Any], data: bytes, wait: float) -> Reply:
        text = json.dumps(request).encode()
        try:
            async with asyncio.timeout(wait):
                self._sent.writelines([struct.pack(">II", len(text), len(data)), text, data])
                await self._sent.drain()
                told, size = struct.unpack(">II", await self._got.readexactly(8))
                return json.loads(await self._got.readexactly(told)), await self._got.readexactly(
                    size
                )
        except BaseException as error:
            # Whoever is interrupted here can't tell later answers apart: the agent ends, as it does
            # when we die.
            self._sent.close()
            if not isinstance(error, OSError | EOFError | RuntimeError):
                raise
        said = b""
        with contextlib.suppress(TimeoutError):
            said = (
                await asyncio.wait_for(self._process.stderr.read(), 2)
                if self._process.stderr
                else b""
            )
            await asyncio.wait_for(self._process.wait(), 2)
        why = readable(said[-2000:]).strip().removesuffix(".")
        if not why and self._process.returncode in KILLED:
            why = "it was killed, as the kernel does where memory runs out"
        raise SandboxFailed("The sandbox ended unexpectedly" + (f": {why}." if why else "."))

    async def _end(self) -> None:
        process = self._process
        self._sent.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE / 4)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        async with self._turn:  # a request that waits for its answer gets the end of the pipe first
            with contextlib.suppress(TimeoutError):
                # the agent holds the other end while it lives
                await asyncio.wait_for(self._got.read(), GRACE / 4)
        if process.returncode and self._sweep:
            await asyncio.to_thread(
                subprocess.run, self._sweep, capture_output=True, stdin=subprocess.DEVNULL
            )

    def _real(self, text: str) -> str:
        return text if self._root == HOME else text.replace(HOME, self._root)

    def _shown(self, text: str) -> str:
        return text if self._root == HOME else text.replace(self._root, HOME)


class Conversation:
    """A process that is talked to line by line."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def ask(self, line: str | None, seconds: float = 10.0) -> str:
        """Send a line (None: nothing) and return the process's next one; `Silent` says why there is
        none.
        """
        data = b"" if line is None else line.encode("utf-8", "replace") + b"\n"
        _, answer = await self._workspace._ask("ask", data, wait=seconds, seconds=seconds)
        return answer.decode("utf-8", "replace")

    async def close(self) -> None:
        """End the process."""
        await self._workspace.run(":")  # a command is alone


def readable(data: bytes, total: int = 0) -> str:
    """Decode output whose middle may be missing, and make control characters visible."""
    if total > len(data):
        head = data[: len(data) // 2]
        tail = data[len(data) // 2 :]
        # A character that was cut in two is dropped.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        text += f"\n[... {total - len(data):,} bytes cut ...]\n"
        text += re.sub(rb"^[\x80-\xbf]{1,3}", b"", tail).decode("utf-8", "replace")
    else:
        text = data.decode("utf-8", "replace")
    return INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))
