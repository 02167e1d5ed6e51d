"""What a daemon under soak takes, looked at once a second from outside, and how long one well-behaved client waits.

A sample is a flat mapping: times are seconds since the first, memory is in MiB, latencies are in milliseconds. What
cannot be had is None. The kernel's figures are those of /proc; those of /metrics are the daemon's own word.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak import accidents
from soak.calling import metrics
from support.hearthd import Peer, submission

from hearth.audit.files import rotated_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from soak.deployment import Deployment

SESSION_INVALID = -32000
PROBES = 20
"""A second."""
_CLOCK = 100
"""Ticks of /proc/PID/stat and /proc/stat a second, fixed in the kernel's interface."""
QUIET = 0.3
"""Processors that others may use in a second whose latencies are judged."""


class Steady:
    """A client of the run's own, with a session that it opens again if it was silent for too long: others were slow."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        self._peer = Peer(deployment.daemon.socket)
        self._name = name
        self._session = self._open()

    def _open(self) -> str:
        return self._peer.open(client_name=f"soak {self._name}", on_disconnect="close")

    def run(self, tool: str, **args: Any) -> tuple[str, Any]:
        """Run one step that must succeed; returns its task, and its result."""
        answer = self._peer.call("task.submit", submission(self._session, (tool, args)))
        if answer.get("error", {}).get("code") == SESSION_INVALID:
            self._session = self._open()
            answer = self._peer.call("task.submit", submission(self._session, (tool, args)))
        assert "result" in answer, answer
        task = answer["result"]["task_id"]
        step = self._peer.wait(self._session, task)["steps"][0]
        assert step["status"] == "SUCCESS", step
        return task, step["result"]

    def close(self) -> None:
        """Hang up."""
        self._peer.close()


class Probe(threading.Thread):
    """One client that reads a GPIO line, again and again, and notes how long each of its tasks took."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(name="probe", daemon=True)
        self._client = Steady(deployment, "probe")
        self._over = threading.Event()
        self._latencies: list[float] = []
        self.error: BaseException | None = None
        self.tasks: list[str] = []

    def run(self) -> None:
        """See above."""
        try:
            while not self._over.wait(1 / PROBES):
                begun = time.perf_counter()
                task, _ = self._client.run("gpio.get", line=4)
                self._latencies.append((time.perf_counter() - begun) * 1000)
                self.tasks.append(task)
        except BaseException as error:  # noqa: BLE001  raised again by `end`
            self.error = error

    def taken(self) -> list[float]:
        """The latencies since this was last asked, least first."""
        found, self._latencies = self._latencies, []
        return sorted(found)

    def end(self) -> None:
        """No more. Raises what ended it before."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Hang up, whatever it is at."""
        self._over.set()
        self._client.close()


