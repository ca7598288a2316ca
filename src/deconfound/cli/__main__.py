"""`python -m deconfound.cli`: the command where it is not installed."""

from deconfound.cli import main

if __name__ == "__main__":
    main()
