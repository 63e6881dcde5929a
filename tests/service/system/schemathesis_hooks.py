"""What schemathesis has to learn: JSON lines are sent as text is."""

from __future__ import annotations

import schemathesis

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
