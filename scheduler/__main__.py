"""`python -m scheduler` and the command `scheduler`."""

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from scheduler.cli.main import cli  # noqa: PLC0415 - an extra
    except ImportError as error:
        sys.exit(
            f"scheduler: the command line needs {error.name}; pip install "
            "'singleton-scheduler[cli]'"
        )
    cli()


if __name__ == "__main__":
    main()
