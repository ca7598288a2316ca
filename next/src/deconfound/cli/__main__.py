"""`python -m deconfound.cli`, for environments without the script `deconfound`."""

from deconfound.cli.app import main

main()
