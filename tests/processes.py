"""Looks at processes that may end at any moment."""

from __future__ import annotations

import psutil


def command(process: psutil.Process) -> str:
    """Its command line; empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def children(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
    """What it started; nothing when it has ended."""
    try:
        return process.children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, also where no parent has waited for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
