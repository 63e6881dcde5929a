"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Database = Annotated[
    str | None, typer.Option("--database", help="URL of the cost database [COLLAGE_DATABASE_URL].")
]
Certificates = Annotated[
    Path | None,
    typer.Option(
        "--certificates",
        envvar="COLLAGE_SCHEDULER_CERTIFICATES",
        help="Folder with ca.crt, tls.crt and tls.key of this machine.",
    ),
]
