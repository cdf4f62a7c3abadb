"""What the documentation names exists: targets of links, paths, commands and their options, models, folders."""

import re
from pathlib import Path

import pytest
import typer

import dynedge
from dynedge.cli import _register_commands, app
from dynedge.models.registry import find_entry

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dynedge.__file__).parent
README = (ROOT / "README.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # it also names what no longer exists
GENERATED = "reference/", "notebooks/"  # pages of the site; its build checks these links
SUFFIXES = ".py", ".md", ".toml", ".css", ".js", ".html", ".json", "/"
FOLDERS = {path.name for base in (ROOT, PACKAGE) for path in base.iterdir() if path.is_dir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    for link in (link for link in links if "://" not in link and not link.startswith(GENERATED)):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_paths_in_backticks_exist(page):
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]*)+)`", page.read_text()):
        if path.split("/")[0] in FOLDERS and (path.endswith(SUFFIXES) or "." not in path):
            assert (ROOT / path).exists() or (PACKAGE / path).exists(), f"{page.name}: {path}"


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_benchmark_scripts_have_the_options_in_their_commands(page):
    text = page.read_text().replace("\\\n", " ")
    for script, options in re.findall(r"(benchmarks/\w+\.py)([^`\n]*(?:\n[^`\n]+)?)[`\n]", text):
        source = (ROOT / script).read_text()
        for option in re.findall(r"--[a-z][a-z-]*", options):
            assert f'"{option}"' in source, f"{page.name}: {script} has no option {option}"


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
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
    tree = (ROOT / "docs" / "architecture.md").read_text().split("```text\n")[1].split("```")[0]
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


def test_commands_of_the_readme_exist():
    _register_commands()
    registered = {command.name or command.callback.__name__ for command in app.registered_commands}
    blocks = "".join(re.findall(r"```(?:sh|text)\n(.*?)```", README, re.S))
    typed = set(re.findall(r"^(?:\$ )?dynedge (\w+)", blocks, re.M))
    assert {"prepare", "train", "compare", "recommend", "serve"} <= typed <= registered
    listed = README.split("## Commands")[1].split("## ")[0]
    assert all(f"dynedge {name}" in listed or f"`{name}`" in listed for name in registered)
    assert set(re.findall(r"`dynedge (\w+)", README)) <= registered


def test_models_of_the_readme_exist():
    table = README.split("| `--model` |")[1].split("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert len(names) == 29
    for name in names:
        assert find_entry(name)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 130
