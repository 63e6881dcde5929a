"""The command `collage`, and `python -m collage`."""

from __future__ import annotations

import sys

from collage.extras import how_to_install


def main() -> None:
    """Run the command line; where a package is missing, say which extra installs it."""
    try:
        from collage.cli.app import main as run

        run()
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        needed = how_to_install(error.name or "", command)
        if needed is None:
            raise
        print(
            f"collage: this command needs {error.name}, which is not installed: {needed}",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
