"""verifiers' environments (its v1) as tasksets: its tasks, tools, users and rewards, played in this
process.

verifiers runs an agent as a program against a model server. Here the model is ours and the agent is
a plain chat, so a `Seat` takes the agent's place: what the environment sends to its agent goes to
the model, tools run as functions, and the environment's own hooks score the trace. Nothing of an
episode is made up: what a trace needs and a chat does not have (token counts, providers) is left
empty, and an environment that needs more than a chat is refused.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import distributions, version
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import verifiers.v1 as vf
from annotated_types import Ge
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool as Function
from pydantic import ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects import parse_message
from verifiers.v1.graph import prepare_turn
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
from verifiers.v1.runtimes import provision_runtime
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text
from verifiers.v1.utils.decorators import discover_decorated, invoke
from verifiers.v1.utils.loaders import taskset_config_type

from uptrend.bridge.environments import ForeignField, options_from
from uptrend.config.load import nearest
from uptrend.records import ConfigError, Message, Part, Reward, Task, TasksetError, Tool
from uptrend.tasks.taskset import LoadedTasks, Script, Taskset, say


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """Options of every environment, beside its own."""

    heldout: dict[str, Any] = field(default_factory=dict)
    """The environment's options for held-out tasks, such as {split = "test"}; without, a quarter is
    held out.
    """
    bounds: tuple[float, ...] = ()
    """The lowest and the highest reward, which an environment does not tell. Without, 1 or more
    counts as correct.
    """
    limit: Annotated[int, Ge(1)] = 10_000
    """The most tasks that are read of an environment without an end."""
    chat: bool = True
    """Send prompts through the model's chat template."""


class Environment:
    """An environment of verifiers; `taskset_of` makes a class of it for each."""

    name: ClassVar[str]
    version: ClassVar[str]
    Options: ClassVar[type[Any]]

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.chat = options.chat
        self.notes = list[str]()
        # environment and task of verifiers, by our id
        self._played: dict[str, tuple[Any, Any]] = {}
        rows = self._read({})
        order = f"{self.name}-{seed}"
        self._heldout: LoadedTasks | None = None
        self._held_ids = frozenset[str]()
        if options.heldout:
            held = self._read(options.heldout)
            self._heldout = LoadedTasks(self.name, held, "heldout", order, 1.0, self.notes)
            self._held_ids = frozenset(task.id for task in held)
        else:
            self.notes.append(
                f"{self.name} holds out a quarter of its tasks; tasks.heldout can name a split"
                " instead"
            )
        self.loaded = LoadedTasks(
            self.name, rows, "train" if self._heldout else "quarter", order, 1.0, self.notes
        )
        if not options.bounds:
            unknown = (
                "does not tell the bounds of its reward (tasks.bounds); accuracy counts a reward of"
                " 1 or more"
            )
            self.notes.append(f"{self.name} {unknown}")

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return self.loaded.train(count, self._held_ids.union(exclude))

    def heldout(self, count: int) -> list[Task]:
        return (self._heldout or self.loaded).heldout(count)

    def open(self, task: Task, seed: int) -> "Seat":  # noqa: ARG002 (an environment takes no seed)
        return Seat(*self._played[task.id], self.options.bounds)

    def gold(self, task: Task) -> Script:
        raise TasksetError(f"{self.name} tells no gold answers, such as to {task.id}.")

    def corrupted(self, task: Task) -> Iterable[Script]:  # noqa: ARG002 (the same for all)
        """Say nothing, and garbage."""
        return map(say, ("", "@@ ??"))

    def _read(self, changes: Mapping[str, Any]) -> list[Task]:
        given = _given(self.name, {**vars(self.options), **changes})
        try:
            environment = vf.load_environment(vf.resolve_env_config({"taskset": given}))
            rows = list(
                islice(
                    environment.taskset,
                    self.options.limit if environment.taskset.INFINITE else None,
                )
            )
        except (
            Exception
        ) as error:  # an environment's own, such as a program or a file that it lacks
            raise TasksetError(f"{self.name} gives no tasks: {error}") from error
        tasks: list[Task] = []
        for row in rows:
            if needed := _needs(environment, row):
                raise TasksetError(f"{self.name} {needed}.")
            messages = tuple(
                Message(m.role, content_text(m.content)) for m in first_messages(row.data)
            )
            answer = getattr(row.data, "answer", "")
            tasks.append(Task(messages, str(answer), self.name, data={"hash": row.hash}))
            self._played.setdefault(tasks[-1].id, (environment, row))
        return tasks


