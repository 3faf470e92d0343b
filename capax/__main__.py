"""`python -m capax` is the command `capax`. The package itself takes the current folder off the path before."""

from capax.cli.main import main

if __name__ == "__main__":
    main()
