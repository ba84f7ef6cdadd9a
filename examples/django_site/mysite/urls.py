"""The one page of the site."""

from django.urls import path
from jobs.views import list_jobs

urlpatterns = [path("jobs", list_jobs)]
