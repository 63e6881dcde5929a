"""Int8 written into an ONNX file."""
