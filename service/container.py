"""`python -m collage.service.container COMMAND …`: the command with a database URL.

Containers get the password as a file, so that neither the compose file nor `docker inspect` shows it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote


def database_url(environment: Mapping[str, str]) -> str | None:
    """The URL of the database `collage` at `COLLAGE_DATABASE_HOST`, or None where that is not set."""
    host = environment.get("COLLAGE_DATABASE_HOST")
    if host is None:
        return None
    password = Path(environment["COLLAGE_DATABASE_PASSWORD_FILE"]).read_text(encoding="utf-8").strip()
    return f"postgresql://collage:{quote(password, safe='')}@{host}/collage"


def main() -> None:
    """Become the command."""
    url = database_url(os.environ)
    if url is not None:
        os.environ["COLLAGE_DATABASE_URL"] = url
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
