"""Tensor files: every kind of tensor is restored, damage and full disks are reported, and nothing is pickled."""

import ast
import os
from pathlib import Path

import pytest
import torch

import dynedge
from dynedge.errors import DataError
from dynedge.utils import tensor_io
from dynedge.utils.tensor_io import load_tensors, save_tensors, select_prefix, with_prefixes


def test_tensors_of_all_kinds_are_restored_bit_identically(tmp_path):
    base = torch.randn(6, 4)
    tensors = {
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5),
        "view": base[:, 1:3],
        "tied": base,
        "tied again": base,
        "bool": torch.tensor([True, False]),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    save_tensors(tmp_path / "x.safetensors", tensors)
    back = load_tensors(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_file_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o022)
    try:
        save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    finally:
        os.umask(old)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o644


def test_prefixes_of_tensor_names():
    one = torch.ones(1)
    both = with_prefixes(model={"a.b": one}, state={"c": one})
    assert list(both) == ["model.a.b", "state.c"]
    assert list(select_prefix({**both, "models.c": both["model.a.b"]}, "model")) == ["a.b"]


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 8, b"\x80" + b"\0" * 7 + b"{" * 200, (2).to_bytes(8, "little") + b"[]"]
)
def test_a_malformed_tensor_file_is_a_data_error(tmp_path, raw):
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        load_tensors(tmp_path / "x.safetensors")
    with pytest.raises(DataError, match="missing"):
        load_tensors(tmp_path / "y.safetensors")


def test_a_full_disk_is_reported_and_the_old_file_stays(tmp_path, monkeypatch):
    def full(*_):
        raise tensor_io.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    monkeypatch.setattr(tensor_io, "save_file", full)
    with pytest.raises(
        DataError, match=r"x.safetensors: the disk is full; free some space and continue with --resume"
    ):
        save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)})
    assert load_tensors(tmp_path / "x.safetensors")["a"].item() == 1


def _forbidden_calls(tree):
    """What a module imports or calls that reads or writes pickles; text that only mentions them does not count."""
    pickling = {"pickle", "cPickle", "cloudpickle", "joblib", "marshal", "dill", "shelve"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from pickling & {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            yield from pickling & {(node.module or "").partition(".")[0]}
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            yield from {call} & {"torch.save", "torch.load", "__import__"}
            yield from (call for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False")


def test_no_module_uses_pickle():
    sources = list(Path(dynedge.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    for path in sources:
        assert not list(_forbidden_calls(ast.parse(path.read_text(encoding="utf-8")))), f"{path} uses pickle"
    assert list(_forbidden_calls(ast.parse("import a.b, pickle"))) == ["pickle"]
    assert list(_forbidden_calls(ast.parse("from joblib.x import load"))) == ["joblib"]
    assert list(_forbidden_calls(ast.parse("x(torch.load(y))"))) == ["torch.load"]
    assert list(_forbidden_calls(ast.parse("np.load(x, allow_pickle=flag)"))) == ["np.load"]
