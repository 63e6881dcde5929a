"""`python -m collage.service.health_check`: exit status 0 when this container's server answers, else 1.

It asks by loopback, and takes the server's certificate as it is: the name in it is another.
"""

from __future__ import annotations

import ssl
import sys
import urllib.request
from http.client import HTTPException

from collage.service.settings import Settings


def main() -> int:
    """Ask `/healthz` once."""
    settings = Settings()
    scheme = "https" if settings.tls_certificate else "http"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    url = f"{scheme}://127.0.0.1:{settings.port}/healthz"
    # Whatever proxy the environment names, this server is asked itself.
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with direct.open(url, timeout=4):
            return 0
    except (HTTPException, OSError) as error:  # URLError is of the latter
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
