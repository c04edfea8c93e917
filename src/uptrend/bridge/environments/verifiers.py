"""verifiers' environments (its v1) as tasksets: its tasks, tools, users and rewards, played in this
process.

verifiers runs an agent as a program against a model server. Here the model is ours and the agent is
a plain chat, so an `AgentPlay` takes the agent's place: what the environment sends to its agent
goes to the model, tools run as functions, and the environment's own hooks score the trace. Nothing
of an episode is made up: what a trace needs and a chat does not have (token counts, providers) is
left empty, and an environment that needs more than a chat is refused.
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
from uptrend.records import ConfigError, Message, Part, Reward, Task, TasksetError, Tool, ToolCall
from uptrend.tasks.taskset import LoadedTasks, Script, Taskset, say

# Least reward that counts as correct, where the bounds are unknown; and rounding below it.
DEFAULT_CORRECT_REWARD = 1.0
REWARD_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """Options of every environment, beside its own."""

    heldout: dict[str, Any] = field(default_factory=dict)
    """The environment's options for held-out tasks, such as {split = "test"}; by default a quarter
    of its tasks is held out.
    """
    bounds: tuple[float, ...] = ()
    """Lowest and highest reward, which an environment does not state. By default a reward of 1 or
    more counts as correct.
    """
    limit: Annotated[int, Ge(1)] = 10_000
    """Maximum number of tasks to read from an endless environment."""
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
        # Environment and task of verifiers, by our task's id.
        self._foreign_tasks: dict[str, tuple[Any, Any]] = {}
        tasks = self._read({})
        shuffle_seed = f"{self.name}-{seed}"
        self._heldout: LoadedTasks | None = None
        self._heldout_ids = frozenset[str]()
        if options.heldout:
            heldout = self._read(options.heldout)
            self._heldout = LoadedTasks(
                self.name, heldout, "heldout", shuffle_seed, 1.0, self.notes
            )
            self._heldout_ids = frozenset(task.id for task in heldout)
        else:
            self.notes.append(
                f"{self.name} holds out a quarter of its tasks; tasks.heldout can name a split"
                " instead"
            )
        self._tasks = LoadedTasks(
            self.name, tasks, "train" if self._heldout else "quarter", shuffle_seed, 1.0, self.notes
        )
        if not options.bounds:
            self.notes.append(
                f"{self.name} does not tell the bounds of its reward (tasks.bounds); accuracy"
                " counts a reward of 1 or more"
            )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        return self._tasks.train(count, self._heldout_ids.union(exclude))

    def heldout(self, count: int) -> list[Task]:
        return (self._heldout or self._tasks).heldout(count)

    def open(self, task: Task, seed: int) -> "AgentPlay":  # noqa: ARG002 (an environment takes no seed)
        environment, foreign_task = self._foreign_tasks[task.id]
        return AgentPlay(environment, foreign_task, self.options.bounds)

    def gold(self, task: Task) -> Script:
        raise TasksetError(f"{self.name} tells no gold answers, such as to {task.id}.")

    def corrupted(self, task: Task) -> Iterable[Script]:  # noqa: ARG002 (the same for all)
        """Return scripts of silence and of garbage."""
        return map(say, ("", "@@ ??"))

    def _read(self, changes: Mapping[str, Any]) -> list[Task]:
        """Read the environment's tasks, with some options changed."""
        config = _taskset_config(self.name, {**vars(self.options), **changes})
        try:
            environment = vf.load_environment(vf.resolve_env_config({"taskset": config}))
            limit = self.options.limit if environment.taskset.INFINITE else None
            foreign_tasks = list(islice(environment.taskset, limit))
        except Exception as error:  # its own, such as a program or a file that it lacks
            raise TasksetError(f"{self.name} gives no tasks: {error}") from error
        tasks: list[Task] = []
        for foreign_task in foreign_tasks:
            reason = _why_unplayable(environment, foreign_task)
            if reason:
                raise TasksetError(f"{self.name} {reason}.")
            data = foreign_task.data
            messages = tuple(map(_our_message, first_messages(data)))
            answer = str(getattr(data, "answer", ""))
            task = Task(messages, answer, self.name, data={"hash": foreign_task.hash})
            tasks.append(task)
            self._foreign_tasks.setdefault(task.id, (environment, foreign_task))
        return tasks


