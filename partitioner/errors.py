"""The root error of the project, and what a caller can catch.

Every error that a user can cause says what was at hand and what to do next; subclasses carry facts as
fields.
"""

from __future__ import annotations


class CollageError(Exception):
    """Root of every error that this project raises on purpose."""


class BadInputError(CollageError):
    """The user's input cannot be used; the message says what to change. Exit status 2, HTTP 4xx."""


class TargetError(BadInputError):
    """A target is unknown, misspelled, has an unknown option, or its runtime is not installed."""


class ModelError(BadInputError):
    """A model cannot be taken: damaged, too large, unsafe, or with unbound dimensions."""


class NoPlanError(CollageError):
    """No plan covers the model: some node is refused by every target, or constraints contradict."""


class OutOfTimeError(NoPlanError):
    """No plan was found in time; whether there is one is not known."""


class CancelledError(CollageError):
    """The caller asked for the work to stop."""
