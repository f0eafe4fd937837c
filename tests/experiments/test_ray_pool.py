"""A grid on a real Ray cluster of this machine: workers lost on the way, an order to stop, and what is refused."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from gradsieve.errors import GradsieveError, InputError, RunFolderError
from gradsieve.experiments import ray_pool, reproduce
from gradsieve.experiments.grid import Scope, cell_path
from gradsieve.experiments.ray_pool import Cluster, read_cluster
from gradsieve.experiments.watch import Watch
from gradsieve.experiments.workers import Outcome
from gradsieve.training.folder import read_folder
from gradsieve.training.loop import train

SCOPE = Scope(
    data="digits",
    rows=("sym-40",),
    methods=("spl", "prl-l"),
    seeds=(1,),
    epochs=30,
    model_options={"hidden": [8]},
    device="cpu",
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def begun(out):
    """How many runs have recorded an epoch and are not finished."""
    return sum(not (path.parent / "result.json").exists() for path in out.rglob("metrics.jsonl"))


def workers_at_work():
    """The processes in which Ray runs ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::attempt"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


class Counting(Watch):
    """What was told of each run."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.told = []

    def finished(self, cell, result, reason=""):
        self.told.append(cell.folder)
        super().finished(cell, result, reason)


def test_a_grid_that_loses_two_workers_finishes_each_run_once(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    out, killed, watches = tmp_path / "grid", [], []

    def make_watch(show):
        return lambda *each: watches.append(Counting(*each)) or watches[-1]

    monkeypatch.setattr(reproduce, "make_watch", make_watch)

    def kill_two():
        while len(killed) < 2:
            time.sleep(0.05)
            if begun(out):
                for process in [each for each in workers_at_work() if each not in killed][: 2 - len(killed)]:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    killer = threading.Thread(target=kill_two, daemon=True)
    killer.start()
    records = reproduce.reproduce("table2", SCOPE, out, cluster=Cluster()).records["table2"]
    killer.join(5)
    assert len(set(killed)) == 2
    cells = reproduce.plan("table2", SCOPE, out)
    assert sorted(watches[0].told) == sorted(cell.folder for cell in cells)
    assert [record["method"] for record in records] == ["spl", "prl-l"]
    alone = train(cells[1].run)
    result = read_folder(cell_path(out, cells[1])).result()
    assert result["last"] == alone.last  # resumed by another worker: the same bits
    assert not list(out.rglob("state"))  # finished, and nothing is left to resume
    # The same call again finds all of it finished: nobody connects to anything.
    monkeypatch.setattr(ray_pool, "connect", None)
    assert reproduce.reproduce("table2", SCOPE, out, cluster=Cluster()).records["table2"] == records


class NoRay:
    """As much of Ray as a pool needs, in this process."""

    class exceptions:  # noqa: N801
        TaskCancelledError = NodeDiedError = OutOfMemoryError = type("Unused", (Exception,), {})
        WorkerCrashedError = type("WorkerCrashedError", (Exception,), {})
        RayError = Exception

    def __init__(self, nodes, answer):
        self.resources, self.answer, self.asked, self.cancelled = nodes, answer, {}, []

    def nodes(self):
        lost = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 64.0}}
        return [lost, *({"Alive": True, "Resources": each} for each in self.resources)]

    def remote(self, **options):
        self.asked |= options

        class Remote:
            remote = staticmethod(lambda task: str(task.path))

        return lambda function: Remote

    def wait(self, references, num_returns=1, timeout=None):
        return references[:1], references[1:]

    def get(self, reference):
        return self.answer(reference)

    def cancel(self, reference, force):
        self.cancelled.append(reference)

    def shutdown(self):
        self.asked["shut down"] = True


def pool(monkeypatch, *nodes, answer=lambda task: Outcome("done")):
    fake = NoRay(nodes, answer)
    monkeypatch.setattr(ray_pool, "connect", lambda address: fake)
    return fake


def test_a_worker_that_is_lost_again_and_again_is_an_error_that_keeps_what_is_finished(tmp_path, monkeypatch):
    def lost(task):
        raise NoRay.exceptions.WorkerCrashedError("The worker died unexpectedly")

    fake = pool(monkeypatch, {"CPU": 2}, answer=lost)
    with pytest.raises(GradsieveError, match=r"Its worker was lost 11 times .*try again, and it goes on"):
        reproduce.reproduce("table2", SCOPE, tmp_path, cluster=Cluster())
    assert len(fake.cancelled) == 1  # the other run is told to stop
    assert fake.asked["shut down"]


def test_a_folder_that_the_nodes_do_not_share_is_noticed(tmp_path, monkeypatch):
    pool(monkeypatch, {"CPU": 2})
    with pytest.raises(GradsieveError, match="a file system that all nodes of the cluster share"):
        reproduce.reproduce("table2", SCOPE, tmp_path, cluster=Cluster())


@pytest.mark.parametrize(
    ("nodes", "cluster", "expected"),
    [
        ([{"CPU": 4.0}], Cluster(), (0, 4)),
        ([{"CPU": 64.0, "GPU": 8.0}], Cluster(), (1, 8)),
        ([{"CPU": 64.0, "GPU": 8.0}], Cluster(gpus_per_run=0.25), (0.25, 32)),
        ([{"CPU": 64.0, "GPU": 8.0}], Cluster(gpus_per_run=0.3), (0.3, 24)),  # a share is a share of one GPU
        ([{"CPU": 16.0, "GPU": 8.0}], Cluster(gpus_per_run=0.25), (0.25, 16)),
        ([{"CPU": 16.0, "GPU": 8.0}], Cluster(gpus_per_run=0), (0, 16)),
        ([{"CPU": 8.0, "GPU": 3.0}, {"CPU": 8.0, "GPU": 3.0}, {"CPU": 8.0}], Cluster(gpus_per_run=2), (2, 2)),
        ([{"GPU": 8.0}, {"CPU": 2.0, "GPU": 8.0}], Cluster(), (1, 2)),
    ],
)
def test_so_many_runs_are_at_work_as_fit(monkeypatch, tmp_path, nodes, cluster, expected):
    fake = pool(monkeypatch, *nodes)
    cell = reproduce.plan("table2", SCOPE, tmp_path)[0]
    started, most, ended = [], [], []
    tasks = [reproduce.Task(cell.run, tmp_path / str(number)) for number in range(100)]
    ray_pool.run_on_ray(
        tasks,
        cluster,
        None,
        lambda number: (started.append(number), most.append(len(started) - len(ended))),
        lambda number, outcome: ended.append(number),
    )
    assert ended == list(range(100))
    assert (fake.asked["num_gpus"], max(most)) == expected
    assert fake.asked["max_retries"] == ray_pool.RETRIES


@pytest.mark.parametrize("text", ["dask", "ray:", "ray://host", "ray://host:port", "http://host:1", ""])
def test_addresses_that_are_none(text):
    with pytest.raises(InputError, match="must be ray, or ray://host:port"):
        read_cluster(text)


def test_what_a_run_may_ask_for(monkeypatch):
    assert read_cluster("ray") == Cluster(None, None)
    assert read_cluster("ray://head:10001", 0.5) == Cluster("ray://head:10001", 0.5)
    for gpus in (-0.5, 1.5):
        with pytest.raises(InputError, match="gpus_per_run is"):
            read_cluster("ray", gpus)


@pytest.mark.parametrize(
    ("nodes", "cluster", "reason"),
    [
        ([{"CPU": 2.0}], Cluster(gpus_per_run=1), "A run needs 1 GPUs, but the cluster has no node with more than 0"),
        ([{"CPU": 8.0, "GPU": 4.0}] * 2, Cluster(gpus_per_run=8), "needs 8 GPUs, but .* no node with more than 4"),
        ([{"CPU": 8.0}, {"GPU": 4.0}], Cluster(), "a CPU and 1 GPUs on one node, but no node of the cluster has both"),
        ([], Cluster(), "a CPU and 0 GPUs on one node"),
    ],
)
def test_a_run_that_fits_no_node_is_refused_since_ray_would_wait_forever(monkeypatch, nodes, cluster, reason):
    fake = pool(monkeypatch, *nodes)
    with pytest.raises(InputError, match=reason):
        ray_pool.run_on_ray([], cluster, None, lambda number: None, lambda *each: None)
    assert fake.asked["shut down"]


def test_a_cluster_that_does_not_answer_is_one_error(monkeypatch):
    ray = pytest.importorskip("ray")

    def init(**options):
        raise ConnectionError("ray client connection timeout\nand more")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(InputError, match=r"No Ray cluster answers at ray://head:1 \(ray client connection timeout\)"):
        ray_pool.connect("ray://head:1")


@pytest.fixture
def head(tmp_path):
    """A head of a cluster that asks for a token: the address of its client's port, and what a user has to set."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    own = {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": "0123456789" * 4}
    environment = {name: value for name, value in (os.environ | own).items() if name != "RAY_ADDRESS"}
    # The head forks a server for its client. Handlers of gRPC bring that down now and then, where they are not off.
    settings = {**environment, "RAY_AUTH_MODE": "token", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    options = [
        f"--port={ports[0]}",
        f"--ray-client-server-port={ports[1]}",
        "--num-cpus=1",
        "--include-dashboard=false",
    ]
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", *options]
    process = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL)
    try:
        yield f"ray://127.0.0.1:{ports[1]}", environment
    finally:
        process.terminate()  # it ends what it has started
        process.wait(30)


