"""The suite: small environments with a cost limit and a controller that keeps it, of the kinds that people bring."""
