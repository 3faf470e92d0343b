"""The figures of README and docs agree with the committed results, and none is copied by hand."""

from __future__ import annotations

import pytest

from benchmarks.figures import marks, pages, stored
from benchmarks.figures.pictures import DRAWN, IMAGES
from benchmarks.figures.registry import FIGURES, render

PAGES = [pytest.param(path, id=path.relative_to(stored.ROOT).as_posix()) for path in pages.pages()]


def test_everything_made_from_the_results_is_up_to_date():
    assert pages.outdated() == [], "run `make figures`"


def test_a_number_that_was_changed_by_hand_is_found(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text("It earns <!-- figure: last-ten halfcheetah/conformal return -->1,463<!-- /figure --> here.\n")
    monkeypatch.setattr(pages, "pages", lambda: [page])
    texts = pages.made_files()
    assert texts[page] == page.read_text().replace("1,463", "1,462")  # (1446.25 + 1452.19 + 1488.10)/3 = 1462.2


def test_random_skids_are_the_mean_of_the_runs_means():
    # (259.6 + 205.83 + 226.6) / 3 = 230.7, and (164.0 + 152.0 + 164.4) / 3 = 160.1, beside the paper's 159.3
    assert [render(f"random-skids {variant}") for variant in ("before", "published")] == ["231", "160"]


def test_every_figure_is_shown_somewhere():
    shown = {name.split()[0] for path in pages.pages() for name in marks.names(path.read_text())}
    assert shown == set(FIGURES)


@pytest.mark.parametrize("path", PAGES)
def test_no_table_of_numbers_is_copied(path):
    assert marks.copied_tables(path.read_text()) == [], "generate the table, or say why it is fixed"


@pytest.mark.parametrize("path", PAGES)
def test_markdown_reads_every_line_with_a_figure(path):
    assert marks.raw_lines(path.read_text()) == []


def test_places_are_filled_within_lines_and_as_blocks():
    text = "a <!-- figure: one x -->old<!-- /figure --> b\n<!-- figure: two -->\nold\n<!-- /figure -->\n"
    filled = marks.fill(text, lambda name: f"[{name}]\n" if name == "two" else f"[{name}]")
    expected = "a <!-- figure: one x -->[one x]<!-- /figure --> b\n<!-- figure: two -->\n\n[two]\n\n<!-- /figure -->\n"
    assert filled == expected
    assert marks.fill(filled, lambda name: f"[{name}]") == expected
    assert marks.names(text) == ["one x", "two"]


def test_a_place_in_a_code_span_is_not_filled():
    text = "write `<!-- figure: name -->` and `<!-- /figure -->`"
    assert marks.fill(text, lambda name: "changed") == text


NUMBERS = "| a | b |\n| --- | --- |\n| 1.5 | 2 of 3 |\n| −4 | 5 % |\n| .1 | 7,000 |\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (NUMBERS, 1),
        (f"<!-- figure: x -->\n{NUMBERS}<!-- /figure -->\n", 0),
        (f"<!-- fixed: sizes -->\n\n{NUMBERS}", 0),
        (NUMBERS.replace("7,000", "seven"), 0),  # five numbers only
        (NUMBERS.replace("5 %", "5 that make a whole sentence"), 0),
    ],
)
def test_copied_tables_are_told_from_others(text, count):
    assert len(marks.copied_tables(text)) == count


def test_a_line_that_begins_with_a_figure_is_found():
    line = "<!-- figure: x -->1<!-- /figure --> of two"
    assert marks.raw_lines(f"text\n{line}\n") == [line]
    assert marks.raw_lines(f"text {line}\n") == []


def test_every_picture_of_the_docs_is_made_from_results():
    assert {path.name for path in IMAGES.glob("*.png")} == set(DRAWN)
