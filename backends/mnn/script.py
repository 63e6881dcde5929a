"""How a script without this project opens a model as the target does."""

from __future__ import annotations

from collage.backends.mnn import settings
from collage.partitioner.target import Target

_LINES = """def open_model(path):
    import subprocess, tempfile
    import MNN.expr as expr, MNN.nn as nn

    made = Path(tempfile.mkdtemp()) / "model.mnn"
    convert = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    words = ["-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(made){words}]
    subprocess.run([sys.executable, "-c", convert, *words], check=True, stdout=subprocess.DEVNULL)
    runtime = nn.create_runtime_manager(({{"backend": "CPU", "numThread": {threads}, "precision": "{precision}"{modes}}},))
    for hint, value in {hints}:  # WINOGRAD_MEMORY_LEVEL is 3, DYNAMIC_QUANT_OPTIONS 5
        runtime.set_hint(hint, value)
    net = nn.load_module_from_file(str(made), list(INPUTS), list(OUTPUTS), shape_mutable=False, runtime_manager=runtime)

    def compute(inputs):
        given = []
        for name in INPUTS:
            kind = expr.float if inputs[name].dtype == np.float32 else expr.int
            given.append(expr.placeholder(list(inputs[name].shape), expr.NCHW, kind))
            given[-1].write(np.ascontiguousarray(inputs[name]))
        return [np.array(expr.convert(made, expr.NCHW).read()) for made in net.forward(given)]

    return compute
"""


def opening_lines(target: Target, threads: int) -> str | None:
    """Text that defines `open_model`; None for targets that need this project."""
    if target.option("rewrite", "off") != "off":
        return None
    given = target.option("threads", "auto")
    return _LINES.format(
        threads=threads if given == "auto" else given,
        precision=settings.precision(target),
        modes="".join(f', "{name}": {mode}' for name, mode in settings.modes(target).items()),
        words="".join(f', "{word}"' for word in settings.converter_words(target)),
        hints=settings.hints(target),
    )
