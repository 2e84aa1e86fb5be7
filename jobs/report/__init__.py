"""What people read of an audit: the table on the terminal and the page that goes with it."""

from jobs.report.page import render_report
from jobs.report.table import render_table
from jobs.report.words import few_records, in_words, no_claim, policy_alone

__all__ = ["few_records", "in_words", "no_claim", "policy_alone", "render_report", "render_table"]
