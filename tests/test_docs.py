"""What the documentation names exists: targets of links, paths, options of commands and scripts, folders."""

import re
from pathlib import Path

import pytest
import typer

import dynedge
from dynedge.cli import _register_commands, app

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dynedge.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SUFFIXES = ".py", ".md", ".toml", ".css", ".js", ".html", ".json", "/"
FOLDERS = {path.name for base in (ROOT, PACKAGE) for path in base.iterdir() if path.is_dir()}


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_files_and_headings(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_backticks_exist(page):
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]*)+)`", page.read_text()):
        if path.split("/")[0] in FOLDERS and (path.endswith(SUFFIXES) or "." not in path):
            assert (ROOT / path).exists() or (PACKAGE / path).exists(), f"{page.name}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_benchmark_scripts_have_the_options_in_their_commands(page):
    text = page.read_text().replace("\\\n", " ")
    for script, options in re.findall(r"(benchmarks/\w+\.py)([^`\n]*(?:\n[^`\n]+)?)[`\n]", text):
        source = (ROOT / script).read_text()
        for option in re.findall(r"--[a-z][a-z-]*", options):
            assert f'"{option}"' in source, f"{page.name}: {script} has no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_they_are_shown_with(page):
    _register_commands()
    commands = typer.main.get_command(app).commands
    for name, options in re.findall(r"\bdynedge ([a-z]+)\b([^`\n#]*)", page.read_text().replace("\\\n", " ")):
        if name in commands:
            known = {
                option for parameter in commands[name].params for option in parameter.opts + parameter.secondary_opts
            }
            unknown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", options)) - known - {"--help"}
            assert not unknown, f"{page.name}: dynedge {name} has no option {unknown}"


def test_architecture_lists_every_folder_and_module():
    tree = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    listed, folder = set(), ""
    for line in tree.strip().splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            folder = name if name.endswith("/") else ""
            listed.add(name)
        else:
            listed |= {folder + name for name in re.findall(r"\b\w+\.py\b", line)}
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    operators = {name for name in modules if re.match(r"ops/\w+/", name)}  # each has the same files
    folders = {f"{Path(name).parent}/" for name in modules if "/" in name} | {"serving/page/"}
    assert listed - modules - folders == set()
    assert (modules - operators | folders) - listed == set()
