"""Ranks that are killed, stopped, hang, differ or run out of disk: one error, a folder to go on from, the same bits.

More kills than by default: GRADSIEVE_RANK_KILLS=20.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradsieve.training.folder import read_folder

KILLS = int(os.environ.get("GRADSIEVE_RANK_KILLS", "4"))
# Forks a process for each rank, as torchrun would start it, so that torch is imported once.
FORKER = """
import json, os, resource, signal, sys
import sklearn.datasets, torch, torch._dynamo
torch.set_num_threads(1)
import gradsieve.training.loop
from datetime import timedelta
from gradsieve.ranks import group
from gradsieve.training import rank_start
from gradsieve.cli import main

def work(rank, order):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order["world"])}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
    log = os.open(order["logs"] + str(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    group.RANK_TIMEOUT = timedelta(seconds=order["rank_timeout"])
    if rank == 0 and order["most_bytes"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["most_bytes"], order["most_bytes"]))
    if rank == 1 and order["other_code"]:
        rank_start.source_sha256 = lambda: "other"
    sys.argv = ["gradsieve", *order["arguments"], *(order["second"] if rank == 1 else [])]
    try:
        main()
    except SystemExit as stop:
        sys.stdout.flush()
        os._exit(stop.code or 0)
    os._exit(99)

for line in sys.stdin:
    order, children = json.loads(line), []
    for rank in range(order["world"]):
        child = os.fork()
        if child == 0:
            work(rank, order)
        children.append(child)
    print(json.dumps(children), flush=True)
    sys.stdin.readline()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""
TRAIN = ["train", "--epochs", "3", "--ramp", "2", "--device", "cpu", "--resume", "--json"]
DIGITS = ["--data", "digits", "--batch-size", "144", "--corruption", "pairflip", "--rate", "0.3"]
DIGITS += ["--model-option", "hidden=[16]"]
FACES = ["--data", "landmarks", "--corruption", "signflip", "--rate", "0.25", "--batch-size", "16"]
FACES += ["--data-option", "train=80", "--data-option", "test=16", "--data-option", "size=28"]
FACES += ["--model", "cnn9", "--model-option", "width=0.03"]
RUNS = {
    "prl-l": [*TRAIN, *DIGITS],
    "two networks with BatchNorm and dropout": [*TRAIN, *FACES, "--method", "co-prl-l"],
}


class Ranks:
    """``gradsieve`` over ranks, one launch at a time."""

    def __init__(self, logs):
        self.logs = logs
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.forker = subprocess.Popen([sys.executable, "-c", FORKER], **pipes)

    def tell(self, line):
        self.forker.stdin.write(line + "\n")
        self.forker.stdin.flush()
        return json.loads(self.forker.stdout.readline())

    def start(self, arguments, world=2, **order):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        usual = {"rank_timeout": 60, "most_bytes": 0, "other_code": False, "second": []}
        order = usual | {"world": world, "port": port, "logs": str(self.logs)} | order
        self.children = self.tell(json.dumps(order | {"arguments": [str(each) for each in arguments]}))

    def end(self, seconds):
        """What torchrun does once a rank is gone: it ends the others. Give them some time to notice by themselves."""
        deadline = time.monotonic() + seconds
        while not all(map(has_ended, self.children)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for child in self.children:
            os.kill(child, signal.SIGKILL)  # until it is waited for, its number is its own

    def wait(self):
        """The exit code of each rank, or minus the signal that ended it."""
        return self.tell("wait")

    def run(self, arguments, world=2, **order):
        self.start(arguments, world, **order)
        return self.wait()

    def said(self, rank):
        """What a rank printed, without what torch warns of, and of a class: whether a run came that far is luck."""
        lines = Path(f"{self.logs}{rank}").read_text().splitlines()
        return [line for line in lines if not re.match(r"\[[WEI]\d|warning: In epoch \d+ \d+% of the rows", line)]

    def close(self):
        self.forker.stdin.close()
        self.forker.wait()


def has_ended(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(tmp_path_factory.mktemp("logs") / "log of rank ")
    yield ranks
    ranks.close()


ASIDE = ("seconds", "versions", "bound", "figures_sha256")  # times, and a sum that knows them


def outcome(path):
    """All that a finished run leaves, but the time it took."""
    folder = read_folder(path)
    result = {name: value for name, value in folder.result().items() if name not in ASIDE}
    metrics = [{name: value for name, value in record.items() if name != "seconds"} for record in folder.metrics()]
    folder.weights()
    folder.ledger()
    return result, metrics


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    """What each of the runs gives when it is left alone."""
    outcomes = {}

    def find(name):
        if name not in outcomes:
            path = tmp_path_factory.mktemp("undisturbed") / "run"
            assert ranks.run([*RUNS[name], "--out", path]) == [0, 0], ranks.said(0)
            outcomes[name] = outcome(path)
        return outcomes[name]

    return find


def written_at(path):
    return path.stat().st_mtime if path.exists() else 0.0


def wait_for(path, seconds=60):
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert path.exists()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_whose_ranks_are_killed_ends_with_the_same_bits(name, ranks, undisturbed, tmp_path):
    """A random rank at a random moment; saving after every step, so that many kills fall into a save."""
    moments = random.Random(0)
    expected = undisturbed(name)
    kills, finished, longest = 0, [], 2.0
    while kills < KILLS or not finished:
        path = tmp_path / f"run{len(finished)}"
        began, began_at = time.monotonic(), time.time()
        ranks.start([*RUNS[name], "--out", path, "--save-every", "0"])
        if kills < KILLS:
            time.sleep(moments.uniform(0, longest))
            os.kill(moments.choice(ranks.children), signal.SIGKILL)
            # Before they have met, a rank waits for the other: there only the launcher can know.
            has_met = began_at < written_at(path / "state" / "lock")
            ranks.end(seconds=20 if has_met else 0)
        codes = ranks.wait()
        if codes == [0, 0]:
            finished.append(path)
            longest = 0.8 * (time.monotonic() - began)
            continue
        assert -signal.SIGKILL in codes, (codes, ranks.said(0), ranks.said(1))
        if has_met:
            assert codes.count(-signal.SIGKILL) == 1  # the other one noticed by itself
        if codes[0] > 0:
            # So few epochs may keep none of a class, of which it has warned by then.
            (said,) = [line for line in ranks.said(0) if not line.startswith("warning: In epoch")]
            assert "--resume goes on" in said
        kills += 1
    for path in finished:
        assert outcome(path) == expected


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_signal_to_one_rank_stops_all_and_any_world_goes_on(world, ranks, undisturbed, tmp_path):
    path, name = tmp_path / "run", "prl-l"
    ranks.start([*RUNS[name], "--out", path, "--save-every", "0"])
    wait_for(path / "metrics.jsonl")
    os.kill(ranks.children[1], signal.SIGTERM)
    assert ranks.wait() == [130, 130]
    assert "stopped in epoch" in ranks.said(0)[0]
    assert ranks.said(1) == []
    assert ranks.run([*RUNS[name], "--out", path], world=world) == [0] * world, ranks.said(0)
    found, expected = outcome(path), undisturbed(name)
    if world == 2:
        assert found == expected
    for record, wanted in zip(found[1], expected[1], strict=True):
        assert record["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert record["purity"] == wanted["purity"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_while_ranks_choose_a_rate_is_not_lost(rank, ranks, tmp_path):
    """A candidate of a few steps is done before it asks the others a second time: its end asks, too."""
    path = tmp_path / "run"
    ranks.start([*RUNS["prl-l"], "--drop-rate", "auto", "--out", path])
    wait_for(path / "config.json")
    time.sleep(0.3)
    assert not (path / "pick.json").exists()
    os.kill(ranks.children[rank], signal.SIGTERM)
    assert ranks.wait() == [130, 130], ranks.said(0)
    assert not (path / "pick.json").exists()
    assert "stopped" in ranks.said(0)[0]
    assert ranks.said(1) == []


def test_a_rank_that_hangs_is_given_up(ranks, tmp_path):
    path = tmp_path / "run"
    ranks.start([*RUNS["prl-l"], "--epochs", "300", "--out", path, "--save-every", "0"], rank_timeout=3)
    wait_for(path / "metrics.jsonl")
    os.kill(ranks.children[1], signal.SIGSTOP)
    time.sleep(4)
    os.kill(ranks.children[1], signal.SIGKILL)
    assert ranks.wait()[0] == 2
    (line,) = ranks.said(0)
    assert line.startswith("error: A rank died, or did not answer for 3 seconds")
    assert read_folder(path).states()


DIFFERENT = {
    "settings": ({"second": ["--epochs", "4"]}, "error: rank 1 has settings of its own (epochs is 4 there, 3 here)."),
    "code": ({"other_code": True}, "error: rank 1 has software of its own (SHA-256 of the code is 'other' there, "),
    "a mistake": ({"second": ["--drop-rate", "1.5"]}, "error: rank 1: --drop-rate is 1.5, but a rate is a number"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_are_refused_once_and_nothing_is_written(what, ranks, tmp_path):
    order, message = DIFFERENT[what]
    assert ranks.run([*RUNS["prl-l"], "--out", tmp_path / "run"], **order) == [2, 2]
    (line,) = ranks.said(0)
    assert line.startswith(message)
    assert ranks.said(1) == []
    assert not (tmp_path / "run").exists()


def test_a_bad_setting_is_said_once(ranks, tmp_path):
    assert ranks.run([*RUNS["prl-l"], "--out", tmp_path / "run", "--drop-rate", "1.5"]) == [2, 2]
    assert [len(ranks.said(0)), ranks.said(1)] == [1, []]


def test_a_full_disk_is_said_once_and_the_folder_goes_on(ranks, undisturbed, tmp_path):
    path, name = tmp_path / "run", "prl-l"
    arguments = [*RUNS[name], "--out", path, "--save-every", "0"]
    assert ranks.run(arguments, most_bytes=20_000) == [2, 2]  # config.json fits, a state does not
    (line,) = ranks.said(0)
    assert "could not be written" in line
    assert "--resume" in line
    assert ranks.said(1) == []
    assert ranks.run(arguments) == [0, 0]
    assert outcome(path) == undisturbed(name)


def test_torchrun_starts_the_ranks_and_says_what_each_holds(tmp_path):
    """The command itself, once: starting it takes longer than the run."""
    run = ["-m", "gradsieve", *RUNS["prl-l"], "--out", str(tmp_path / "run")]
    run.remove("--json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "2 ranks (gloo) take 72, 72 of the 144 rows of each batch; each holds the 1437 training rows" in done.stdout
    assert done.stdout.count("purity of the kept rows") == 1
    assert read_folder(tmp_path / "run").result()["ranks"]["world_size"] == 2