class AgentPlay:
    """The agent of one episode, and our play of it: what the environment sends to its agent goes to
    the model.
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
        self.messages = tuple(map(_our_message, first_messages(task.data)))
        self._conversation: list[Any] = []
        # To the model; None where the episode is over.
        self._to_model = asyncio.Queue[Sequence[Message] | None]()
        # From the model; None where it may not reply again.
        self._from_model = asyncio.Queue[Message | None]()
        self._episode: asyncio.Task[None] | None = None

    # The play's side.

    async def respond(self, message: Message) -> Sequence[Message] | None:
        await self._begin()
        self._from_model.put_nowait(message)
        return await self._receive()

    async def score(self) -> Reward:
        """Return the sum of the environment's rewards, each a part; an episode that was cut is
        scored as it stands.
        """
        await self._begin()
        assert self._episode is not None
        self._from_model.put_nowait(None)
        await self._episode
        rewards = self.trace.rewards
        if not rewards or None in rewards.values():
            raise ValueError(f"the environment recorded the rewards {rewards}")
        parts: list[Part] = []
        for name, part in rewards.items():
            parts.append(Part(name, part.score, math.nan, math.nan, part.weight))
        low, high = self._bounds or (math.nan, math.nan)
        correct_reward = DEFAULT_CORRECT_REWARD if math.isnan(high) else high
        total = self.trace.reward
        is_correct = total >= correct_reward - REWARD_ROUNDING
        return Reward(total, low, high, correct=is_correct, parts=tuple(parts))

    async def close(self) -> None:
        if self._episode is not None:
            self._episode.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._episode

    async def _begin(self) -> None:
        if self._episode is None:
            self._episode = asyncio.create_task(self._play())
            opening = await self._receive()
            if opening is not None and tuple(opening) != self.messages:
                raise ValueError(
                    f"the environment opens with {opening}, which is not its task's prompt"
                )

    async def _receive(self) -> Sequence[Message] | None:
        """Return the environment's next messages; None where the episode is over."""
        assert self._episode is not None
        messages = None if self._episode.done() else await self._to_model.get()
        if messages is None:
            await self._episode  # raises what failed in it
        return messages

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
            self._to_model.put_nowait(None)

    # The agent's side, with the methods of `vf.Agent` and `vf.Interaction`.

    async def run(self, task: Any, **_: Any) -> Any:
        async with self.interaction(task):
            await self.turn()
            if self.trace.stop_condition is None:
                self.trace.stop("agent_completed")
        return self.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator["AgentPlay"]:
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
        """Let the model reply, and its tools answer, until it calls none."""
        if isinstance(message, str):
            message = [vf.UserMessage(content=message)]
        incoming = [parse_message(m) if isinstance(m, dict) else m for m in message or ()]
        self._conversation += incoming
        new_messages = self._conversation if message is None else incoming
        first_node = len(self.trace.nodes)
        tools = [vf.Tool(**asdict(tool)) for tool in self.tools]
        while (reply := await self._ask_model(new_messages)) is not None:
            calls = [self._foreign_call(i, call) for i, call in enumerate(reply.calls)]
            foreign_reply = vf.AssistantMessage(content=reply.content, tool_calls=calls or None)
            response = vf.Response(
                id="", created=int(time.time()), model="", message=foreign_reply, finish_reason=None
            )
            prepare_turn(self.trace, self._conversation, tools).commit(response)
            new_messages = []
            for call, own_call in zip(calls, reply.calls, strict=True):
                new_messages.append(await self._run_tool(call, own_call))
            self._conversation += [foreign_reply, *new_messages]
            if not new_messages:
                break
        else:  # messages that it may not answer any more still belong to its trace
            prepare_turn(self.trace, self._conversation, tools).commit_prompt()
        nodes = self.trace.nodes[first_node:]
        if not any(node.sampled for node in nodes):
            return vf.Segment(messages=[], terminated=True)
        return vf.Segment(
            messages=[n.message for n in nodes if n.sampled or n.message.role == "tool"]
        )

    async def _ask_model(self, new_messages: Sequence[Any]) -> Message | None:
        """Send messages to the model; return its reply, None where it may not reply any more."""
        for stop in self._task.hooks("stop"):
            if await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        if self.trace.stop_condition is not None:
            return None
        self._to_model.put_nowait(list(map(_our_message, new_messages)))
        reply = await self._from_model.get()
        if reply is None:
            self.trace.stop("max_turns")
        return reply

    def _foreign_call(self, i: int, call: ToolCall) -> Any:
        """Return a call of a tool as verifiers has it."""
        return vf.ToolCall(
            id=f"call-{self.trace.num_turns}-{i}",
            name=call.name,
            arguments=json.dumps(call.arguments),
        )

    async def _run_tool(self, foreign_call: Any, call: ToolCall) -> Any:
        """Run a tool; the words for what goes wrong are those of verifiers' own chat program."""
        function = self._functions.get(call.name)
        if function is None:
            content: Any = f"error: unknown tool {call.name!r}"
        else:
            try:
                result = await function.run(dict(call.arguments), Context(), convert_result=True)
                content = mcp_content_to_chat_content(result.content)
            except ToolError as error:
                content = str(error)
        return vf.ToolMessage(tool_call_id=foreign_call.id, content=content, name=call.name)


def first_messages(data: Any) -> list[Any]:
    """Return a task's system prompt and prompt as messages."""
    messages: list[Any] = []
    if data.system_prompt:
        messages.append(vf.SystemMessage(content=data.system_prompt))
    if isinstance(data.prompt, str):
        messages.append(vf.UserMessage(content=data.prompt))
    else:
        messages += data.prompt or ()
    return messages


