"""Pages of the documentation site that are made from the code when it is built; a hook of mkdocs (mkdocs.yml).

Commands, settings, HTTP requests and files are read from the program, so that they cannot be out of date.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages; called by mkdocs."""
    pages: dict[str, Callable[[], str]] = {
        "reference/commands.md": commands,
        "reference/settings.md": settings,
        "reference/python.md": python_api,
        "reference/http.md": http_api,
        "reference/files.md": file_formats,
    }
    pages |= {page: (ROOT / source).read_text for source, page in COPIED.items()}
    for path, write in pages.items():
        files.append(File.generated(config, path, content=write()))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        for path, content in notebook_pages(notebook):
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Adapts links that leave docs/: to the copied pages, else the text alone; called by mkdocs."""
    if "/" in page.file.src_uri:
        return markdown

    def adapted(link: re.Match[str]) -> str:
        text, target = link[1], link[2].removeprefix("../")
        if link[2].startswith("docs/"):
            return f"[{text}]({link[2].removeprefix('docs/')})"
        return f"[{text}]({COPIED[target]})" if target in COPIED else text

    outside = "|".join(re.escape(name) for name in COPIED)
    return re.sub(rf"\[([^\]]+)\]\((\.\./[^)]+|docs/[^)]+|{outside})\)", adapted, markdown)


def commands() -> str:
    """Every command with its arguments and options."""
    import typer

    from dynedge.cli import _register_commands, app

    _register_commands()
    group = typer.main.get_command(app)
    known = group.commands  # type: ignore[attr-defined]
    order = dict.fromkeys([name for names in group.SECTIONS.values() for name in names] + sorted(known))  # type: ignore[attr-defined]
    text = "# Commands\n\nGenerated from the program; `dynedge COMMAND --help` prints the same.\n"
    return text + "".join(_command(name, known[name]) for name in order if name in known)


def _command(name: str, command: Any) -> str:
    arguments = " ".join(_metavar(p) for p in command.params if p.param_type_name == "argument")
    rows = [
        (", ".join(f"`{one}`" for one in p.opts + p.secondary_opts), _code_flags(p.help or ""), _default(p))
        for p in command.params
        if p.param_type_name == "option" and not p.hidden
    ]
    table = _table(("option", "meaning", "default"), rows) if rows else ""
    return f"\n## dynedge {name}\n\n`dynedge {name} {arguments}`\n\n{cleandoc(command.help or '')}\n\n{table}"


def _code_flags(text: str) -> str:
    return re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", text)


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"{name}…" if parameter.nargs == -1 else name


def _default(parameter: Any) -> str:
    default = parameter.default
    shown = not isinstance(default, bool) and default not in (None, "", [], ()) and not callable(default)
    return f"`{default}`" if shown else ""


def settings() -> str:
    """Every field of the config: those of training, and those of each model."""
    from dynedge.config import settings as fields_of
    from dynedge.models.registry import entries
    from dynedge.runs.run_config import recipe_config

    lines = [
        "# Settings\n",
        "Every field of a run's `config.toml`, with its default; `train --set KEY=VALUE` sets any of them; most",
        "are flags too (`--epochs 5`), and arguments of `dynedge.Model(name, epochs=5)`.\n",
    ]
    seen: dict[str, str] = {}
    training = fields_of(recipe_config(next(iter(entries()))).training, "training.")
    lines += ["## training\n", _table(("key", "meaning", "default"), map(_setting, training))]
    for name in entries():
        config = recipe_config(name)
        rows = [_setting(field) for field in fields_of(config.model, "model.")]
        if not rows:
            continue
        table = _table(("key", "meaning", "default"), rows)
        same = seen.setdefault(table, name)
        lines += [f"## {name}\n", table if same == name else f"As of [{same}](#{same}).\n"]
        recipes = [recipe for recipe in entries()[name].recipes if recipe != name]
        if recipes:
            lines.append(f"Recipes, with other defaults: {', '.join(f'`{recipe}`' for recipe in recipes)}.\n")
    return "\n".join(lines)


def _setting(field: Any) -> tuple[str, str, str]:
    from dynedge.config import _toml_value

    choices = ", ".join(field.metadata.get("choices") or ())
    return (
        f"`{field.key}`",
        f"{field.metadata.get('help', '')}{f' One of {choices}.' if choices else ''}",
        f"`{_toml_value(field.value)}`",
    )


def python_api() -> str:
    """The public names, rendered from their docstrings by mkdocstrings."""
    import dynedge

    text = "# Python\n\nEverything that `import dynedge` offers; [an example](../start.md).\n\n"
    names = ["Model", "Edge", *(name for name in dynedge.__all__ if name not in ("Model", "Edge", "__version__"))]
    paths = [f"{dynedge._HOME[name]}.{name}" for name in names]
    paths += [f"dynedge.evaluation.results.{name}" for name in ("Evaluation", "Comparison")]
    paths.append("dynedge.inference.recommend.Recommendations")
    inherited = (
        "\n    options:\n      inherited_members: true"  # to_pandas and to_polars; Edge has nothing of its own
    )
    shown = (f"::: {path}{'' if path.endswith('.Edge') else inherited}" for path in paths)
    return text + "\n\n".join(shown) + "\n"


def http_api() -> str:
    """The requests of `dynedge serve`, from its OpenAPI schema."""
    from fastapi import FastAPI

    from dynedge.serving.routes import events, health, inspect, recommendations

    app = FastAPI(title="dynedge")
    for module in (events, recommendations, inspect, health):
        app.router.routes.extend(module.router.routes)
    schema = app.openapi()
    lines = [
        "# HTTP\n",
        "The requests of `dynedge serve`; a running service has the full schema at `/openapi.json`.",
        "[Put it in production](../serving.md) says what they guarantee.\n",
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            lines += _request(path, method.upper(), operation, schema)
    lines.append("# Bodies\n")
    for name, definition in schema["components"]["schemas"].items():
        if definition.get("properties"):
            lines += _body(name, definition)
    return "\n".join(lines)


def _request(path: str, method: str, operation: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield cleandoc(operation.get("description") or operation.get("summary", "")) + "\n"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"Body: {_type(body)}\n"
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [(f"`{p['name']}`", _type(p["schema"]), p["in"], p.get("description", "")) for p in parameters]
        yield _table(("parameter", "type", "in", "meaning"), rows)


def _body(name: str, definition: dict[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    if definition.get("description"):
        yield cleandoc(definition["description"]) + "\n"
    required = set(definition.get("required", ()))
    rows = [
        (f"`{field}`", _type(one), "" if field in required else f"`{one.get('default')}`", one.get("description", ""))
        for field, one in definition["properties"].items()
    ]
    yield _table(("field", "type", "default", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    kind = schema.get("type", "any")
    return f"list of {_type(schema['items'])}" if kind == "array" and "items" in schema else str(kind)


def file_formats() -> str:
    """Log folders and run folders, from the modules that write them."""
    from dynedge.data import log
    from dynedge.runs import folder, readme
    from dynedge.serving import sqlite_journal

    return f"""# Files

