"""The command line of deployments: `callboard up | join | down | …` runs this program.

`up` starts and supervises a deployment in the foreground. With `--detach` it does so in the
background, and returns when the deployment is ready. `join` does the same for this machine's part
of a cluster. `upgrade` replaces the running processes by those of another release, or of the same
release with other settings, without downtime. `rotate-deployment-key` does so with another key.
`down` ends all processes of the deployment on this machine, also those that a killed supervisor
left behind. Exit status: 0 done, 1 failed, 2 wrong usage, 3 refused because it is up already.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from core.settings import SettingsError
from ledger.embedded.server import EmbeddedPostgresError, check_server_user
from serve_app.settings_from_env import LoadedSettings, child_environment, load_settings
from serve_app.supervisor.deployment import (
    BLOCK_SIZE,
    PORTS_TO,
    AlreadyRunning,
    DeploymentError,
    already_running,
)
from serve_app.supervisor.machines.preflight import split_address
from serve_app.supervisor.processes import saying, wait_end
from serve_app.supervisor.ray_node import Place
from serve_app.supervisor.releases.key_rotation import rotate
from serve_app.supervisor.releases.upgrade_start import upgrade
from serve_app.supervisor.supervisor import (
    CLUSTER_PORTS_FROM,
    ROOT,
    StartFailed,
    Supervisor,
    clear_leftovers,
)

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
_STOP_PATIENCE_S = 40.0


class StopRequested(BaseException):
    """A signal has requested the end of this process.

    It is a BaseException, so that no `except Exception` catches it.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    arguments = _parser().parse_args(argv)
    flags = {name: getattr(arguments, name, None) for name in ("home", "port", "host", "region")}
    try:
        loaded = load_settings(flags)
    except SettingsError as defect:
        print(f"callboard: {defect}", file=sys.stderr)
        return USAGE
    if arguments.verb == "down":
        return _down(loaded, arguments.output)
    if arguments.verb == "settings":
        return _settings(loaded, arguments.output)
    if arguments.verb == "upgrade":
        return upgrade(loaded, arguments.to)
    if arguments.verb == "rotate-deployment-key":
        return rotate(loaded, is_end=arguments.end, is_forced=arguments.force)
    if not loaded.settings.database_url:
        try:
            check_server_user(loaded.deployment.run_folder)
        except EmbeddedPostgresError as defect:
            print(f"callboard: {defect}", file=sys.stderr)
            return FAILED
    if arguments.detach:
        words = argv if argv is not None else sys.argv[1:]
        return _up_detached(loaded, words, getattr(arguments, "output", "text"))
    supervisor: Callable[[Callable[[str], None]], Supervisor] = partial(Supervisor, loaded)
    if arguments.verb == "join":
        try:
            place, loaded = _place(arguments), load_settings(flags | _cluster_defaults(loaded))
        except DeploymentError as refusal:
            print(f"callboard: {refusal}", file=sys.stderr)
            return USAGE
        supervisor = partial(Supervisor, loaded, place=place, ports_from=arguments.ports)
    return _up(supervisor, loaded.deployment.logs / "supervisor.log", arguments.ready_to)


def _place(arguments: argparse.Namespace) -> Place:
    """Return this machine's place in the cluster, from the arguments of `join`.

    Raises:
        DeploymentError: the head's address is malformed.
    """
    if arguments.as_head:
        return Place(arguments.node_address, is_cluster=True)
    head = arguments.head if ":" in arguments.head else f"{arguments.head}:{arguments.ports}"
    split_address(head)
    return Place(arguments.node_address, head, is_cluster=True)


