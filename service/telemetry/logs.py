"""Structured logs: one event a line, as text for people or JSON for machines, always on stderr."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str, form: str) -> None:
    """Set up logging for the server process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` or `json`.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if form == "json":
        shared.append(structlog.processors.dict_tracebacks)
        last = structlog.processors.JSONRenderer()
    numeric = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=max(numeric, logging.WARNING), stream=sys.stderr)
