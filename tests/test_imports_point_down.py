"""Who may import whom: only downwards, as in docs/architecture.md."""

import ast
from pathlib import Path

import dynedge

ROOT = Path(dynedge.__file__).parent
# From the bottom up. A folder may import from itself and from those before it.
LAYERS = ["errors", "utils", "config", "data", "plan", "ops", "models", "evaluation", "training", "runs"]
LAYERS += ["experiments", "inference", "serving", "report", "api", "cli"]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("dynedge.")}


def test_imports_point_down():
    files = [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in LAYERS]
    assert len(files) > 10
    for path in files:
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        above = imports_of(path) - set(allowed) - {"__version__"}
        assert not above, f"{path.relative_to(ROOT)} imports from {above}, which is above it"
