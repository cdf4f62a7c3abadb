"""README and documentation: links lead to files, and the commands and models that the README names exist."""

import re
from pathlib import Path

import pytest

from dynedge.cli import _register_commands, app
from dynedge.models.registry import find_entry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    for link in (link for link in links if "://" not in link):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_commands_of_the_readme_exist():
    _register_commands()
    registered = {command.name or command.callback.__name__ for command in app.registered_commands}
    blocks = "".join(re.findall(r"```\n(.*?)```", README, re.S))
    typed = set(re.findall(r"^(?:\$ )?dynedge (\w+)", blocks, re.M))
    assert {"prepare", "train", "compare", "recommend", "serve"} <= typed <= registered
    listed = README.split("## Commands")[1].split("## ")[0]
    assert all(f"dynedge {name}" in listed or f"`{name}`" in listed for name in registered)
    assert set(re.findall(r"`dynedge (\w+)", README)) <= registered


def test_models_of_the_readme_exist():
    table = README.split("| `--model` |")[1].split("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert len(names) == 23
    for name in names:
        assert find_entry(name)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 130
