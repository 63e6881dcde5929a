"""The tools of `collage mcp`, called by a client of the SDK."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.collage.diagnosis.conftest import long_model
from tests.collage.needs import needs

pytestmark = needs("mcp")


def called(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of some calls of tools."""
    import mcp

    async def call_all() -> list[Any]:
        async with mcp.Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(call_all())


def test_the_tools_and_their_arguments_are_listed() -> None:
    import mcp

    from collage.cli.checking.mcp_server import make_server

    async def listed() -> Any:
        async with mcp.Client(make_server()) as client:
            return await client.list_tools()

    tools = {tool.name: tool for tool in asyncio.run(listed()).tools}
    assert set(tools) == {"tune", "explain", "diagnose", "costs"}
    assert all(tool.description for tool in tools.values())
    assert "model" in tools["tune"].input_schema["properties"]
    assert all("cancel" not in tool.input_schema["properties"] for tool in tools.values())


def test_a_user_s_mistake_is_the_answer(tmp_path: Path) -> None:
    from collage.cli.checking.mcp_server import make_server

    (result,) = called(make_server(), ("explain", {"artifact": str(tmp_path / "none.onnx")}))
    assert result.is_error and "none.onnx" in result.content[0].text


@pytest.mark.slow
def test_errors_of_paths_are_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage.cli.checking.mcp_server import make_server

    monkeypatch.setenv("HOME", str(tmp_path))
    onnx.save(long_model(5), tmp_path / "m.onnx")
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    asked = {"target": "onnxruntime", "model": "~/m.onnx", "output": "~/taken"}
    taken, nowhere, unnamed = called(
        make_server(),
        ("diagnose", asked),
        ("diagnose", {**asked, "model": "~/none.onnx", "output": None}),
        ("tune", {"model": ""}),
    )
    assert taken.is_error and str(tmp_path / "taken") in taken.content[0].text
    assert nowhere.is_error and str(tmp_path / "none.onnx") in nowhere.content[0].text
    assert unnamed.is_error and "empty name" in unnamed.content[0].text
    assert not list(tmp_path.glob("*.diagnosis"))


def waits(seconds: float, *, cancel: threading.Event | None = None) -> dict[str, Any]:
    """A tool that waits until it is cancelled."""
    assert cancel is not None
    STARTED.set()
    if cancel.wait(seconds):
        STOPPED.set()
    return {}


STARTED, STOPPED = threading.Event(), threading.Event()


def test_a_call_that_is_cancelled_stops_its_tool() -> None:
    from collage.cli.checking.mcp_server import _told

    async def cancel_it() -> None:
        call = asyncio.ensure_future(_told(waits)(seconds=60.0))
        assert await asyncio.to_thread(STARTED.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel_it())
    assert STOPPED.wait(30)


@pytest.mark.slow
def test_tools_are_called_over_stdin_and_stdout(tmp_path: Path) -> None:
    import mcp

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
