"""Run the command line, as `regard` and as `python -m regard`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C before it is loaded ends it, too, without a traceback."""
    try:
        from regard.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
