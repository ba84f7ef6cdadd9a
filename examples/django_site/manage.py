"""Django: a site whose app `jobs` starts the scheduler in `AppConfig.ready()`, see jobs/apps.py.

    pip install singleton-scheduler django gunicorn
    export DATABASE_URL=postgresql://localhost/app EXAMPLE_LOG=fires.log
    python manage.py runserver                   # or, in production:
    gunicorn mysite.wsgi

Each fire is one line in EXAMPLE_LOG. What is scheduled: curl localhost:8000/jobs
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    execute_from_command_line(sys.argv)
