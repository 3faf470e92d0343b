"""What went wrong in the caller's input: one sentence that says what to change."""


class EnvironmentFailed(RuntimeError):
    """A user's environment raised something. The command line prints what and when, and exits with code 3."""


class InputError(ValueError):
    """Bad input from a user. The command line prints it and exits with code 2."""
