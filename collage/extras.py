"""Which extra of this package installs a module that is missing."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

_SERVE = (
    "fastapi",
    "starlette",
    "uvicorn",
    "httptools",
    "python_multipart",
    "multipart",
    "pydantic_settings",
    "jinja2",
    "prometheus_client",
)
_TUNE = (
    *(
        "onnxruntime",
        "onnxscript",
        "highspy",
        "optuna",
        "sqlalchemy",
        "orjson",
        "alembic",
        "pydantic",
        "httpx",
    ),
    *("typer", "rich", "psutil", "yaml", "jsonschema", "fsspec"),
)
_EXTRA_OF = {
    **dict.fromkeys(_TUNE, "tune"),
    **dict.fromkeys((*_SERVE, "structlog"), "serve"),
    **dict.fromkeys(("dask", "distributed", "cryptography"), "workers"),
    "psycopg": "postgresql",
    "s3fs": "s3",
    "sklearn": "learn",
}


# Of commands that need more than the tuner: extras that bring it too.
_OF_COMMAND = {
    **dict.fromkeys(("serve", "serve-model"), "serve"),
    **dict.fromkeys(("certs", "scheduler", "worker"), "workers"),
    "mcp": "mcp",
}


def how_to_install(module: str, command: str = "") -> str | None:
    """The line that installs a missing module, and what else a command needs; None where no extra does."""
    extra = _EXTRA_OF.get(module.partition(".")[0])
    if extra == "tune":
        extra = _OF_COMMAND.get(command, extra)
    return None if extra is None else f"pip install 'collage-tuner[{extra}]'"


@cache
def learner_is_installed() -> bool:
    """Whether the library that learns from costs is installed; without it nothing is predicted."""
    return find_spec("sklearn") is not None