class Seat:
    """The agent of one episode, and our play of it: what the environment tells its agent, the model
    hears.
    """

    trainable = True

    def __init__(self, environment: Any, task: Any, bounds: Sequence[float]) -> None:
        self._environment = environment
        self._task = task
        self._bounds = bounds
        ((self._name, spec),) = agent_config_fields(environment.config).items()
        recorded = vf.TraceTask(
            type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
        )
        self.trace = vf.Trace(
            task=recorded,
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=spec, name=self._name),
        )
        self._toolsets = _toolsets(environment, task)
        self._functions: dict[str, Function] = {}
        for toolset in self._toolsets:
            # Tools of a server in another process would get this state over HTTP.
            toolset.__class__ = type(
                type(toolset).__name__, (type(toolset),), {"state": self.trace.state}
            )
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in discover_decorated(toolset, "tool"):
                name = prefix + (getattr(tool, "tool_name", None) or tool.__name__)
                self._functions[name] = Function.from_function(
                    tool, name, description=(tool.__doc__ or "").strip()
                )
        self.tools = tuple(
            Tool(f.name, f.description, f.parameters) for f in self._functions.values()
        )
        self.messages = tuple(
            Message(m.role, content_text(m.content)) for m in first_messages(task.data)
        )
        self._conversation: list[Any] = []
        # to the model; None where the episode is over
        self._heard = asyncio.Queue[Sequence[Message] | None]()
        # from the model; None where it may not speak again
        self._said = asyncio.Queue[Message | None]()
        self._episode: asyncio.Task[None] | None = None

    # The play's side.

    async def respond(self, message: Message) -> Sequence[Message] | None:
        await self._begin()
        self._said.put_nowait(message)
        return await self._hear()

    async def score(self) -> Reward:
        """Return the sum of the environment's rewards, each a part; an episode that was cut is
        scored as it stands.
        """
        await self._begin()
        assert self._episode is not None
        self._said.put_nowait(None)
        await self._episode
        if not self.trace.rewards or None in self.trace.rewards.values():
            raise ValueError(f"the environment recorded the rewards {self.trace.rewards}")
        parts = tuple(
            Part(n, r.score, math.nan, math.nan, r.weight) for n, r in self.trace.rewards.items()
        )
        low, high = self._bounds or (math.nan, math.nan)
        return Reward(
            self.trace.reward,
            low,
            high,
            correct=self.trace.reward >= (1.0 if math.isnan(high) else high) - 1e-9,
            parts=parts,
        )

    async def close(self) -> None:
        if self._episode is not None:
            self._episode.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._episode

    async def _begin(self) -> None:
        if self._episode is None:
            self._episode = asyncio.create_task(self._play())
            heard = await self._hear()
            if heard is not None and tuple(heard) != self.messages:
                raise ValueError(
                    f"the environment opens with {heard}, which is not its task's prompt"
                )

    async def _hear(self) -> Sequence[Message] | None:
        assert self._episode is not None
        heard = None if self._episode.done() else await self._heard.get()
        if heard is None:
            await self._episode  # raises what failed in it
        return heard

    async def _play(self) -> None:
        environment = self._environment
        agents = SimpleNamespace(**{self._name: self})
        try:
            await environment.setup(agents)
            await environment.run(self._task, agents)
            episode = vf.Episode(
                env=vf.EnvInfo(id=environment.config.env_id),
                task=self.trace.task,
                traces=[self.trace],
            )
            await environment.finalize(self._task, episode)
        finally:
            self._heard.put_nowait(None)

    # The agent's side, with the methods of `vf.Agent` and `vf.Interaction`.

    async def run(self, task: Any, **_: Any) -> Any:
        async with self.interaction(task):
            await self.turn()
            if self.trace.stop_condition is None:
                self.trace.stop("agent_completed")
        return self.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator["Seat"]:
        if self._conversation:
            raise ValueError(
                "the environment plays a task more than once in an episode; Uptrend plays it once"
            )
        self._task = task
        self._conversation = list(first_messages(task.data))
        async with provision_runtime(
            vf.SubprocessConfig(), self.trace.id, task.runtime_env()
        ) as runtime:
            available = {"trace": self.trace, "runtime": runtime}
            await invoke(task.setup, available)
            for toolset in self._toolsets:
                await toolset.setup()
                await toolset.setup_task(task.data)
            yield self
            self.trace.stop("user_closed")
            await invoke(task.finalize, available)
            await task.score(self.trace, runtime)
            self.trace.ok = True

    async def turn(self, message: Any = None) -> Any:
        """Let the model speak, and its tools answer, until it calls none."""
        if isinstance(message, str):
            message = [vf.UserMessage(content=message)]
        told = [parse_message(m) if isinstance(m, dict) else m for m in message or ()]
        self._conversation += told
        new = self._conversation if message is None else told
        before = len(self.trace.nodes)
        tools = [vf.Tool(**asdict(tool)) for tool in self.tools]
        while (said := await self._ask(new)) is not None:
            reply = vf.AssistantMessage(
                content=said.content,
                tool_calls=[
                    vf.ToolCall(
                        id=f"call-{self.trace.num_turns}-{i}",
                        name=call.name,
                        arguments=json.dumps(call.arguments),
                    )
                    for i, call in enumerate(said.calls)
                ]
                or None,
            )
            response = vf.Response(
                id="", created=int(time.time()), model="", message=reply, finish_reason=None
            )
            prepare_turn(self.trace, self._conversation, tools).commit(response)
            new = [
                await self._call(call, of)
                for call, of in zip(reply.tool_calls or (), said.calls, strict=True)
            ]
            self._conversation += [reply, *new]
            if not new:
                break
        else:  # what it may not answer any more, it was still told
            prepare_turn(self.trace, self._conversation, tools).commit_prompt()
        nodes = self.trace.nodes[before:]
        if not any(node.sampled for node in nodes):
            return vf.Segment(messages=[], terminated=True)
        return vf.Segment(
            messages=[n.message for n in nodes if n.sampled or n.message.role == "tool"]
        )

    async def _ask(self, new: Sequence[Any]) -> Message | None:
        for stop in self._task.hooks("stop"):
            if await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        if self.trace.stop_condition is not None:
            return None
        self._heard.put_nowait([Message(m.role, content_text(m.content)) for m in new])
        said = await self._said.get()
        if said is None:
            self.trace.stop("max_turns")
        return said

    async def _call(self, call: Any, of: Any) -> Any:
        """Run a tool; the words for what goes wrong are those of verifiers' own chat program."""
        function = self._functions.get(of.name)
        if function is None:
            content: Any = f"error: unknown tool {of.name!r}"
        else:
            try:
                result = await function.run(dict(of.arguments), Context(), convert_result=True)
                content = mcp_content_to_chat_content(result.content)
            except ToolError as error:
                content = str(error)
        return vf.ToolMessage(tool_call_id=call.id, content=content, name=of.name)


