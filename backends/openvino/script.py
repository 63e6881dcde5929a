"""How a script without this project opens a model as the target does."""

from __future__ import annotations

from collage.partitioner.target import Target

# Options that change the model.
_NOT_SAID = ("rewrite", "quant", "float")

_LINES = """def open_model(path):
    import openvino as ov

    settings = {{
        "INFERENCE_PRECISION_HINT": "{precision}",
        "PERFORMANCE_HINT": "{hint}",
        "NUM_STREAMS": "{streams}",
        "INFERENCE_NUM_THREADS": {threads},
        "ENABLE_CPU_PINNING": {pinning},
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,{more}
    }}
    request = ov.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    known = {{name for port in request.model_inputs for name in port.get_names()}}

    def compute(inputs):
        request.infer({{name: value for name, value in inputs.items() if name in known}})
        return [np.array(tensor.data) for tensor in request.output_tensors]

    return compute
"""


def opening_lines(target: Target, threads: int) -> str | None:
    """Text that defines `open_model`; None for targets that need this project."""
    if any(name in _NOT_SAID and value not in ("off", "none") for name, value in target.options):
        return None
    given = target.option("threads", "auto")
    partitioner = target.option("partitioner", "own")
    more = "" if partitioner == "own" else f' "TBB_PARTITIONER": "{partitioner.upper()}",'
    more += ' "SNIPPETS_MODE": "DISABLE",' if target.option("snippets", "on") == "off" else ""
    return _LINES.format(
        more=more,
        precision=target.option("precision", "f32"),
        hint=target.option("hint", "latency").upper(),
        streams=target.option("streams", "1"),
        threads=threads if given == "auto" else given,
        pinning=target.option("pinning", "off") == "on",
    )
