"""Every model that a list of packages carries, an operator zoo, and ONNX Runtime's own operators: what tuning does with each."""
