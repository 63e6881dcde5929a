"""The form of a new job, filled in as a person does."""

from __future__ import annotations

from pathlib import Path

from onnx import helper
from playwright.sync_api import Page

from tests.service.conftest import RunningServer


def free_model() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "free",
        [info("x", 1, ["batch", 3, None])],
        [info("y", 1, ["batch", 3, None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def fill_in(page: Page, server: RunningServer, source: Path) -> None:
    page.goto(f"{server.url}/new")
    page.set_input_files("input[name=model]", source)
    page.wait_for_selector("#upload[data-ready]")
    for box in page.query_selector_all("input[name=target]"):
        if box.is_enabled():
            box.set_checked(box.get_attribute("value") in ("onnxruntime", "openvino"))
    page.fill("[data-option=time_limit_s]", "5")
