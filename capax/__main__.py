"""`python -m capax` is the command `capax`."""

from capax.cli.main import main

if __name__ == "__main__":
    main()
