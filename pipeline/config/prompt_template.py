"""Questions with placeholders: ``Describe the person at {camera}.``

Never ``str.format``: a placeholder is a known name in braces and nothing else, so that neither a template nor a value
can reach anything. Braces around other things are text, and ``{{camera}}`` is the text ``{camera}``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

PLACEHOLDERS: Mapping[str, str] = {
    "camera": "the camera's name",
    "camera_id": "its id",
    "label": "what was detected, such as person",
    "zones": "names of the zones that the person is in, or none",
    "time": "when the picture was taken, in the server's time zone",
}
MAX_TEMPLATE = 4000
MAX_VALUE = 200
"""Characters of a value that go into a question."""
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


def _check(template: str) -> str:
    """Raises ValueError for a placeholder that there is none of."""
    for match in _PLACEHOLDER.finditer(template):
        name = match[2]
        if name is not None and name not in PLACEHOLDERS:
            guess = difflib.get_close_matches(name.lower(), PLACEHOLDERS, n=1)
            hint = f"; did you mean {{{guess[0]}}}?" if guess else ""
            allowed = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {{{name[:40]}}}; allowed are {allowed}{hint}")
    return template


PromptTemplate = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE, strip_whitespace=True), AfterValidator(_check)
]


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its placeholders filled in, in one pass: what a value holds is text, whatever it looks like."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}"
        return _one_line(values[match[2]]) if match[2] in values else match[0]

    return _PLACEHOLDER.sub(replace, template)


def _one_line(value: str) -> str:
    """A name stays a name: no line breaks, no other control characters, an end."""
    printable = "".join(c if c.isprintable() else " " for c in value)
    return " ".join(printable.split())[:MAX_VALUE]
