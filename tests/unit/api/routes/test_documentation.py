"""The pages at `/docs/`: files of one folder, or a remedy; every document is in the navigation."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from app.api.routes.documentation import FOLDER, page
from app.errors import NotFound
from docs.site_pages import INTERNALS, rewritten

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
    """Also for a node from a wheel, whose user has no Makefile."""
    with pytest.raises(NotFound, match=r"`make docs-site`.*`make wheel`.*/docs describes the routes"):
        page("", tmp_path / "site")


def test_a_wheel_is_built_with_the_pages() -> None:
    commands = subprocess.run(["make", "-n", "wheel"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert -1 < commands.stdout.find("mkdocs build") < commands.stdout.find("pip wheel")


def test_the_navigation_has_every_document_and_the_node_finds_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    entries = {title: name for entry in site["nav"] for title, name in entry.items()}
    below = {name for entry in entries.pop("Internals") for name in entry.values()}
    internals = set(INTERNALS.values())
    assert internals <= below
    assert {*entries.values(), *below} - internals == {path.name for path in (ROOT / "docs").glob("*.md")}
    assert ROOT / site["site_dir"] == FOLDER


ITEM = re.compile(r" *(?:[-*]|[0-9]+\.) ")


@pytest.mark.parametrize(
    "path", [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in INTERNALS)], ids=str
)
def test_lists_are_lists_on_the_site_too(path: Path) -> None:
    """mkdocs needs an empty line before a list and after a paragraph of an item, and four spaces before what
    belongs to an item; GitHub does not."""
    before, fenced, in_block = "", False, False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        place, indent = f"{path}:{number}: {line}", len(line) - len(line.lstrip())
        is_item = ITEM.match(line) is not None
        if not fenced:
            in_block = bool(line) and (in_block or (not before and indent >= 4))
            assert not (0 < indent < 4 and (is_item or not before)), place
            assert not (is_item and indent == 0 and in_block), place
            starts_list = is_item and indent == 0 and before and not before.startswith((" ", "#"))
            assert not starts_list or ITEM.match(before), place
        fenced ^= line.lstrip().startswith("```")
        before = line


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("tables.md", "[rules](../app/RULES.md#terms)", "[rules](internals/rules.md#terms)"),
        ("tables.md", "[`x`](api.md) [y](#z)", "[`x`](api.md) [y](#z)"),
        ("tables.md", "[tests](../tests/README.md)", "tests"),
        ("internals/rules.md", "[a](README.md) [b](../docs/api.md#c)", "[a](service.md) [b](../api.md#c)"),
        ("internals/service.md", "[a](raft/core.py) [b](https://x.example)", "a [b](https://x.example)"),
        ("tables.md", "```\n[tests](../tests/README.md)\n```", "```\n[tests](../tests/README.md)\n```"),
    ],
)
def test_links_of_a_page_lead_to_pages_of_the_site(page: str, text: str, expected: str) -> None:
    assert rewritten(text, page) == expected


class Links(HTMLParser):
    """The links of a page and the places in it that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = {""}
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value is not None:
                self.places.add(value)
            elif name in ("href", "src") and value is not None and not urlsplit(value).scheme:
                self.links.add(value)


def dead_links(site: Path) -> list[str]:
    """Return the links within a built site that lead nowhere, with their pages."""
    pages = {path.resolve(): Links(path) for path in site.rglob("*.html") if path.name != "404.html"}
    dead = []
    for path, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].places if target in pages else {"", parts.fragment}
            if not target.is_file() or parts.fragment not in anchors:
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    return dead


def test_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#x"><a href="b.html#y"><a href="c.html"><h1 id="t">')
    (tmp_path / "b.html").write_text('<h1 id="x"><a href="a.html#t"><a href="#x"><img src="https://x/y">')
    assert sorted(dead_links(tmp_path)) == ["a.html: b.html#y", "a.html: c.html"]


def test_the_built_site_has_no_dead_link(tmp_path: Path) -> None:
    mkdocs = ROOT / ".cache" / "mkdocs" / "bin" / "mkdocs"
    if not mkdocs.exists():
        pytest.skip("mkdocs is not installed: make docs-site")
    command = [str(mkdocs), "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    assert dead_links(tmp_path / "site") == []
