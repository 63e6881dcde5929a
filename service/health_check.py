"""`python -m collage.service.health_check`: exit status 0 when this container's server answers, else 1.

It asks by loopback, and takes the server's certificate as it is: the name in it is another.
"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request

from collage.service.settings import Settings


def main() -> int:
    """Ask `/healthz` once."""
    settings = Settings()
    scheme = "https" if settings.tls_certificate else "http"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    url = f"{scheme}://127.0.0.1:{settings.port}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=4, context=context):
            return 0
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
