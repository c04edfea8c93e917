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
# Time beyond that of a request after which an agent counts as lost; a loaded machine may need much
# of it.
AGENT_TIMEOUT_S = 60.0
# Time for an agent to end by itself, and for its last output.
CLOSE_TIMEOUT_S = 15.0
STDERR_TIMEOUT_S = 2.0
# Bytes of an agent's stderr that an error quotes.
MAX_STDERR_BYTES = 2000
WORKSPACE_PATH = "/workspace"
# Exit codes of a process that was killed, and of a shell or bubblewrap whose child was.
SIGKILL_EXIT_CODES = (-9, 128 + 9)
# Control characters but newline and tab, and those that change the direction of text.
INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
# Each message is preceded by the lengths of its JSON and of its bytes.
FRAME_HEADER = struct.Struct(">II")


@dataclass(frozen=True)
class Bounds:
    """Bounds of one workspace."""

    seconds: float = 30.0
    """Time of one command."""
    memory: int = 1 << 30
    """Bytes of memory, of all its processes together."""
    processes: int = 64
    """Processes and threads at once."""
    disk: int = 256 << 20
    """Bytes in the workspace, with temporary files."""
    files: int = 20_000
    """Files, folders and links."""
    output: int = 16_384
    """Bytes of a command's output to keep: head and tail, the middle is cut."""


@dataclass(frozen=True)
class CommandOutcome:
    """Result of one command."""

    output: str
    """Stdout and stderr in the order of writing, with control characters made visible; a line says
    how much was cut.
    """
    code: int
    """Exit status; negative for a signal."""
    seconds: float
    stopped: str = ""
    """Bound that ended it: time, memory, processes, disk, files or output; empty if it ended by
    itself.
    """


class FileProblem(Exception):  # noqa: N818 (a reply to a model)
    """A file that can't be read or written; the text is for the model."""


class Silent(FileProblem):
    """A process that wrote no line: it ended, was slow, exceeded the length or reached a bound."""


