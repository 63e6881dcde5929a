"""The shared memory: what was measured, who measures what, and which jobs wait. Knows no ONNX, no web.

Start at `collage.cost_db.database.CostDatabase`; `jobs`, `tokens`, `models` and `idempotency` are plain
repositories over the same database for the service.
"""
