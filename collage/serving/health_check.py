"""`python -m collage.serving.health_check [URL]`: exit status 0 where a served model is ready."""

from __future__ import annotations

import sys
import urllib.request
from http.client import HTTPException

_URL = "http://127.0.0.1:8080"
_TIMEOUT_S = 4


def is_ready(url: str) -> bool:
    """Whether a server answers that it is ready; it is asked itself, whatever proxy the environment names."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/v2/health/ready", timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # URLError and HTTPError are of the former
        return False


if __name__ == "__main__":
    sys.exit(not is_ready(sys.argv[1] if len(sys.argv) > 1 else _URL))
