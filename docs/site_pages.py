"""Hook of mkdocs: READMEs of the repository as pages of the site; links that work there.

Documents link to one another by their places in the repository. On the site a link to a document that is a
page leads to the page; the text of a link to another file of the repository stays, without the link.
"""

import posixpath
import re
from typing import Any, Final

INTERNALS: Final = {
    "app/README.md": "internals/service.md",
    "app/RULES.md": "internals/rules.md",
    "spark_jobs/README.md": "internals/spark_jobs.md",
    "storage/README.md": "internals/storage.md",
}
"""Documents outside docs/ that are pages too: path in the repository -> page."""
_SOURCES: Final = {page: path for path, page in INTERNALS.items()}
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCED: Final = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def rewritten(text: str, page: str) -> str:
    """Return the text of a page with links that work on the site. page: its path on the site."""
    source = _SOURCES.get(page, f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:|/", target):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        goal = INTERNALS.get(place) or place.removeprefix("docs/")
        if goal == place:  # not on the site
            return label
        return f"[{label}]({posixpath.relpath(goal, posixpath.dirname(page) or '.')}{mark}{anchor})"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of INTERNALS."""
    from pathlib import Path

    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    root = Path(config.config_file_path).parent
    for path, page in INTERNALS.items():
        files.append(File.generated(config, page, content=(root / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    return rewritten(markdown, page.file.src_uri)
