from backends.conformance import BackendConformance
from backends.mnn_backend import MnnBackend


class TestMnn(BackendConformance):
    backend = MnnBackend()
