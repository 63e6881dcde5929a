from backends.conformance import BackendConformance
from backends.openvino_backend import OpenVinoBackend


class TestOpenVino(BackendConformance):
    backend = OpenVinoBackend()
