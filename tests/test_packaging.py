"""The wheel, the extras, and the container files.

The wheel is installed into an empty environment outside the source tree and serves a run there. Its dependencies are
those of this environment, put on the path by a .pth file: pip resolves and downloads nothing, so that what is tested
is the wheel's own content and metadata.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from serving.small_run import make_run

import dynedge
from dynedge.cli import EXTRAS, _register_commands, app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {
    extra: {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in requirements}
    for extra, requirements in PROJECT["optional-dependencies"].items()
}

LOADED = """
import sys, dynedge, dynedge.serving.server_process, dynedge.cli.serve
print(dynedge.__file__, *{name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is missing: pip install 'dynedge[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", f"{folder}", f"{ROOT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_version_of_the_package_and_passes_twine(wheel):
    assert wheel.name.startswith(f"dynedge-{dynedge.__version__}-")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", f"{wheel}"], check=True, capture_output=True)
    names = zipfile.ZipFile(wheel).namelist()
    assert {"dynedge/py.typed", "dynedge/serving/page/index.html"} <= set(names)
    assert not [name for name in names if not name.startswith(("dynedge/", "dynedge-"))]


def test_the_installed_wheel_serves_a_run_outside_the_source_tree(wheel, runs_folder, tmp_path):
    run = make_run(runs_folder, "next-300-unseen")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    target = Path(sysconfig.get_path("purelib", "venv", {"base": environment, "platbase": environment}))
    pip = [sys.executable, "-m", "pip", "--python", f"{python}", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, f"{wheel}"], check=True, capture_output=True)
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    loaded = subprocess.check_output([python, "-c", LOADED], cwd=tmp_path, env=outside, text=True)
    where, *packages = loaded.split()
    assert Path(where).is_relative_to(environment)
    others = set().union(*(REQUIRED[extra] for extra in ("plots", "tune", "redis", "tensorboard", "mlflow")))
    assert not set(packages) & others, "imports what [serve] does not install"
    command = [environment / "bin" / "dynedge", "serve", run, "--port", "0", "--data", tmp_path / "data"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=outside, **pipes) as service:
        try:
            address = service.stdout.readline().split()[0]
            with urllib.request.urlopen(f"{address}/users/nobody/recommendations?k=3") as answer:
                assert len(json.load(answer)["items"]) == 3
            with urllib.request.urlopen(address) as page:
                assert b"<title>" in page.read()
        finally:
            service.terminate()


def test_every_optional_package_is_in_the_extra_that_messages_name():
    for package, extra in EXTRAS.items():
        if package != "starlette":  # a dependency of fastapi
            distribution = {"mlflow": "mlflow_skinny"}.get(package, package)
            assert distribution in REQUIRED[extra], f"{package} is not in the extra {extra}"
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r"pip install 'dynedge\[([a-z]+)\]'", path.read_text()))
    assert named and named <= set(REQUIRED)


def test_hadolint_has_nothing_to_say_about_the_dockerfile():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is missing: pip install 'dynedge[dev]'")
    done = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def dockerfile():
    """The instructions of the Dockerfile: (name, arguments)."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def test_the_image_is_small_runs_as_a_user_and_has_the_extras_of_its_commands():
    instructions = dockerfile()
    names = [name for name, _ in instructions]
    assert names[0] == "FROM" and all(":" in value for name, value in instructions if name == "FROM"), "pinned tags"
    assert names.index("USER") < names.index("ENTRYPOINT") and dict(instructions)["USER"] not in ("root", "0")
    installed = " ".join(value for name, value in instructions if name == "RUN")
    assert set(re.search(r"\[([\w,]+)\]", installed)[1].split(",")) == {"serve", "redis"} <= set(REQUIRED)
    assert installed.count("pip ") == installed.count("--no-cache-dir")
    for name in ("ENTRYPOINT", "CMD", "VOLUME"):
        assert json.loads(dict(instructions)[name]), "the form without a shell, which gets signals"
    copied = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"} and all(
        (ROOT / name).exists() for name in copied
    )


def test_the_composed_service_has_options_that_exist_and_a_durable_redis():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    _register_commands()
    name, *arguments = services["service"]["command"]
    command = typer.main.get_command(app).commands[name]
    parsed = command.make_context(name, list(arguments)).params
    assert parsed["host"] == "0.0.0.0" and "DYNEDGE_TOKEN" in services["service"]["environment"]
    host = re.match(r"redis://(\w+):", parsed["journal"])[1]
    assert host in services and host in services["service"]["depends_on"]
    assert "--appendonly yes --appendfsync always" in shlex.join(services[host]["command"])
    mounted = {volume.split(":")[0] for one in services.values() for volume in one["volumes"]}
    declared = set(yaml.safe_load((ROOT / "compose.yaml").read_text())["volumes"])
    assert {name for name in mounted if not name.startswith(".")} == declared