def _our_message(message: Any) -> Message:
    return Message(message.role, content_text(message.content))


def _toolsets(environment: Any, task: Any) -> list[Any]:
    taskset = environment.taskset
    return [*taskset.toolsets(taskset.config), *task.toolsets(task.config)]


def _why_unplayable(environment: Any, task: Any) -> str:
    """Return the first need of an environment beyond a chat with one model, as the end of a
    sentence; empty if it has none.
    """
    agents = agent_config_fields(environment.config)
    if len(agents) != 1:
        return f"plays {len(agents)} agents ({', '.join(agents)}), and Uptrend plays one"
    if type(environment).start is not vf.Env.start:
        return "starts services of its own"
    if task.NEEDS_CONTAINER or task.data.image:
        return f"needs a sandbox (image {task.data.image})"
    if task.config.judges:
        return "is scored by a judge, which is another model"
    if not task.data.prompt:
        return "lets its user open the conversation; its tasks need a prompt"
    if any(map(_has_image, first_messages(task.data))):
        return "shows images"
    if discover_decorated(task, "intercept"):
        return "rewrites messages between model and agent"
    hooks = [hook_boundary(stop, allow_trace=True) for stop in task.hooks("stop")]
    if any(kind is not vf.Trace for kind in hooks):
        return "stops on single requests or responses"
    for toolset in _toolsets(environment, task):
        if _needs_server(toolset):
            return f"needs the tool server {toolset.server_name!r} outside this process"
    return ""


def _has_image(message: Any) -> bool:
    """Return True where a message has a part that is not text."""
    content = message.content
    return isinstance(content, list) and any(part.type != "text" for part in content)


def _needs_server(toolset: Any) -> bool:
    """Return True where the tools can't run as functions in this process."""
    runtime = getattr(toolset.config, "runtime", vf.SubprocessConfig())
    has_url = bool(getattr(toolset.config, "url", None))
    is_local = isinstance(runtime, vf.SubprocessConfig)
    return has_url or not is_local or type(toolset).register is not vf.Toolset.register


def _taskset_config(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's own options as verifiers reads them."""
    config: dict[str, Any] = {"id": name.partition(":")[2]}
    for key, value in options.items():
        if key not in EnvironmentOptions.__annotations__:
            config[key] = list(value) if isinstance(value, tuple) else value
    return config


@cache
def taskset_of(name: str) -> type[Taskset]:
    """Return the taskset of an installed environment."""
    if str(Path.cwd()) not in sys.path:  # a user's package may be there
        sys.path.append(str(Path.cwd()))
    try:
        config = taskset_config_type(name)
    except ModuleNotFoundError as error:
        missing = getattr(error.__cause__, "name", None) or ""
        if missing and missing != name.replace("-", "_").lower():  # a package that it imports
            raise TasksetError(
                f"The verifiers environment {name!r} can't be loaded: {error.__cause__}."
            ) from error
        near = nearest(name, _installed_environments())
        near = near or " Install its package, which exports a vf.Taskset."
        raise TasksetError(
            f"There is no verifiers environment {name!r} among the installed packages.{near}"
        ) from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TasksetError(
            f"The verifiers environment {name!r} can't be loaded: {error}"
        ) from error
    full_name = f"verifiers:{name}"

    def check(self: Any) -> None:
        if self.bounds and not (len(self.bounds) == 2 and self.bounds[0] < self.bounds[1]):
            raise ConfigError(
                f"bounds = {list(self.bounds)} should be [lowest, highest].", is_of_field=True
            )
        for prefix, changes in (("", dict[str, Any]()), ("heldout.", self.heldout)):
            try:
                config.model_validate(_taskset_config(full_name, {**vars(self), **changes}))
            except ValidationError as error:
                first = error.errors()[0]
                # A rule across keys has no place.
                key = ".".join(map(str, first["loc"])) or "options"
                raise ConfigError(f"{prefix}{key}: {first['msg']}.", is_of_field=True) from None

    foreign_fields: list[ForeignField] = []
    for key, model_field in config.model_fields.items():
        if key == "id":
            continue
        if model_field.is_required():
            foreign_fields.append(ForeignField(key, model_field.annotation))
            continue
        default = model_field.get_default(call_default_factory=True)
        if hasattr(default, "model_dump"):
            default = default.model_dump(mode="json")
        foreign_fields.append(ForeignField(key, model_field.annotation, default))
    members = {
        "name": full_name,
        "version": version("verifiers"),
        "Options": options_from(EnvironmentOptions, foreign_fields, {"__post_init__": check}),
        "__doc__": f"The verifiers environment {name}.",
    }
    return type("Environment", (Environment,), members)


def _installed_environments() -> list[str]:
    """Return the names of installed packages that need verifiers."""
    names: list[str] = []
    for distribution in distributions():
        if any(need.startswith("verifiers") for need in distribution.requires or ()):
            names.append(distribution.name)
    return names
