"""Links between the pages lead somewhere: to a file, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path for folder in (".", "docs", "docs/notes", "results", "benchmarks") for path in (ROOT / folder).glob("*.md")
]
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page's text that lead nowhere within the repository."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text)):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        found = target.exists() and (not heading or heading in anchors(target.read_text()))
        broken += [] if found else [link]
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken_links(page, page.read_text()) == []


def test_broken_links_are_found():
    page = ROOT / "README.md"
    text = (
        "[a](docs/own_env.md#the-limit) [b](docs/none.md) [c](docs/own_env.md#no-such-heading) [d](https://example.org)"
    )
    assert broken_links(page, text) == ["docs/none.md", "docs/own_env.md#no-such-heading"]
