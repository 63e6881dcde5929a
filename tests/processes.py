"""Looks at processes that may end at any moment."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from collage.service.jobs.job_process import JOB_NAME, WAITING_NAME


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


def has_a_job(process: psutil.Process) -> bool:
    """Whether it is a job's process, and not one that waits for a job."""
    return _is_named(process, JOB_NAME)


def waits_for_a_job(process: psutil.Process) -> bool:
    """Whether it is to be a job's process."""
    return _is_named(process, WAITING_NAME)


def _is_named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name and "job_template" in command(process)
    except psutil.Error:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, also where no parent has waited for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(path: Path) -> str:
    """What a process writes into a file, once it has."""
    for _ in range(1500):
        if path.exists() and (text := path.read_text(encoding="utf-8")):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} was never written")


def is_gone(pid: int) -> bool:
    """Whether a process ends within two seconds."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