class Meter:
    """Takes samples. `plant` is what a daemon is asked to hoard each second, for a run that must fail."""

    def __init__(self, deployment: Deployment, plant: Mapping[str, float] | None = None) -> None:
        self._deployment = deployment
        self.ours: list[int] = []
        """Processes that belong to the run beside the daemon and this one."""
        self._pid = deployment.daemon.pid
        self._plant = plant
        self._owed = dict.fromkeys(plant or (), 0.0)
        self._client = Steady(deployment, "meter")
        self._begun = time.monotonic()
        self._before: dict[str, Any] = {}
        self.samples: list[dict[str, Any]] = []

    def at_rest(self) -> dict[str, Any]:
        """What there is while nobody else is there: a sample without latencies."""
        return self._kernel() | self._own_word(collect=True)

    def sample(self, latencies: list[float]) -> dict[str, Any]:
        """One more."""
        found: dict[str, Any] = {"t": time.monotonic() - self._begun}
        due = self._due(found["t"] - self._before.get("t", 0.0))
        if due:
            self._run(accidents.HOARD, **due)
        found |= self._kernel() | self._own_word() | self._times(latencies) | self._log()
        found["machine"], found["load"] = machine_seconds(), sum(map(cpu_seconds, [os.getpid(), *self.ours]))
        found |= self._rates(found)
        self._before = found
        self.samples.append(found)
        return found

    def unwell(self) -> list[str]:
        """What is not as it should be in an otherwise idle daemon: buses, the log, and what was driven."""
        health = self._run("hw.board")["health"]
        found = [] if health["ok"] else [f"the daemon is not well: {health}"]
        found += [
            f"bus {bus} of an idle daemon is not idle: {state}"
            for bus, state in health["buses"].items()
            if state["state"] != "ready" or state["queued"] or state.get("leased")
        ]
        driven = [line for line in (27, 5) if self._run("gpio.get", line=line)["value"]]
        return [*found, *(f"GPIO line {line} was left driven when its session ended" for line in driven)]

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _due(self, seconds: float) -> dict[str, int]:
        """What is to be hoarded after so many seconds, in whole numbers; the rest is owed."""
        due = {}
        for name, amount in (self._plant or {}).items():
            self._owed[name] += amount * seconds
            due[name] = int(self._owed[name])
            self._owed[name] -= due[name]
        return {name: amount for name, amount in due.items() if amount}

    def _run(self, tool: str, **args: Any) -> Any:
        return self._client.run(tool, **args)[1]

    def _kernel(self) -> dict[str, Any]:
        process = Path(f"/proc/{self._pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        rolled = dict(line.split(":", 1) for line in (process / "smaps_rollup").read_text().splitlines()[1:])
        return {
            "rss": int(status["VmRSS"].split()[0]) / 1024,
            "private": (int(rolled["Anonymous"].split()[0]) + int(rolled["Swap"].split()[0])) / 1024,
            "threads": int(status["Threads"]),
            "descriptors": len(os.listdir(process / "fd")),
            "cpu": cpu_seconds(self._pid),
        }

    def _own_word(self, *, collect: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = dict(self._run(accidents.LOOK, collect=collect))
        address = self._deployment.daemon.listening.get("http")
        if address is None:
            return found
        told = metrics(address)
        return found | {
            "sessions": told["hearth_sessions"],
            "tasks": told["hearth_tasks_live"],
            "ended": sum(figure for name, figure in told.items() if name.startswith("hearth_tasks_total{")),
            "lag": told["hearth_audit_lag_records"],
            "records": told["hearth_audit_seq"],
            "connections": sum(figure for name, figure in told.items() if name.startswith("hearth_connections{")),
        }

    @staticmethod
    def _times(latencies: list[float]) -> dict[str, Any]:
        if not latencies:
            return {"probes": 0}
        last = len(latencies) - 1
        middle, high = latencies[last // 2], latencies[round(last * 0.99)]
        return {"probes": len(latencies), "p50": middle, "p99": high, "max": latencies[-1]}

    def _log(self) -> dict[str, Any]:
        files = [*rotated_files(self._deployment.daemon.audit), self._deployment.daemon.audit]
        return {"log": sum(file.stat().st_size for file in files) / (1 << 20), "files": len(files)}

    def _rates(self, now: dict[str, Any]) -> dict[str, Any]:
        before = self._before
        # A slower machine has more connections at a time: what is judged is what is open beside them.
        held = {"held": now["descriptors"] - now.get("connections", 0)}
        if not before:
            return held
        seconds = now["t"] - before["t"]
        found: dict[str, Any] = held | {"busy": (now["cpu"] - before["cpu"]) / seconds}
        used = sum(now[name] - before[name] for name in ("cpu", "load"))
        found["others"] = max(0.0, (now["machine"] - before["machine"] - used) / seconds)
        ended = now.get("ended", 0) - before.get("ended", 0)
        if ended > 0:
            found |= {"rate": ended / seconds, "work": (now["cpu"] - before["cpu"]) * 1000 / ended}
        if found["others"] <= QUIET:
            # What others disturb says nothing of the daemon: it is drawn, and not judged.
            found |= {f"quiet_{name}": value for name in ("p50", "p99") if (value := now.get(name)) is not None}
            found |= {"quiet_work": found["work"]} if "work" in found else {}
        return found


def cpu_seconds(pid: int) -> float:
    """What a process has used, in user and kernel mode; 0 if it is gone."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(times[11]) + int(times[12])) / _CLOCK


def machine_seconds() -> float:
    """What all processors have been busy, or kept waiting by their host, since the machine started."""
    figures = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, figures)
    return (user + nice + system + irq + softirq + steal) / _CLOCK
