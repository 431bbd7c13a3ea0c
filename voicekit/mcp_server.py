"""A tool backend as an MCP server, over stdio or over streamable HTTP on this machine.

    python -m voicekit.mcp_server                    the shop's tools, over stdio
    python -m voicekit.mcp_server weather --http 0   a server of data/catalogue.csv, on a free port of 127.0.0.1

Every call goes through `ToolBackend.call(route="mcp")`: validation, gate and ledger are those of every other route. The
protocol asks the host to obtain a person's consent and cannot enforce it, so the gate stands here as well: a call that
needs a yes is answered with the question, and not run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voicekit.backend import ToolBackend
from voicekit.gate import Gate
from voicekit.ledger import Ledger
from voicekit.results import Result

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

HOST = "127.0.0.1"
NOT_INSTALLED = "the MCP lessons need the package mcp; pip install 'voicekit[notebooks]'"


def server(backend: ToolBackend, resources: Mapping[str, str] | None = None, name: str = "voicekit") -> Server[Any]:
    """An MCP server for the tools of `backend` and for `resources` (text by URI).

    Raises ImportError naming the mend where the package mcp is missing.
    """
    try:
        import mcp.types as types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise ImportError(NOT_INSTALLED) from None
    texts = dict(resources or {})

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=each.name,
                    description=each.description,
                    input_schema=each.parameters,
                    annotations=types.ToolAnnotations(
                        read_only_hint=each.effect == "read", destructive_hint=each.effect == "irreversible"
                    ),
                )
                for each in (backend.tool(name) for name in backend.names)
            ]
        )

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        result = await backend.call(params.name, params.arguments or {}, route="mcp")
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(result, ensure_ascii=False))],
            structured_content=result,
            is_error=not succeeded(result),
        )

    async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name=uri, uri=uri) for uri in texts])

    async def read_resource(_context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if uri not in texts:
            raise ValueError(f"no resource {uri}; there are {', '.join(texts) or 'none'}")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=texts[uri])])

    return Server(
        name,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def succeeded(result: Result) -> bool:
    """Whether the tool ran and answered; a question for consent is an error to the model: nothing has been done."""
    return result["status"] in ("ok", "no_results")


async def serve_stdio(served: Server[Any]) -> None:
    """Serve until the client closes our standard input."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (incoming, outgoing):
        await served.run(incoming, outgoing, served.create_initialization_options())


async def serve_http(served: Server[Any], port: int = 0) -> None:
    """Serve on 127.0.0.1 until cancelled; the address is the first line on stderr. Port 0 takes a free one."""
    import uvicorn

    listening = socket.create_server((HOST, port))
    print(f"http://{HOST}:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    config = uvicorn.Config(served.streamable_http_app(host=HOST), log_level="error", lifespan="on")
    await uvicorn.Server(config).serve(sockets=[listening])


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m voicekit.mcp_server`."""
    parser = argparse.ArgumentParser(prog="python -m voicekit.mcp_server", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("server", nargs="?", default="shop", help="shop, or a server of data/catalogue.csv")
    parser.add_argument("--day", type=int, default=1, help="which of its days the catalogue's server is on")
    parser.add_argument("--without-asking", metavar="A,B", help="the tools that need no consent; default: all")
    parser.add_argument("--ledger", default=":memory:", metavar="FILE", help="where the calls are written down")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve streamable HTTP on 127.0.0.1 instead of stdio")
    options = parser.parse_args(arguments)
    from voicekit.lessons import catalogue
    from voicekit.world import World

    try:
        if options.server == "shop":
            tools = World(bookings=[("friday", "10:00")]).tools(seconds=0.0)
        else:
            tools = catalogue.tools(options.server, options.day)
        listed = None if options.without_asking is None else options.without_asking.split(",")
        with Ledger(options.ledger) as ledger:
            served = server(ToolBackend(tools, ledger, gate=Gate(listed)), name=options.server)
            asyncio.run(serve_stdio(served) if options.http is None else serve_http(served, options.http))
    except (ImportError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
