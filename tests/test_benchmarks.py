"""Every script in benchmarks/ can be imported, and every name that it takes from dynedge exists."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
OPTIONAL = {"torch_geometric", "recbole", "yaml", "duckdb", "triton", "matplotlib"}  # need not be installed

pytestmark = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def test_script_can_be_imported(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    name = f"benchmark_{script.stem}"
    spec = spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        skip_if_optional(error)


def test_names_used_from_dynedge_exist(script: Path) -> None:
    """Also those imported inside functions, and attributes of imported modules."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    modules: dict[str, ModuleType] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dynedge":
            for alias in node.names:
                value = imported(str(node.module), alias.name)
                if isinstance(value, ModuleType):
                    modules[alias.asname or alias.name] = value
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            assert hasattr(module, node.attr), f"line {node.lineno}: {module.__name__} has no {node.attr}"


def test_no_variable_hides_a_function_that_is_called(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        called = {node.id for node in calls if isinstance(node, ast.Name)}
        assert not assigned & called & {one.name for one in functions}, function.name


def imported(module: str, name: str) -> object:
    """The value of `from module import name`: an attribute or a submodule."""
    try:
        parent = importlib.import_module(module)
        return getattr(parent, name) if hasattr(parent, name) else importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        skip_if_optional(error)


def skip_if_optional(error: ModuleNotFoundError) -> NoReturn:
    package = (error.name or "").split(".")[0]
    if package not in OPTIONAL:
        raise error
    pytest.skip(f"{package} is not installed")
