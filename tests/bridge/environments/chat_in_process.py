"""A harness of verifiers that chats without a program of its own: model and tools are reached as
any harness does.
"""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp


class ChatConfig(vf.HarnessConfig):
    pass


class ChatHarness(vf.Harness[ChatConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        del trace, runtime  # other harnesses run their program in it
        messages = [message.model_dump(exclude_none=True) for message in data.prompt]
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["function"] = {"name": call.pop("name"), "arguments": call.pop("arguments")}
        async with AsyncExitStack() as stack:
            servers = {name: {"url": url} for name, url in mcp_urls.items()}
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
            while True:
                body = {"model": ctx.model, "messages": messages} | (
                    {"tools": tools} if tools else {}
                )
                headers = {"Authorization": f"Bearer {secret}"}
                reply = (
                    await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                ).json()
                said = reply["choices"][0]["message"]
                messages.append(said)
                for call in said.get("tool_calls") or ():
                    of = call["function"]
                    result = await call_mcp(
                        connections, dispatch, of["name"], json.loads(of["arguments"])
                    )
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if not said.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["ChatHarness"]
