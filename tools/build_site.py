"""Build the documentation as a site: `python tools/build_site.py [FOLDER]`; 1 if a link is broken.

The pages are those of `docs/`, with the README in front; Zensical makes the site of them, with
search. Links that leave `docs/` lead to the pages that were taken along, or lose their target: what
is in the repository alone is named, not linked. Nothing is loaded from elsewhere, so the site works
without a network: `python -m http.server --directory FOLDER` shows it.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

import tomli_w

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
MADE = "site"
PAGES = MappingProxyType(
    {
        "README.md": "index.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
        "SECURITY.md": "security.md",
        "examples/flower-mnist/README.md": "flower-mnist.md",
    }
)
"""What is taken along from outside `docs/`, and what it is called on the site."""
NAVIGATION = (
    ("Home", ("index.md",)),
    ("Learn", ("tutorial.md", "config.md", "rules.md", "attacks.md", "api.md", "glossary.md")),
    ("Measured", ("paper.md", "robustness.md", "benchmarks.md", "results-format.md", "results")),
    ("Flower", ("flower.md", "flower-mnist.md")),
    ("Without a server", ("operating.md", "protocol.md", "simulation.md")),
    ("Project", ("architecture.md", "decisions", "contributing.md", "security.md", "changelog.md")),
)
"""The headings and their pages; a folder stands for all of its pages. Others follow at the end."""
LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)\s]+)\)")


def main(folder: Path = SITE) -> int:
    """Build the site; 1 if a link of it leads nowhere."""
    work = folder.with_name(f"{folder.name}-pages")
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    pages = work / "pages"
    shutil.copytree(ROOT / "docs", pages)
    for path, name in PAGES.items():
        (pages / name).write_bytes((ROOT / path).read_bytes())
    origins = {name: path for path, name in PAGES.items()}
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages).as_posix()
        origin = ROOT / origins.get(name, f"docs/{name}")
        page.write_text(with_site_links(page.read_text("utf-8"), origin, name), "utf-8")
    (work / "zensical.toml").write_text(tomli_w.dumps(_config(pages)), "utf-8")
    subprocess.run([sys.executable, "-m", "zensical", "build"], cwd=work, check=True)
    shutil.move(work / MADE, folder)
    broken = sorted(broken_links(folder))
    for link in broken:
        sys.stderr.write(f"{link}\n")
    shutil.rmtree(work)
    if not broken:
        way = os.path.relpath(folder)
        sys.stdout.write(f"\nto read it: python -m http.server --directory {way}\n")
    return 1 if broken else 0


def with_site_links(text: str, origin: Path, page: str) -> str:
    """The text with links that hold on the site, where the file `origin` is called `page`."""

    def moved(match: re.Match[str]) -> str:
        target = urlsplit(match["target"])
        if target.scheme or target.netloc or not target.path:
            return match[0]
        file = (origin.parent / unquote(target.path)).resolve()
        path = file.relative_to(ROOT).as_posix()
        inside = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not inside:
            return match["text"][1:-1]
        way = "../" * page.count("/") + inside
        return f"{match['text']}({way}{'#' + target.fragment if target.fragment else ''})"

    return LINK.sub(moved, text)


def _config(pages: Path) -> dict[str, object]:
    listed: list[str] = []
    navigation: list[dict[str, object]] = []
    for heading, names in NAVIGATION:
        found = [page for name in names for page in _pages(pages, name)]
        listed += found
        navigation.append({heading: found[0] if len(found) == 1 else found})
    others = [page for page in _pages(pages, ".") if page not in listed]
    if others:
        navigation.append({"More": others})
    return {
        "project": {
            "site_name": "holdout",
            "site_description": "Federated learning that one liar cannot ruin",
            "docs_dir": pages.name,
            "site_dir": MADE,
            "use_directory_urls": False,
            "nav": navigation,
            "theme": {"font": False},
        }
    }


def _pages(pages: Path, name: str) -> list[str]:
    """A page, or those of a folder, its README first."""
    path = pages / name
    found = sorted(path.rglob("*.md")) if path.is_dir() else [path]
    found.sort(key=lambda page: page.name != "README.md")
    return [page.relative_to(pages).as_posix() for page in found if page.is_file()]


class _Page(HTMLParser):
    """The links of a page, what it loads, and the places in it that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.update(value for key in ("id", "name") if (value := given.get(key)))
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        for key in {"script": ["src"], "link": ["href"], "img": ["src"]}.get(tag, []):
            if (source := given.get(key)) and given.get("rel") != "canonical":
                self.loaded.append(source)


def broken_links(folder: Path) -> Iterator[str]:
    """Links and loaded files of the site that are not there, and what is loaded from elsewhere."""
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # Shown under any address: its links start from the root.
        where = path.relative_to(folder).as_posix()
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if link in page.loaded:
                    yield f"{where}: loads {link} from elsewhere"
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if not target.is_file():
                yield f"{where}: {link} is not there"
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{where}: {link} names a place that is not there"


if __name__ == "__main__":
    sys.exit(main(*(Path(one).resolve() for one in sys.argv[1:])))
