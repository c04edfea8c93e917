"""A report for programs and for people: JSON, text, Markdown and a page."""

from uptrend.doctor.report.html import to_html
from uptrend.doctor.report.markdown import to_markdown
from uptrend.doctor.report.table import SCHEMA, to_table
from uptrend.doctor.report.text import print_report

__all__ = ["SCHEMA", "print_report", "to_html", "to_markdown", "to_table"]
