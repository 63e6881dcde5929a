"""`collage mcp`: the program as tools for an assistant, over the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from collage.partitioner.errors import BadInputError, CollageError

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = (
    "Collage finds by measuring which ONNX runtime should run which part of a model. Paths are those of this machine. "
    "tune and diagnose take minutes."
)
_MOST_ROWS = 200


def tune(
    model: str,
    targets: list[str] | None = None,
    output: str | None = None,
    inputs: str | None = None,
    dims: dict[str, int | str] | None = None,
    tolerance: float = 1e-3,
    time_limit_s: float | None = None,
    *,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Find the fastest partition of an ONNX model over some targets, and write it as one ONNX file.

    Targets are like "onnxruntime" or "openvino -precision=bf16"; without any, all installed ones are compared.
    Dims are sizes of free dimensions: 16, "16,64" or "1..512". Inputs are an .npz file of samples. Returns the
    artifact's path and the report.
    """
    from collage.api import tune as run

    limit: dict[str, Any] = {} if time_limit_s is None else {"time_limit_s": time_limit_s}
    artifact = run(
        _path(model),
        targets or [],
        output=None if output is None else _path(output),
        inputs=None if inputs is None else _path(inputs),
        cancel=cancel,
        dims=dims or {},
        tolerance=tolerance,
        **limit,
    )
    return {"artifact": str(artifact.path), "report": dict(artifact.report)}


def explain(artifact: str) -> dict[str, Any]:
    """Say for each partition of an artifact why it runs where it does."""
    from collage.report.explain import explain as run

    return run(_path(artifact))


def diagnose(
    model: str,
    target: str,
    inputs: str | None = None,
    output: str | None = None,
    against: str | None = None,
    dims: dict[str, int] | None = None,
    tolerance: float = 1e-3,
    *,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Find the nodes of a model that are wrong, crash, hang or are slow on a target, with a reproducer for each."""
    from collage.diagnosis.diagnose import diagnose as run
    from collage.diagnosis.output import output_beside
    from collage.diagnosis.request import DiagnoseRequest
    from collage.options import TuneOptions
    from collage.partitioner.target import Target

    source = _path(model)
    return run(
        DiagnoseRequest(
            source=source,
            target=Target.parse(target),
            output=output_beside(source) if output is None else _path(output),
            options=TuneOptions.from_json({"dims": dims or {}, "tolerance": tolerance}),
            inputs=None if inputs is None else _path(inputs),
            against=None if against is None else Target.parse(against),
        ),
        cancel=cancel,
    )


def costs(search: str = "", most_rows: int = 50) -> dict[str, Any]:
    """Say which target is fast at which operators, shapes and data types, as measured on this machine so far.

    Search words must all be part of a row, as in "conv 3x3 openvino".
    """
    from collage.atlas.atlas import read_atlas
    from collage.cost_db.connections import default_url
    from collage.cost_db.database import CostDatabase

    database = CostDatabase(default_url())
    try:
        found = read_atlas(database, search)
    finally:
        database.close()
    most = max(1, min(most_rows, _MOST_ROWS))
    rows, differences = found["rows"], found["differences"]
    return {**found, "rows": rows[:most], "differences": differences[:most], "all_rows": len(rows)}


def make_server() -> MCPServer:
    """The server with its tools.

    Raises:
        BadInputError: the SDK is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise BadInputError("collage mcp needs the MCP SDK: pip install 'collage-tuner[mcp]'")
    from mcp.server import MCPServer

    server: MCPServer = MCPServer("collage", instructions=_INSTRUCTIONS)
    for tool in (tune, explain, diagnose, costs):
        server.tool()(_told(tool))
    return server


def _path(text: str) -> Path:
    """A path as a user writes it, with `~` for a home folder.

    Raises:
        BadInputError: there is no such home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BadInputError(f"there is no home folder for {text!r}; give a whole path") from None


def _told(tool: Callable[..., dict[str, Any]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The same tool in a thread, whose errors reach the caller; the SDK keeps other messages to itself.

    A caller that cancels, or goes away, stops a tool that has `cancel`.
    """
    import anyio.to_thread
    from mcp.server.mcpserver.exceptions import ToolError

    signature = inspect.signature(tool, eval_str=True)
    given = [p for p in signature.parameters.values() if p.name != "cancel"]

    @functools.wraps(tool)
    async def run(**arguments: Any) -> dict[str, Any]:
        cancel = threading.Event()
        if len(given) < len(signature.parameters):
            arguments["cancel"] = cancel
        try:
            return await anyio.to_thread.run_sync(
                functools.partial(tool, **arguments), abandon_on_cancel=True
            )
        except (CollageError, OSError, ValueError) as error:
            raise ToolError(str(error)) from error
        finally:
            cancel.set()

    run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return run


def mcp() -> None:
    """Serve tune, explain, diagnose and costs as tools over MCP, on stdin and stdout."""
    make_server().run("stdio")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(mcp)