def test_a_cluster_elsewhere_that_asks_for_a_token(head, tmp_path):
    address, environment = head
    command = [sys.executable, "-m", "gradsieve", "reproduce", "table2", "--data", "digits", "--rows", "sym-40"]
    command += ["--methods", "spl", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--cluster", address]
    command += ["--out", str(tmp_path / "grid")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1/1] digits-sym-40 spl seed 1: accuracy" in done.stdout
    assert len(list(tmp_path.glob("grid/runs/*/*/result.json"))) == 1
    # Without one there is one line, and the way out.
    environment = {**environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}
    done = subprocess.run([*command, "--rows", "pf-40"], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "set RAY_AUTH_TOKEN to it, or RAY_AUTH_TOKEN_PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_refused(tmp_path):
    with pytest.raises(InputError, match="measures time"):
        reproduce.reproduce("table4", SCOPE, tmp_path, cluster=Cluster())
    with pytest.raises(RunFolderError, match="is an address"):
        reproduce.dry_run("table2", SCOPE, Path("gs://bucket/grid"))


def test_the_dry_run_of_a_cluster(tmp_path, gradsieve):
    command = ("reproduce", "table2", "--data", "digits", "--rows", "sym-40", "--cluster", "ray", "--dry-run", "--json")
    assert len(json.loads(gradsieve(*command, "--out", tmp_path / "grid").out)["runs"]) > 1
