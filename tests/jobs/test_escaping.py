"""Names from configurations and data show what they are, and do nothing, wherever people read them."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from jobs import cli
from jobs.escaping import for_markdown, for_terminal
from jobs.progress import console, steps
from jobs.report.table import markdown
from sparse_core.errors import SparseError

NASTY = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[go](https://example.org)",
    "[click](javascript:alert(1))",
    "![seen](https://example.org/p.png)",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)",
    "a | b",
    "`code`",
    "``",
    "**bold** _it_ *it* ~~no~~ $x$",
    "line\n\n# heading\n<b>",
    "&lt;b&gt; &#60;b&#62;",
    "\\<b\\>\\",
    "\x1b]8;;http://example.org\x07link\x1b]8;;\x07\x1b[2J\x1b[31m",
    "\x9b31m\r\x08\x7f\0",
    "[red]alarm[/red] [link=http://example.org]here[/link] [/]",
    "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
)
INVISIBLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
names = st.one_of(st.sampled_from(NASTY), st.text(max_size=40), st.lists(st.sampled_from(NASTY)).map("".join))
parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def shown(page: str) -> list[str]:
    """The kinds of everything on a page, and the plain text of it."""
    tokens = [inner for token in parser.parse(page) for inner in (token, *(token.children or ()))]
    return [token.type for token in tokens]


def texts(page: str) -> list[str]:
    return [
        "".join(inner.content for inner in token.children) for token in parser.parse(page) if token.type == "inline"
    ]


@given(st.lists(names, min_size=1, max_size=4))
def test_a_cell_of_a_markdown_table_is_text_and_nothing_else(cells):
    page = "\n".join(markdown(["h"] * len(cells), [cells]))
    kinds = shown(page)
    assert not set(kinds) & {"html_inline", "html_block", "link_open", "image", "code_inline", "em_open", "strong_open"}
    assert kinds.count("td_open") == len(cells) and kinds.count("tr_open") == 2
    assert texts(page)[len(cells) :] == [for_terminal(cell.replace("\n", " ")).strip() for cell in cells]


@given(names)
@example("x](javascript:alert(1)")
def test_a_name_in_a_heading_or_a_list_is_text_and_nothing_else(name):
    page = f"# Audit of “{for_markdown(name)}”\n\n- **{for_markdown('a' + name + 'a')}**: promise\n"
    kinds = shown(page)
    assert not set(kinds) & {"html_inline", "html_block", "link_open", "image", "code_inline", "em_open"}
    assert kinds.count("heading_open") == 1 and kinds.count("bullet_list_open") == 1


def test_the_positive_control_is_active():
    kinds = {kind for name in NASTY for kind in shown(f"| h |\n|---|\n| x {name} |")}
    assert {"html_inline", "link_open", "image", "code_inline", "em_open", "strong_open"} <= kinds


@pytest.mark.parametrize("name", ["subspace mask, rho 2", "mlc", "0.729 [0.612, 0.829] mlc", "note_type (n = 1,200)"])
def test_usual_names_and_intervals_stay_legible(name):
    assert for_markdown(name) == for_terminal(name) == name


@given(names)
def test_the_terminal_gets_no_character_it_obeys(name):
    assert not INVISIBLE.search(for_terminal(name)) and "\n" not in for_terminal(name)
    assert not INVISIBLE.search(for_terminal(name, lines=True))


@pytest.mark.parametrize("name", ["Zoë Łukasz 李 محمد", "می\u200cخواهم", "👩\u200d🔬"])
def test_names_of_all_scripts_stay_what_they_are(name):
    assert for_terminal(name) == for_markdown(name) == name


@given(names)
def test_the_console_shows_markup_and_escape_sequences_as_they_are(name):
    with console.capture() as captured:
        console.print(name, highlight=False, soft_wrap=True)
    assert captured.get() == for_terminal(name, lines=True) + "\n"


def test_titles_errors_and_plans_reach_the_terminal_escaped(capsys, monkeypatch):
    class Job:
        CONFIG = type("Config", (), {"__doc__": "A job."})

        @staticmethod
        def plan(config):
            return type("Plan", (), {"lines": NASTY})

    monkeypatch.setitem(sys.modules, "jobs.privatize", Job)
    monkeypatch.setattr("jobs.config.load_config", lambda *_: None)
    monkeypatch.setattr("jobs.config.describe_fields", lambda _: [])
    assert cli.main(["privatize", "--dry-run"]) == 0
    for name in NASTY:
        with steps(name) as advance:
            advance(1, 2, name)

    def fail(config):
        raise SparseError(" ".join(NASTY))

    monkeypatch.setattr(Job, "plan", staticmethod(fail))
    assert cli.main(["privatize", "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert len(out) > 500 and len(err) > 300
    assert not INVISIBLE.search(out) and not INVISIBLE.search(err)
