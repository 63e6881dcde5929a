"""Requests that run at once: our sessions beside what ONNX Runtime and OpenVINO offer for it."""
