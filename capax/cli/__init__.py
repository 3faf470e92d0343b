"""The commands of `capax`."""
