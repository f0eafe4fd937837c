"""The runs of a grid on a Ray cluster, as an alternative to the local pool of ``workers``.

Ray starts a run where there is room, and starts it again elsewhere if its worker is lost. A restarted run goes on from
the last state in its folder. So the folder of the grid must lie on a file system that all nodes share, or at an address
that they can reach (``remote_folder``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradsieve.arguments import argument
from gradsieve.errors import GradsieveError, InputError, MissingExtraError
from gradsieve.experiments.workers import Outcome, Task, attempt

RETRIES = 10  # restarts of a run whose worker is lost
GOODBYE = 120.0  # seconds that runs get to save when they are stopped
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # variables from which Ray reads a cluster's token
ADDRESS = re.compile(r"ray(://[^/\s:]+:\d+)?")


class Cluster(NamedTuple):
    """A Ray cluster, and the GPUs that a run needs on it."""

    address: str | None = None  # None: the cluster of RAY_ADDRESS, or a new one on this machine alone
    gpus_per_run: float | None = None  # None: 1 if the cluster has GPUs, else 0


def read_cluster(text: str | None, gpus_per_run: float | None = None) -> Cluster | None:
    """The cluster that ``ray`` or ``ray://host:port`` stands for; None if ``text`` is None."""
    if text is None:
        if gpus_per_run is not None:
            raise InputError(
                f"{argument('gpus_per_run')} is for the runs of a cluster, and {argument('cluster')} names none: name "
                f"one, or leave {argument('gpus_per_run')} out."
            )
        return None
    if not ADDRESS.fullmatch(text):
        raise InputError(f"{argument('cluster')} is {text!r}, but must be ray, or ray://host:port.")
    gpus = gpus_per_run
    if gpus is not None and not (0 <= gpus <= 1 or (gpus > 0 and gpus == int(gpus))):
        name = argument("gpus_per_run")
        raise InputError(f"{name} is {gpus:g}, but must be a share of one GPU or a whole number of them.")
    return Cluster(None if text == "ray" else text, gpus)


def run_on_ray(
    tasks: Sequence[Task],
    cluster: Cluster,
    count: int | None,
    started: Callable[[int], None],
    ended: Callable[[int, Outcome], None],
) -> None:
    """Hand out tasks by number, ``count`` at a time or as many as fit; ``ended`` may raise to stop them all."""
    ray = connect(cluster.address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        given = cluster.gpus_per_run
        gpus = given if given is not None else float(any(node.get("GPU", 0) > 0 for node in nodes))
        fitting = check_room(nodes, gpus)
        room = count or fitting
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(attempt)
        waiting, at_work = list(range(len(tasks)))[::-1], {}
        try:
            while waiting or at_work:
                while waiting and len(at_work) < room:
                    number = waiting.pop()
                    at_work[remote.remote(tasks[number]._replace(path=tasks[number].path.absolute()))] = number
                    started(number)
                for done in ray.wait(list(at_work))[0]:
                    ended(at_work.pop(done), outcome_of(ray, done))
        finally:
            dismiss(ray, list(at_work))
    finally:
        ray.shutdown()


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster. A new local one does not send usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if any(os.environ.get(name) for name in TOKENS):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # without it, Ray's client ignores the token
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "A grid on a cluster") from error
    if ray.is_initialized():
        raise GradsieveError("This process is connected to Ray already. Call ray.shutdown() first.")
    # Without "local" Ray would try the last cluster started on this machine, even a dead one.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    errors = (ConnectionError, RuntimeError, ValueError, TimeoutError, RayError)
    try:
        ray.init(address=address, include_dashboard=False if address == "local" else None, log_to_driver=False)
    except errors as error:
        lines = str(error).strip().splitlines()
        reason = (lines[-1] if lines[0].endswith(":") else lines[0]).split(". ")[0].rstrip(".")  # last line of a trace
        raise InputError(
            f"No Ray cluster answers at {address} ({reason}). See that it runs, and that the port is the one of Ray's "
            "client (ray start --head --ray-client-server-port). Where the cluster asks for a token, which looks the "
            "same from here, set RAY_AUTH_TOKEN to it, or RAY_AUTH_TOKEN_PATH to a file that holds it."
        ) from error
    return ray


def check_room(nodes: Sequence[dict[str, float]], gpus: float) -> int:
    """How many runs fit at a time; refused if none does. A run lies on one node: Ray would wait forever for another."""
    fitting = sum(runs_on(node, gpus) for node in nodes)
    if fitting:
        return fitting
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    if gpus > most:
        raise InputError(
            f"A run needs {gpus:g} GPUs, but the cluster has no node with more than {most:g}. Give another "
            f"{argument('gpus_per_run')}."
        )
    raise InputError(
        f"A run needs a CPU and {gpus:g} GPUs on one node, but no node of the cluster has both. Start its nodes with "
        f"CPUs (ray start --num-cpus), or give another {argument('gpus_per_run')}."
    )


def runs_on(node: dict[str, float], gpus: float) -> int:
    """How many runs fit on a node at a time, each with one CPU and its GPUs, or its share of one GPU."""
    by_cpu, has = int(node.get("CPU", 0)), node.get("GPU", 0)
    if not gpus:
        return by_cpu
    return min(by_cpu, int(has) * int(1 / gpus) if gpus < 1 else int(has // gpus))


def outcome_of(ray: Any, reference: Any) -> Outcome:
    """How a run ended; it counts as crashed once Ray has given up restarting it."""
    try:
        return ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return Outcome("stopped", "was cancelled")
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
        reason = str(error).strip().splitlines()[0]
        return Outcome("crash", f"Its worker was lost {RETRIES + 1} times ({reason})")
    except ray.exceptions.RayError as error:
        return Outcome("crash", str(error))


def dismiss(ray: Any, at_work: list[Any]) -> None:
    """Stop the remaining runs, as Ctrl-C does, and give them time to save."""
    for reference in at_work:
        ray.cancel(reference, force=False)
    if at_work:
        ray.wait(at_work, num_returns=len(at_work), timeout=GOODBYE)
