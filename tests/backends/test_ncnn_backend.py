from backends.conformance import BackendConformance
from backends.ncnn_backend import NcnnBackend


class TestNcnn(BackendConformance):
    backend = NcnnBackend()
    isolated = True
