from backends.conformance import BackendConformance
from backends.onnxruntime_backend import OnnxRuntimeBackend


class TestOnnxRuntime(BackendConformance):
    backend = OnnxRuntimeBackend()