def first_messages(data: Any) -> list[Any]:
    """Return a task's system prompt and prompt as messages."""
    prompt = (
        [vf.UserMessage(content=data.prompt)]
        if isinstance(data.prompt, str)
        else list(data.prompt or ())
    )
    return [
        *([vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []),
        *prompt,
    ]


def _toolsets(environment: Any, task: Any) -> list[Any]:
    taskset = environment.taskset
    return [*taskset.toolsets(taskset.config), *task.toolsets(task.config)]


def _needs(environment: Any, task: Any) -> str:
    """Return what an environment needs beyond a chat with one model, as the end of a sentence;
    empty if nothing.
    """
    agents = agent_config_fields(environment.config)
    servers = [
        s
        for s in _toolsets(environment, task)
        if getattr(s.config, "url", None)
        or not isinstance(getattr(s.config, "runtime", vf.SubprocessConfig()), vf.SubprocessConfig)
        or type(s).register is not vf.Toolset.register
    ]
    hooks = [hook_boundary(stop, allow_trace=True) for stop in task.hooks("stop")]
    contents = [m.content for m in first_messages(task.data)]
    images = [
        part
        for content in contents
        if isinstance(content, list)
        for part in content
        if part.type != "text"
    ]
    found = {
        f"plays {len(agents)} agents ({', '.join(agents)}), and Uptrend plays one": (
            len(agents) != 1
        ),
        "starts services of its own": type(environment).start is not vf.Env.start,
        f"needs a sandbox (image {task.data.image})": task.NEEDS_CONTAINER or task.data.image,
        "is scored by a judge, which is another model": task.config.judges,
        "lets its user open the conversation; its tasks need a prompt": not task.data.prompt,
        "shows images": images,
        "rewrites messages between model and agent": discover_decorated(task, "intercept"),
        "stops on single requests or responses": any(kind is not vf.Trace for kind in hooks),
        (
            f"needs the tool server {servers[0].server_name!r} outside this process"
            if servers
            else ""
        ): servers,
    }
    return next((sentence for sentence, holds in found.items() if holds), "")


def _given(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's own options as verifiers reads them."""
    own = {
        key: value for key, value in table.items() if key not in EnvironmentOptions.__annotations__
    }
    return {
        "id": name.partition(":")[2],
        **{k: list(v) if isinstance(v, tuple) else v for k, v in own.items()},
    }


@cache
def taskset_of(name: str) -> type[Taskset]:
    """Return the taskset of an installed environment."""
    if str(Path.cwd()) not in sys.path:  # a package of one's own may lie where the command is given
        sys.path.append(str(Path.cwd()))
    try:
        config = taskset_config_type(name)
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None) or ""
        if missing and missing != name.replace("-", "_").lower():  # a package that it imports
            raise TasksetError(
                f"The verifiers environment {name!r} can't be loaded: {error.__cause__}."
            ) from error
        installed = [
            d.name
            for d in distributions()
            if any(r.startswith("verifiers") for r in d.requires or ())
        ]
        near = nearest(name, installed) or " Install its package, which exports a vf.Taskset."
        raise TasksetError(
            f"There is no verifiers environment {name!r} among the installed packages.{near}"
        ) from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TasksetError(
            f"The verifiers environment {name!r} can't be loaded: {error}"
        ) from error
    full = f"verifiers:{name}"

    def check(self: Any) -> None:
        if self.bounds and not (len(self.bounds) == 2 and self.bounds[0] < self.bounds[1]):
            raise ConfigError(
                f"bounds = {list(self.bounds)} should be [lowest, highest].", is_of_field=True
            )
        for where, changes in (("", dict[str, Any]()), ("heldout.", self.heldout)):
            try:
                config.model_validate(_given(full, {**vars(self), **changes}))
            except ValidationError as error:
                first = error.errors()[0]
                # a rule across keys has no place
                key = ".".join(map(str, first["loc"])) or "options"
                raise ConfigError(f"{where}{key}: {first['msg']}.", is_of_field=True) from None

    found = []
    for key, each in config.model_fields.items():
        if key != "id":
            default = each.get_default(call_default_factory=True)
            plain = default.model_dump(mode="json") if hasattr(default, "model_dump") else default
            found.append(
                ForeignField(key, each.annotation, *(() if each.is_required() else (plain,)))
            )
    options = options_from(EnvironmentOptions, found, {"__post_init__": check})
    line = f"The verifiers environment {name}."
    members = {"name": full, "version": version("verifiers"), "Options": options, "__doc__": line}
    return type("Environment", (Environment,), members)
