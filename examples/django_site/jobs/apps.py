"""Starts the scheduler with the site."""

import os
import sys

from django.apps import AppConfig
from django.utils.autoreload import DJANGO_AUTORELOAD_ENV

import scheduler
from jobs.bodies import heartbeat


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        if serves_requests():
            scheduler.initialise(schema=os.environ.get("SCHEDULER_SCHEMA", "scheduler"))
            scheduler.register("acme", "heartbeat", heartbeat, every="1s")


def serves_requests() -> bool:
    # Django calls ready() in every process that loads it: in migrate, shell, tests and workers of
    # other tools, none of which should run jobs, and in runserver's autoreloader, which would go on
    # to run them with old code. So: in the autoreloader's child, and where a server asked for the
    # application, which takes one of these two modules.
    if sys.argv[1:2] == ["runserver"]:
        return os.environ.get(DJANGO_AUTORELOAD_ENV) == "true" or "--noreload" in sys.argv
    return "django.core.wsgi" in sys.modules or "django.core.asgi" in sys.modules