class Workspace:
    """A fresh folder in which commands run, until it is closed."""

    def __init__(
        self,
        process: Process,
        bounds: Bounds,
        root: str = WORKSPACE_PATH,
        cleanup: Sequence[str] = (),
    ) -> None:
        self.cwd = WORKSPACE_PATH
        self.bounds = bounds
        self.has_hard_limit = False
        """True if the kernel limits its memory; otherwise memory is only measured."""
        assert process.stdin
        assert process.stdout
        self._process = process
        self._to_agent = process.stdin
        self._from_agent = process.stdout
        self._root = root  # path of /workspace for the agent
        self._cleanup = cleanup  # command that removes what is left if the agent is killed
        self._request_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self, command: str, *, seconds: float | None = None, stdin: bytes = b""
    ) -> CommandOutcome:
        """Run a command with bash, and end whatever it leaves running."""
        time_limit = self.bounds.seconds if seconds is None else seconds
        outcome, data = await self._request(
            "run", stdin, wait=time_limit, command=self._to_real(command), seconds=time_limit
        )
        self.cwd = self._to_public(outcome["cwd"])
        text = self._to_public(readable(data, outcome["total"]))
        return CommandOutcome(text, outcome["code"], outcome["seconds"], outcome["stopped"])

    async def read(self, path: str, most: int = 1 << 24) -> bytes:
        """Read a regular file of at most `most` bytes, by its path relative to `cwd`."""
        real_path = self._to_real(path)
        _, data = await self._request("read", file=path, path=real_path, most=most)
        return data

    async def write(self, path: str, data: bytes) -> None:
        """Write a file by its path relative to `cwd`; missing folders are made."""
        await self._request("write", data, file=path, path=self._to_real(path))

    async def listing(self) -> list[tuple[str, int]]:
        """Return the regular files below the root with their sizes, sorted; at most 1,000."""
        reply, _ = await self._request("list")
        files = []
        for path, size in reply["files"]:
            files.append((readable(path.encode("utf-8", "surrogateescape")), size))
        return files

    async def start(self, command: str) -> "Conversation":
        """Start a process to exchange lines with; the next command or process ends it."""
        await self._request("start", command=self._to_real(command))
        return Conversation(self)

    async def close(self) -> None:
        """End every process and remove the folder, whatever happened; a second call does
        nothing.
        """
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def begin(
        self, source: bytes, setup: Mapping[str, Any], program: bytes, files: Mapping[str, bytes]
    ) -> None:
        """Send the agent its source and its bounds, and write the first files."""
        self._to_agent.write(source)
        setup = {**setup, "root": self._root, "bounds": asdict(self.bounds)}
        reply, _ = await self._exchange(setup, program, AGENT_TIMEOUT_S)
        self.has_hard_limit = reply["has_hard_limit"]
        try:
            for path, data in files.items():
                await self.write(path, data)
        except FileProblem as problem:
            raise SandboxFailed(f"Could not write the task's {problem}.") from None

    async def _request(
        self, verb: str, data: bytes = b"", wait: float = 0.0, file: str = "", **arguments: Any
    ) -> Reply:
        """Send the agent a request and wait for the reply; `file` is the name by which an error
        reports a refused file.
        """
        request = {"do": verb, "cwd": self._to_real(self.cwd), **arguments}
        async with self._request_lock:
            reply, content = await self._exchange(request, data, wait + AGENT_TIMEOUT_S)
        if "refused" in reply:
            reason = self._to_public(reply["refused"])
            if verb == "ask":
                raise Silent(readable(reason.encode("utf-8", "replace")))
            if file:
                raise FileProblem(f"{readable(file.encode('utf-8', 'replace'))}: {reason}")
            raise SandboxFailed(f"The sandbox could not {verb}: {reason}.")
        return reply, content

    async def _exchange(self, request: Mapping[str, Any], data: bytes, wait: float) -> Reply:
        text = json.dumps(request).encode()
        try:
            async with asyncio.timeout(wait):
                self._to_agent.writelines([FRAME_HEADER.pack(len(text), len(data)), text, data])
                await self._to_agent.drain()
                header = await self._from_agent.readexactly(FRAME_HEADER.size)
                text_length, data_length = FRAME_HEADER.unpack(header)
                reply = json.loads(await self._from_agent.readexactly(text_length))
                return reply, await self._from_agent.readexactly(data_length)
        except BaseException as error:
            # After an interruption, later replies would be taken for this one's: the agent ends, as
            # it does when this process dies.
            self._to_agent.close()
            if not isinstance(error, OSError | EOFError | RuntimeError):
                raise
        raise await self._unexpected_end()

    async def _unexpected_end(self) -> SandboxFailed:
        """Return the error of an agent that has ended, with its last words on stderr."""
        stderr = b""
        with contextlib.suppress(TimeoutError):
            if self._process.stderr:
                stderr = await asyncio.wait_for(self._process.stderr.read(), STDERR_TIMEOUT_S)
            await asyncio.wait_for(self._process.wait(), STDERR_TIMEOUT_S)
        reason = readable(stderr[-MAX_STDERR_BYTES:]).strip().removesuffix(".")
        if not reason and self._process.returncode in SIGKILL_EXIT_CODES:
            reason = "it was killed, as the kernel does where memory runs out"
        details = f": {reason}" if reason else ""
        return SandboxFailed(f"The sandbox ended unexpectedly{details}.")

    async def _close(self) -> None:
        process = self._process
        self._to_agent.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), CLOSE_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        # A request that waits for its reply reads the end of the pipe first.
        async with self._request_lock:
            with contextlib.suppress(TimeoutError):
                # The agent holds the other end of the pipe while it lives.
                await asyncio.wait_for(self._from_agent.read(), CLOSE_TIMEOUT_S)
        if process.returncode and self._cleanup:
            await asyncio.to_thread(
                subprocess.run, self._cleanup, capture_output=True, stdin=subprocess.DEVNULL
            )

    def _to_real(self, text: str) -> str:
        """Replace /workspace by its path for the agent, which without a sandbox is another one."""
        return text if self._root == WORKSPACE_PATH else text.replace(WORKSPACE_PATH, self._root)

    def _to_public(self, text: str) -> str:
        """Replace the agent's path of the workspace by /workspace."""
        return text if self._root == WORKSPACE_PATH else text.replace(self._root, WORKSPACE_PATH)


class Conversation:
    """A process that reads and writes line by line."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def ask(self, line: str | None, seconds: float = 10.0) -> str:
        """Send a line (None: nothing) and return the process's next one; raise `Silent` if it
        writes none.
        """
        data = b"" if line is None else line.encode("utf-8", "replace") + b"\n"
        _, answer = await self._workspace._request("ask", data, wait=seconds, seconds=seconds)
        return answer.decode("utf-8", "replace")

    async def close(self) -> None:
        """End the process."""
        await self._workspace.run(":")  # a new command ends the process before it


def readable(data: bytes, total: int = 0) -> str:
    """Decode output whose middle may be missing, and make control characters visible."""
    if total > len(data):
        head = data[: len(data) // 2]
        tail = data[len(data) // 2 :]
        # A character that was cut in two is dropped: an incremental decoder waits for its end, and
        # continuation bytes at the start are removed.
        head_text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        tail_text = re.sub(rb"^[\x80-\xbf]{1,3}", b"", tail).decode("utf-8", "replace")
        text = f"{head_text}\n[... {total - len(data):,} bytes cut ...]\n{tail_text}"
    else:
        text = data.decode("utf-8", "replace")

    def escape(character: re.Match[str]) -> str:
        return ascii(character[0])[1:-1]

    return INVISIBLE_CHARACTERS.sub(escape, text.replace("\r\n", "\n"))
