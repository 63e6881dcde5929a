"""Structured logs: one event a line, as text for people or JSON for machines, on stderr.

A line never holds local variables or secrets, and it is bounded, tracebacks included. Python's own
`logging`, which libraries use, takes the same way.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from collage.service.telemetry.redaction import hide_fields, redact

_FRAMES = 20
_TRACE_CHARACTERS = 8000
_VALUE_CHARACTERS = 1000

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
Renderer = Callable[[Any, str, EventDict], str | bytes]

_log = structlog.get_logger("collage")


class _OwnHandler(logging.StreamHandler[TextIO]):
    """The handler that `configure` installs, and removes when it is called again."""


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Set up logging for the process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` or `json`.
        stream: where lines go; by default stderr.
    """
    out = stream or sys.stderr
    numeric = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(bounded_trace),
        _clean,
    ]
    last: Processor = _redacted(_text_renderer(out.isatty()))
    if form == "json":
        last = _redacted(structlog.processors.JSONRenderer())
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    handler = _OwnHandler(out)
    without_record = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared[1:3], processors=[without_record, *shared[3:], last]
        )
    )
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _OwnHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(numeric, logging.WARNING))
    threading.excepthook = _thread_died


def bounded_trace(exc_info: _ExcInfo) -> str:
    """The last frames of a traceback as text, without local variables."""
    trace = traceback.TracebackException(
        *exc_info, limit=-_FRAMES, capture_locals=False, max_group_width=3, max_group_depth=3
    )
    return _cut("".join(trace.format()).rstrip(), _TRACE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]} … {len(text) - most} characters left out … {text[head - most :]}"


def _clean(_: Any, __: str, event: EventDict) -> EventDict:
    """No field is long, and none whose name says so has a secret."""
    return {name: _bounded(name, value) for name, value in hide_fields(dict(event), 7).items()}


def _bounded(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else repr(value)
    if name == "exception":
        return text
    short = _cut(text, _VALUE_CHARACTERS)
    return value if isinstance(value, (dict, list)) and short == text else short


def _text_renderer(colors: bool) -> Renderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def _redacted(render: Renderer) -> Processor:
    def line(logger: Any, name: str, event: EventDict) -> str:
        text = render(logger, name, event)
        return redact(text if isinstance(text, str) else text.decode())

    return line


def _thread_died(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    name = args.thread.name if args.thread else None
    _log.error(
        "a thread died", thread=name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )
