"""Metrics of tasks against values found by hand and by the definitions of known libraries."""
