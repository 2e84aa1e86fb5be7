from jobs.cli import job_main

job_main("study")
