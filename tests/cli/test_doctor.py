"""The command doctor, and shell completion."""

import json
import os
import subprocess
import sys

from dynedge.cli import doctor


def test_it_reports_versions_devices_folders_extras_and_a_passed_test(cli_run):
    code, out, err = cli_run("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and err == ""
    assert found["packages"]["torch"] and found["devices"]["cores"] >= 1 and os.path.isdir(found["kernels"]["folder"])
    assert found["extras"]["serve"] == [] and "dev" not in found["extras"]
    assert found["test"]["passed"]


def test_a_missing_extra_is_named_and_a_failed_test_is_exit_code_1(cli_run, monkeypatch):
    version = doctor._version

    def fail():
        raise OSError("no space left")

    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "fastapi" else version(name))
    monkeypatch.setattr(doctor, "_train_and_recommend", fail)
    code, out, _ = cli_run("doctor")
    assert code == 1
    assert "missing fastapi: pip install 'dynedge[serve]'" in out
    assert "FAILED: OSError: no space left" in out
    assert cli_run("doctor", "--no-test")[0] == 0


def test_a_shell_completes_commands_and_options():
    def completed(words):
        answer = {
            "_DYNEDGE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        program = "import sys; sys.argv = ['dynedge']; from dynedge.cli import main; main()"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=os.environ | answer, capture_output=True, text=True, check=False)
        assert done.stderr == "", done.stderr
        return done.stdout.split()

    assert completed("dynedge tra") == ["train"]
    assert "--filter-seen" in completed("dynedge recommend --f")
