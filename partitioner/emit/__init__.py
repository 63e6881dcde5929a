"""A plan out of the graph: sub-models, annotated files and exports."""
