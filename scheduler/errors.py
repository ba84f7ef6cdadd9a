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
  SubmissionError
    InvalidPayload
    UnknownDependency
    DependencyCycle
    DependencyLimit
    UnsupportedByDialect      the queue's dialect has no way to say it
    InvalidJob                a job for Conveyor lacks something, or has it wrong
    MarshalError              a job cannot be written as bytes
  IllegalTransition
  TenantNotPaused             only a paused tenant can be deleted
  TenantDeleting              the tenant is being deleted; no job of it can be written
  UnknownQueue                there is no queue of that name; the message has those that there are
  WaitTimeout                 a job has not ended in the time that was given
  InvalidSignature            a callback is not signed with that secret, or too old
  StoreError                  Postgres refused
    Conflict                  another transaction was faster; run yours again
    InvalidData               a value cannot be stored; trying again does not help
    StoreUnavailable          Postgres is away; trying again may help
    SchemaMismatch
  QueueError                  Redis refused
    QueueUnavailable          Redis is away; trying again may help
    EpochLost                 Redis has lost its memory since we last looked
    WireError                 what is in Redis cannot be read

JobFailure                    raised by handlers, not by us
  TemporaryError              trying again may help
  PermanentError              it will not
JobCancelled                  raised in a handler that should stop, by ctx.raise_if_cancelled()

The docstring of a class is its message where none is given; `retryable` says whether trying again
may help.
"""

from datetime import timedelta


class SchedulerError(Exception):
    """Something went wrong in the scheduler."""

    retryable = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((self.__doc__ or "").split()))


class ConfigError(SchedulerError):
    """A setting is wrong."""


class LifecycleError(SchedulerError):
    """The scheduler is not in the state that this call needs."""


class AlreadyInitialised(LifecycleError):
    """The scheduler of this process is already initialised; call cancel() before initialising it
    again.
    """


class NotInitialised(LifecycleError):
    """The scheduler of this process is not initialised; call scheduler.initialise(...) first."""


class RegistrationError(SchedulerError):
    """The job cannot be registered."""


class DuplicateJob(RegistrationError):
    """This process has already registered a job of that id; unregister it first, or choose another
    id.
    """


class UnknownJob(RegistrationError):
    """There is no such job."""


class InvalidName(RegistrationError):
    """A tenant or job id is not a usable name."""


class InvalidSchedule(RegistrationError):
    """The schedule makes no sense."""


class InvalidOption(RegistrationError):
    """An option of the job has no such value."""


class SubmissionError(SchedulerError):
    """The job cannot be submitted."""


class InvalidPayload(SubmissionError):
    """The payload is neither JSON nor bytes, or too large."""


class UnknownDependency(SubmissionError):
    """A job that another depends on does not exist."""


class DependencyCycle(SubmissionError):
    """Jobs depend on each other in a circle."""


class DependencyLimit(SubmissionError):
    """A job depends on too many others, or through too many."""


class UnsupportedByDialect(SubmissionError):
    """The dialect of the queue has no way to say what the job asks for."""


class InvalidJob(SubmissionError):
    """A job for Conveyor needs a type, a queue, and ids that are UUIDs."""


class MarshalError(SubmissionError):
    """The job cannot be written as bytes."""


class IllegalTransition(SchedulerError):
    """A job cannot go from its state to that one."""


class TenantNotPaused(SchedulerError):
    """The tenant is not paused, so it cannot be deleted."""


class TenantDeleting(SchedulerError):
    """The tenant is being deleted."""


class UnknownQueue(SchedulerError):
    """There is no queue of that name."""


class WaitTimeout(SchedulerError):
    """The job has not ended in the time that was given."""


class InvalidSignature(SchedulerError):
    """The callback was not signed with this secret."""


class StoreError(SchedulerError):
    """Postgres refused a statement."""


class Conflict(StoreError):
    """Another transaction was faster, and yours saw the past; run your transaction again."""

    retryable = True


class InvalidData(StoreError):
    """Postgres refused a value."""


class StoreUnavailable(StoreError):
    """Postgres cannot be reached, or did not answer in time."""

    retryable = True


class SchemaMismatch(StoreError):
    """The database schema is not of the version that this library needs."""


class QueueError(SchedulerError):
    """Redis refused a command."""


class QueueUnavailable(QueueError):
    """Redis cannot be reached, or did not answer in time."""

    retryable = True


class EpochLost(QueueError):
    """Redis has lost its memory: what was in its queues has to be fed again."""


class WireError(QueueError):
    """What is in Redis cannot be read."""


class JobFailure(Exception):
    """What a handler raises to say how it failed; anything else that it raises is taken as
    temporary.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.__cause__ = cause


class JobCancelled(Exception):
    """Raised by `ctx.raise_if_cancelled()` in a handler that should stop."""


class TemporaryError(JobFailure):
    """It may succeed later; `retry_after` replaces the backoff."""

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        retry_after: timedelta | str | None = None,
    ) -> None:
        super().__init__(message, cause)
        self.retry_after = retry_after


class PermanentError(JobFailure):
    """It would fail again in the same way; `code` is for programs to tell failures apart."""

    def __init__(self, message: str, cause: BaseException | None = None, code: str = "") -> None:
        super().__init__(message, cause)
        self.code = code
