"""The tools of `collage mcp`, called by a client of the SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.collage.diagnosis.conftest import long_model

mcp = pytest.importorskip("mcp")


def called(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of some calls of tools."""

    async def call_all() -> list[Any]:
        async with mcp.Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(call_all())


def test_the_tools_and_their_arguments_are_listed() -> None:
    from collage.cli.checking.mcp_server import make_server

    async def listed() -> Any:
        async with mcp.Client(make_server()) as client:
            return await client.list_tools()

    tools = {tool.name: tool for tool in asyncio.run(listed()).tools}
    assert set(tools) == {"tune", "explain", "diagnose", "costs"}
    assert all(tool.description for tool in tools.values())


def test_a_user_s_mistake_is_the_answer(tmp_path: Path) -> None:
    from collage.cli.checking.mcp_server import make_server

    (result,) = called(make_server(), ("explain", {"artifact": str(tmp_path / "none.onnx")}))
    assert result.is_error and "none.onnx" in result.content[0].text


@pytest.mark.slow
def test_tools_are_called_over_stdin_and_stdout(tmp_path: Path) -> None:
    onnx.save(long_model(10), tmp_path / "m.onnx")
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "collage", "mcp"], env=environment
    )
    model, artifact = str(tmp_path / "m.onnx"), str(tmp_path / "tuned.onnx")
    tuning = {
        "model": model,
        "targets": ["onnxruntime"],
        "output": artifact,
        "time_limit_s": 5.0,
    }
    tuned, explained, diagnosed, costs = called(
        server,
        ("tune", tuning),
        ("explain", {"artifact": artifact}),
        ("diagnose", {"model": model, "target": "onnxruntime", "against": "onnxruntime -opt=none"}),
        ("costs", {"search": "matmul"}),
    )
    for result in (tuned, explained, diagnosed, costs):
        assert not result.is_error, result.content
    assert tuned.structured_content["artifact"] == artifact
    assert explained.structured_content["partitions"][0]["target"].startswith("onnxruntime")
    assert diagnosed.structured_content["faults"]["culprits"] == []
    assert "rows" in costs.structured_content
