"""The shared database: measured costs, claims on measurements, and jobs. It knows no ONNX and no web.

Start at `collage.cost_db.database.CostDatabase`; the service's stores work on the same database.
"""
