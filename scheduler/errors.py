"""Every error of ours, drawn as a tree.

SchedulerError
  ConfigError                 an argument or setting is wrong; the message names it
  LifecycleError
    AlreadyInitialised
    NotInitialised
  RegistrationError
    DuplicateJob
    UnknownJob
    InvalidName
    InvalidSchedule
    InvalidOption
  StoreError                  Postgres refused
    StoreUnavailable          Postgres is away; trying again may help
    SchemaMismatch

The docstring of a class is its message where none is given.
"""


class SchedulerError(Exception):
    """Something went wrong in the scheduler."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigError(SchedulerError):
    """A setting is wrong."""


class LifecycleError(SchedulerError):
    """The scheduler is not in the state that this call needs."""


class AlreadyInitialised(LifecycleError):
    """The scheduler of this process is already initialised; call cancel() before initialising it again."""


class NotInitialised(LifecycleError):
    """The scheduler of this process is not initialised; call scheduler.initialise(...) first."""


class RegistrationError(SchedulerError):
    """The job cannot be registered."""


class DuplicateJob(RegistrationError):
    """This process has already registered a job of that id; unregister it first, or choose another id."""


class UnknownJob(RegistrationError):
    """There is no such job."""


class InvalidName(RegistrationError):
    """A tenant or job id is not a usable name."""


class InvalidSchedule(RegistrationError):
    """The schedule makes no sense."""


class InvalidOption(RegistrationError):
    """An option of the job has no such value."""


class StoreError(SchedulerError):
    """Postgres refused a statement."""


class StoreUnavailable(StoreError):
    """Postgres cannot be reached, or did not answer in time."""


class SchemaMismatch(StoreError):
    """The database schema is not of the version that this library needs."""
