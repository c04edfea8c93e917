"""Pages from templates: Jinja2 with autoescape, so that no text of a run can become markup."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def render(template: str, **values: Any) -> str:
    """Return a page from a template, named by its path in the package:
    `doctor/templates/report.html`.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,  # a misspelled name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
