"""The ONNX Runtime backend keeps the contract."""

from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.testing.conformance import BackendConformance


class TestOnnxRuntime(BackendConformance):
    backend = OnnxRuntimeBackend()
