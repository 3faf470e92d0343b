"""The cost function that `MODULE:FUNCTION` names."""

from __future__ import annotations

from capax.core.checks import error_text, failure_text, short_repr
from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.task import Cost
from capax.runtime import modules
from capax.runtime.processes import contained
from capax.runtime.signals import after_user_code


def import_cost(text: str) -> Cost:
    """The function, from a module that is installed or lies in the current folder of a command."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise InputError(f"--cost is {short_repr(text)}: write MODULE:FUNCTION, as in my_costs:speed.")
    try:
        function = contained(lambda: getattr(modules.import_named(module), name, None))
    except (ImportError, ValueError, TypeError) as error:
        raise InputError(f"the module of --cost {text} cannot be imported, {error_text(error)}: install it.") from error
    except BaseException as error:
        after_user_code(error)
        raise EnvironmentFailed(f"the module of --cost {text} {failure_text(error)}: fix it.") from error
    if not callable(function):
        raise InputError(f"--cost is {text}, but {module} has no function {name}: name one of its functions.")
    return function
