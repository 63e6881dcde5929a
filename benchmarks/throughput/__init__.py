"""Tuning for throughput beside what ONNX Runtime and OpenVINO offer for it."""
