"""`python -m uptrend` is `uptrend`."""

from uptrend.cli.main import main

main()
