"""Run the command line as `python -m regard`."""

from regard.cli import main

if __name__ == "__main__":
    main()
