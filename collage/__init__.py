"""Which runtime should run which part of a model? `tune` finds out, `load` runs the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.api import tune
    from collage.artifact.artifact import Artifact
    from collage.artifact.session import Session, load
    from collage.client.client import Client

__all__ = ["Artifact", "Client", "Session", "load", "tune"]

_HOMES = {
    "Artifact": "collage.artifact.artifact",
    "Client": "collage.client.client",
    "Session": "collage.artifact.session",
    "load": "collage.artifact.session",
    "tune": "collage.api",
}


def __getattr__(name: str) -> Any:
    # Importing the package stays quick for those who only load an artifact.
    if name in _HOMES:
        import importlib

        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from collage.extras import how_to_install

            if (needed := how_to_install(error.name or "")) is None:
                raise
            # An AttributeError would hide the reason, and `from collage import tune` shows only an ImportError.
            raise ModuleNotFoundError(
                f"collage.{name} needs {error.name}, which is not installed: {needed}", name=error.name
            ) from None
    raise AttributeError(f"module 'collage' has no attribute {name!r}")
