"""What went wrong in the caller's input: one sentence that says what to change."""


class InputError(ValueError):
    """Bad input from a user. The command line prints it and exits with code 2."""
