"""Size of a source tree, read by `ast`: files, lines, functions, public names, and the model contract.

    python benchmarks/code_metrics.py                              # src/dynedge of this checkout
    python benchmarks/code_metrics.py BEFORE/src/dynedge src/dynedge
    python benchmarks/code_metrics.py --long                       # and every long function by name

A function's length counts all of its lines, from its `def` or first decorator to its end. Public names are the
functions, classes and assigned names at the top of a module that have no leading underscore. The model contract is
the class Model of models/contract.py or models/base.py, without private and special methods.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dynedge"
CONTRACT_FILES = "models/contract.py", "models/base.py"
LONG = 60  # lines of a function

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Metrics:
    """Metrics of a source tree; the contract's methods are None if it has no class Model."""

    lengths: dict[str, int]  # lines of each function, by "file:line name"
    file_lines: dict[str, int]
    public_names: int
    abstract_methods: int | None
    concrete_methods: int | None

    def rows(self) -> dict[str, str]:
        functions, lines = list(self.lengths.values()), list(self.file_lines.values())
        numbers: dict[str, float | None] = {
            "files": len(lines),
            "lines": sum(lines),
            "median lines per file": median(lines or [0]),
            "files over 300 lines": sum(count > 300 for count in lines),
            "functions": len(functions),
            "median lines per function": median(functions or [0]),
            f"functions over {LONG} lines": sum(count > LONG for count in functions),
            "public names": self.public_names,
            "model contract: abstract methods": self.abstract_methods,
            "model contract: concrete methods": self.concrete_methods,
        }
        return {name: "–" if number is None else f"{number:,g}" for name, number in numbers.items()}

    def long_functions(self) -> list[tuple[int, str]]:
        return sorted(((length, name) for name, length in self.lengths.items() if length > LONG), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", default=[SOURCE], help="One or two source folders.")
    parser.add_argument("--long", action="store_true", help=f"Names of the functions over {LONG} lines.")
    args = parser.parse_args()
    for folder in args.folders:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder.")
    measured = {str(folder): measure(folder) for folder in args.folders}
    print_table(measured)
    if args.long:
        for folder, metrics in measured.items():
            print(f"\nfunctions over {LONG} lines in {folder}")
            for length, name in metrics.long_functions():
                print(f"  {length:4}  {name}")


def measure(folder: Path) -> Metrics:
    lengths: dict[str, int] = {}
    file_lines: dict[str, int] = {}
    public = 0
    for path in sorted(folder.rglob("*.py")):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        file_lines[name] = len(text.splitlines())
        public += sum(not one.startswith("_") for one in set(module_names(tree)))
        for node in ast.walk(tree):
            if isinstance(node, Function):
                lengths[f"{name}:{node.lineno} {node.name}"] = function_lines(node)
    abstract, concrete = contract_methods(folder)
    return Metrics(lengths, file_lines, public, abstract, concrete)


def function_lines(function: Function) -> int:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return (function.end_lineno or first) - first + 1


def module_names(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and assigned names at the top of a module; imported names are not counted."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def contract_methods(folder: Path) -> tuple[int | None, int | None]:
    """Numbers of abstract and of concrete methods of class Model, without private and special ones."""
    for file in CONTRACT_FILES:
        if (folder / file).exists():
            for node in ast.parse((folder / file).read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == "Model":
                    methods = [one for one in node.body if isinstance(one, Function) and not one.name.startswith("_")]
                    abstract = sum(map(is_abstract, methods))
                    return abstract, len(methods) - abstract
    return None, None


def is_abstract(method: Function) -> bool:
    return any(ast.unparse(decorator).endswith("abstractmethod") for decorator in method.decorator_list)


def print_table(measured: dict[str, Metrics]) -> None:
    """A Markdown table with a column for each folder."""
    columns = [metrics.rows() for metrics in measured.values()]
    print(f"| | {' | '.join(measured)} |\n|---|{'---:|' * len(measured)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")


if __name__ == "__main__":
    main()
