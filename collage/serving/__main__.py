"""`python -m collage.serving MODEL`: serves a model where only the extra `serving` is installed."""

from __future__ import annotations

import sys

from collage.partitioner.errors import BadInputError, CollageError

_EXTRA = ("httptools", "prometheus_client", "starlette", "typer", "uvicorn")


def main() -> None:
    """Run the command and exit with its status; a known error is one line."""
    try:
        import typer

        from collage.serving.command import serve_model

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command()(serve_model)
        app()
    except CollageError as error:
        print(f"collage: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInputError) else 1)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        print(
            f"collage: {error.name} is not installed: pip install 'collage-tuner[serving]'",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