def _cluster_defaults(loaded: LoadedSettings) -> dict[str, str]:
    """Return the settings whose defaults differ in a cluster, unless they are set."""
    # `egress_allow` is empty: only a deployment on one machine allows agents on loopback.
    defaults = {"egress_allow": "", "host": "0.0.0.0", "machines_max": "64"}
    return {name: text for name, text in defaults.items() if loaded.sources[name] == "default"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="callboard", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a deployment")
    join = verbs.add_parser("join", help="start this machine's part of a cluster")
    down = verbs.add_parser("down", help="end a deployment, or this machine's part of a cluster")
    settings = verbs.add_parser("settings", help="print all settings with their sources")
    roll = verbs.add_parser("upgrade", help="upgrade a running deployment to another release")
    roll.add_argument(
        "--to", type=Path, help="the release's folder; default: the release of this command"
    )
    turn = verbs.add_parser("rotate-deployment-key", help="rotate the deployment key")
    turn.add_argument("--end", action="store_true", help="end the previous key")
    turn.add_argument(
        "--force", action="store_true", help="also while data can be read only with it"
    )
    for verb in (up, join, down, settings, roll, turn):
        verb.add_argument("--home", help="the deployment's folder")
    for verb in (up, join, settings):
        verb.add_argument("--port", help="port of the API")
        verb.add_argument("--host", help="address that the API listens on")
        verb.add_argument("--region", help="region, for federation")
    for verb in (up, join):
        verb.add_argument(
            "--detach", action="store_true", help="return when the deployment is ready"
        )
        verb.add_argument("--ready-to", type=int, help=argparse.SUPPRESS)
    role = join.add_mutually_exclusive_group(required=True)
    role.add_argument("--head", help="the head's address, host or host:port")
    role.add_argument("--as-head", action="store_true", help="start the head of the cluster")
    join.add_argument("--node-address", required=True, help="this machine's own address")
    join.add_argument(
        "--ports", type=_first_port, default=CLUSTER_PORTS_FROM,
        help=f"first of {BLOCK_SIZE} free ports, the same on all machines",
    )  # fmt: skip
    for verb in (up, down, settings):
        verb.add_argument(
            "--output", choices=("text", "json"), default="text",
            help="output format; of `up` with --detach only",
        )  # fmt: skip
    return parser


def _first_port(text: str) -> int:
    port = int(text)
    if not 1_024 <= port <= PORTS_TO:
        raise argparse.ArgumentTypeError(f"got {text}, expected 1024 to {PORTS_TO}")
    return port


# --- up, join -------------------------------------------------------------------------------------


def _up(
    build_supervisor: Callable[[Callable[[str], None]], Supervisor], log: Path, ready_to: int | None
) -> int:
    """Start and supervise the deployment until a signal ends it; return the exit status.

    Args:
        build_supervisor: creates the supervisor. Its argument is a function that prints a progress
        line.
        log: the file for the output of a process in the background.
        ready_to: the writing end of a pipe from which the waiting `up --detach` reads; None in the
            foreground.
    """
    signal.signal(signal.SIGTERM, _request_stop)
    signal.signal(signal.SIGINT, _request_stop)
    # In the background, this process must survive the end of its terminal (SIGHUP) and the end of
    # the process that reads its output (SIGPIPE).
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    say = saying()
    supervisor = build_supervisor(say)
    status = DONE
    try:
        supervisor.start()
        _tell(supervisor.ready)
        if ready_to is not None:
            _go_to_background(log, ready_to)
        supervisor.watch()
    except StopRequested:
        say("ending")
    except AlreadyRunning as refusal:
        print(f"callboard: {refusal}", file=sys.stderr)
        return REFUSED
    except (DeploymentError, EmbeddedPostgresError, StartFailed) as failure:
        _tell(f"callboard: {failure}", sys.stderr)
        status = FAILED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        supervisor.stop()
    return status


def _tell(text: str, stream: TextIO | None = None) -> None:
    with suppress(BrokenPipeError):  # the reader has ended, but the deployment continues
        print(text, flush=True, file=stream)


def _go_to_background(log: Path, ready_to: int) -> None:
    """Redirect the output to the log, and tell the waiting `up --detach` that it may end."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    with suppress(BrokenPipeError):  # `up --detach` was interrupted, but the deployment continues
        os.write(ready_to, b".")
    os.close(ready_to)


def _request_stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StopRequested


def _up_detached(loaded: LoadedSettings, argv: Sequence[str], output: str) -> int:
    """Start this command in a background session; return when it is ready or has ended.

    If the output is JSON, the progress goes to standard error.
    """
    holder = loaded.deployment.holder()
    if holder is not None:
        print(f"callboard: {already_running(loaded.settings.home, holder)}", file=sys.stderr)
        return REFUSED
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "serve_app.supervisor"]
    command += [word for word in argv if word != "--detach"] + ["--ready-to", str(writing)]
    command += ["--home", loaded.settings.home]  # absolute; the caller's may be relative
    supervisor = subprocess.Popen(
        command, cwd=ROOT, env=child_environment({}), stdin=subprocess.DEVNULL,
        stdout=sys.stderr if output == "json" else None, start_new_session=True,
        pass_fds=(writing,),
    )  # fmt: skip
    os.close(writing)
    try:
        if os.read(reading, 1):
            if output == "json":
                url = loaded.deployment.url_file.read_text(encoding="utf-8").strip()
                print(json.dumps({"home": loaded.settings.home, "url": url}, indent=2))
            return DONE
    except KeyboardInterrupt:
        supervisor.terminate()
    return supervisor.wait() or FAILED


# --- down, settings -------------------------------------------------------------------------------


def _down(loaded: LoadedSettings, output: str) -> int:
    deployment = loaded.deployment
    say = partial(print, file=sys.stderr) if output == "json" else print
    holder = deployment.holder()
    if holder is not None:
        try:
            os.kill(holder, signal.SIGTERM)
            if not wait_end([holder], _STOP_PATIENCE_S):
                print(f"process {holder} does not end by itself; forcing it", file=sys.stderr)
                os.kill(holder, signal.SIGKILL)
                wait_end([holder], _STOP_PATIENCE_S)
        except ProcessLookupError:
            pass  # the supervisor ended in the meantime
    if deployment.home.exists():
        clear_leftovers(deployment, say)
        shutil.rmtree(deployment.gcs_folder, ignore_errors=True)
        deployment.url_file.unlink(missing_ok=True)
    say(f"callboard in {deployment.home} is down")
    if output == "json":
        print(json.dumps({"home": loaded.settings.home, "status": "down"}, indent=2))
    return DONE


def _settings(loaded: LoadedSettings, output: str) -> int:
    rows = loaded.rows()
    if output == "json":
        shown = {name: {"value": value, "source": source} for name, value, source in rows}
        print(json.dumps(shown, indent=2))
        return DONE
    width = max(len(name) for name, _, _ in rows)
    for name, value, source in rows:
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        print(f"{name:<{width}}  {text:<34}  {source}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
