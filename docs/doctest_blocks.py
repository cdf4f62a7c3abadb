"""Shows doctest examples of docstrings as code blocks; an extension of mkdocstrings (mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Puts a fence around each paragraph that starts with a prompt."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            paragraphs = re.split(r"\n\s*\n", obj.docstring.value)
            shown = (f"```pycon\n{one}\n```" if one.startswith(">>>") else one for one in paragraphs)
            obj.docstring.value = "\n\n".join(shown)
