import pytest

from backends.conformance import BackendConformance
from backends.ncnn_backend import NcnnBackend


@pytest.mark.slow  # each conversion starts pnnx
class TestNcnn(BackendConformance):
    backend = NcnnBackend()
    isolated = True
