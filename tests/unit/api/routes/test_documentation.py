"""The pages at `/docs/`: files of one folder, or a remedy; every document is in the navigation."""

from pathlib import Path

import pytest
import yaml

from app.api.routes.documentation import FOLDER, page
from app.errors import NotFound

ROOT = Path(__file__).parents[4]


def test_files_of_the_folder_are_served(tmp_path: Path) -> None:
    (tmp_path / "site" / "assets").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text("<p>start</p>")
    (tmp_path / "site" / "assets" / "x.css").write_text("p {}")
    (tmp_path / "secret").write_text("secret")
    site = tmp_path / "site"
    assert bytes(page("", site).body) == bytes(page("index.html", site).body) == b"<p>start</p>"
    assert page("assets/x.css", site).headers["content-type"] == "text/css; charset=utf-8"
    for path in ("../secret", "assets", "assets/../../secret", "/etc/passwd", str(tmp_path / "secret")):
        with pytest.raises(NotFound, match="does not exist"):
            page(path, site)


def test_a_node_without_the_pages_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="make docs-site"):
        page("", tmp_path / "site")


def test_the_navigation_has_every_document_and_the_node_finds_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = {name for entry in site["nav"] for name in entry.values()}
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}
    assert ROOT / site["site_dir"] == FOLDER
