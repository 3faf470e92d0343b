"""The base of all rooms: contracts and types, the loop of Algorithm 1, settings, registry, errors, checks, random keys."""