## Log

{log.__doc__}
{_table(("file", "type and shape"), _log_columns(log.EventLog))}
External ids are in `user_ids.npy` and `item_ids.npy`, in the order of the dense ids: int64, or the UTF-8 bytes of
all of them, and where each begins in `user_ids_offsets.npy`. `event_ids` and `category_0_ids`, `category_1_ids`, …
are stored alike. A table that describes items is `item_table.parquet`.

`log.json` has `format` {log.FORMAT!r}, `version` {log.VERSION}, the shape, type and SHA-256 of each column by block.
Columns are NumPy files that any program can read: `numpy.load("log/user.npy")`.

## Run

{readme.FILES}
{cleandoc(folder.__doc__ or "").partition(chr(10))[0]}

## Journal of a service

{sqlite_journal.__doc__}

```sql
{sqlite_journal.TABLES.strip()}
```
"""


def _log_columns(log: type) -> list[tuple[str, str]]:
    """The columns of a log and the comments beside them."""
    return [
        (f"`{name}.npy`", comment)
        for name, comment in re.findall(r"^    (\w+): Array\b.*?  # (.+)$", inspect.getsource(log), re.M)
    ]


def notebook_pages(path: Path) -> Iterator[tuple[str, str | bytes]]:
    """A notebook as a page, with the output that is stored in it, and its pictures."""
    text = [f"*The notebook `docs/notebooks/{path.name}`, executed.*\n"]
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{path.stem}-{number}.png"
                yield f"notebooks/{picture}", base64.b64decode(data["image/png"])
                text.append(f"![output]({picture})")
            elif "text/html" in data:
                table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
                text.append(table.replace(' border="1" class="dataframe"', ""))  # drawn as the site's own tables
            else:
                shown = "".join(output.get("text") or data.get("text/plain", ""))
                text.append(f"```text\n{shown.rstrip()}\n```")
    title = text.index(next(part for part in text[1:] if part.startswith("# ")))
    yield f"notebooks/{path.stem}.md", "\n\n".join([text[title], text[0], *text[title + 1 :]])


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"

    return "\n".join([line(header), line("---" for _ in header), *map(line, rows)]) + "\n"
