"""What the end of a job does to those that wait for it (section 6)."""

from typing import Literal

from scheduler.model.states import State

Edge = Literal["after", "after_any"]


def inflicted(kind: Edge, ended: State) -> State | None:
    """Return the state that a dependent ends in with it; None: one dependency less."""
    return None if kind == "after_any" or ended is State.COMPLETED else ended


def inherited(own: int, dependencies: list[int]) -> int:
    """Return the priority of a job: the highest (lowest number) of its own and its
    dependencies'.
    """
    return min([own, *dependencies])
