"""Shows what is scheduled."""

from django.http import HttpRequest, JsonResponse

import scheduler


def list_jobs(_request: HttpRequest) -> JsonResponse:
    jobs = [
        {"tenant": job.tenant, "job_id": job.job_id, "next_run_at": job.next_run_at}
        for job in scheduler.jobs()
    ]
    return JsonResponse(jobs, safe=False)
