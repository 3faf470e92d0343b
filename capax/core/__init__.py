"""What all rooms share: contracts and types, the loop of Algorithm 1, settings, registry, errors, checks, random keys."""
