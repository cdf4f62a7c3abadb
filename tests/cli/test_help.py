"""Help texts and the flags that are generated from the config dataclasses."""

import re
import subprocess
import sys

import pytest

from dynedge.cli import _register_commands, app
from dynedge.cli.config_flags import SECTIONS, config_fields
from dynedge.cli.help_format import SectionedGroup
from dynedge.config import settings
from dynedge.models.registry import default_model, find_entry

COMMANDS = [name for names in SectionedGroup.SECTIONS.values() for name in names]


def test_the_sections_of_the_help_list_every_command(cli_run):
    _register_commands()
    registered = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert sorted(registered) == sorted(COMMANDS)
    code, out, _ = cli_run("--help")
    assert code == 0
    assert re.findall(r"^  ([a-z]+)  ", out, re.M) == COMMANDS
    assert "..." not in out.replace("[ARGS]...", ""), "every summary fits its line"


def test_every_field_of_the_configs_is_a_flag_of_train_with_its_help(cli_run):
    code, out, _ = cli_run("train", "--help")
    assert code == 0
    text = " ".join(out.split())
    for config in SECTIONS.values():
        for setting in settings(config):
            assert f"--{setting.name.replace('_', '-')}" in text
            assert " ".join(config_fields()[setting.name][1].metadata["help"].split()) in text


def test_the_model_flags_are_those_of_the_default_model():
    assert type(list(SECTIONS.values())[-1]) is find_entry(default_model()).config


def test_flags_set_the_config_whatever_their_type(cli_run, tmp_path, monkeypatch):
    """Numbers, switches, choices, lists and none, down to the config that would be trained."""
    from dynedge.data.synthetic import synthesize
    from dynedge.errors import UsageError
    from dynedge.runs import train_run

    synthesize("demo", tmp_path / "log", events=1000, quiet=True)
    configs = []

    def stop_before_training(run, config, *_, **__):
        configs.append(config)
        raise UsageError("stop here.")

    monkeypatch.setattr(train_run, "train_run", stop_before_training)
    flags = "--lr 0.02 --deterministic --no-item-id --active-users 7 --depth none --solver penalty --weights 0,0.5"
    code, _, err = cli_run("train", tmp_path / "log", "--out", tmp_path / "run", *flags.split(), "--half-lives", "10")
    assert (code, err) == (2, "dynedge: stop here.\n")
    training, model = configs[0].training, configs[0].model
    assert (training.lr, training.deterministic) == (0.02, True)
    assert (model.recurrence.item_id, model.recurrence.active_users, model.recurrence.depth) == (False, 7, None)
    assert (model.recurrence.solver, model.weights, model.memory.half_lives) == ("penalty", (0.0, 0.5), (10.0,))


@pytest.mark.parametrize("command", ["", "train", "plan", "tune", "compare"])
def test_help_imports_nothing_heavy(command):
    code = (
        f"import sys; sys.argv = ['dynedge', *'{command}'.split(), '--help']\n"
        "from dynedge.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numba', 'pyarrow', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert ("--epochs" if command not in ("", "plan") else "prepare" if not command else "--dnodes") in done.stdout


def test_a_deleted_current_directory_is_named(tmp_path):
    code = (
        "import os, sys\n"
        "from dynedge import cli\n"
        f"os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})\n"
        f"os.rmdir({str(tmp_path / 'gone')!r})\n"
        "sys.exit(cli.run(['info', 'log']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("dynedge: the current directory no longer exists; change to another one")
    assert done.stderr.count("\n") == 1
