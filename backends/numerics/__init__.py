"""Reference values, comparison of outputs, tensors in files."""
