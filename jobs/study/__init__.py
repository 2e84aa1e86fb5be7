"""Try many policies on one corpus, and find what each leakage costs in utility.

`space` lists what is tried, `trial` measures one policy without Ray, `worker` and `runner` do so with Ray Tune,
`results` is the study on disk, and `job` puts them together.
"""

from jobs.config import StudyConfig
from jobs.study.job import Plan, plan, run

CONFIG = StudyConfig

__all__ = ["CONFIG", "Plan", "plan", "run"]
