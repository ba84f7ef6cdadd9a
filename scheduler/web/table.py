"""The table of all routes of the API."""

from scheduler.web import events, history, instances, jobs, queues, recurring, workers
from scheduler.web.route import Route

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES,
    *recurring.ROUTES,
    *queues.ROUTES,
    *history.ROUTES,
    *instances.ROUTES,
    *workers.ROUTES,
    *events.ROUTES,
)
