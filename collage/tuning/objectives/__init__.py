"""Throughput, memory and weights of goals: settings of instances and rows, measured after the plans."""
