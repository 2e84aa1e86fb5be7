"""Attack protected vectors as strongly as we can, and measure what they are still good for.

`records` says who may see which texts, `results` what attackers got, and `job` puts them together.
"""

from jobs.audit.job import Plan, plan, run
from jobs.config import AuditConfig

CONFIG = AuditConfig

__all__ = ["CONFIG", "Plan", "plan", "run"]
