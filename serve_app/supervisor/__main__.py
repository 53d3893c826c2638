"""The command line of a local deployment: `python -m serve_app.supervisor up | down | settings`.

`up` keeps a deployment in the foreground, or with `--detach` in the background, and returns when it
is ready. `down` ends every process of it, leftovers of a killed `up` included. Exit status: 0 done,
1 failed, 2 wrong usage, 3 refused because it is up already. design.md section 6.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from core.settings import SettingsError
from ledger.embedded.server import EmbeddedPostgresError
from serve_app.settings_from_env import LoadedSettings, child_environment, load_settings
from serve_app.supervisor.deployment import AlreadyRunning, DeploymentError
from serve_app.supervisor.keeper import ROOT, Keeper, StartFailed, clear_leftovers, last_lines
from serve_app.supervisor.processes import wait_end

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
_STOP_PATIENCE_S = 40.0
_READY, _PROGRESS, _FAILURE = "ready", "progress", "failure"


class StopRequested(BaseException):
    """A signal asked this process to end; not an error, so no `except Exception` may catch it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    arguments = _parser().parse_args(argv)
    flags = {name: getattr(arguments, name, None) for name in ("home", "port", "host", "region")}
    try:
        loaded = load_settings(flags)
    except SettingsError as defect:
        print(f"callboard: {defect}", file=sys.stderr)
        return USAGE
    if arguments.verb == "up":
        if arguments.detach:
            return _up_detached(loaded, argv if argv is not None else sys.argv[1:])
        return _up(loaded, _reporter(arguments.report_to))
    if arguments.verb == "down":
        return _down(loaded)
    return _settings(loaded, arguments.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serve_app.supervisor", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a deployment")
    down = verbs.add_parser("down", help="end a deployment")
    settings = verbs.add_parser("settings", help="print all settings with their sources")
    for verb in (up, down, settings):
        verb.add_argument("--home", help="the deployment's folder")
    for verb in (up, settings):
        verb.add_argument("--port", help="port of the API")
        verb.add_argument("--host", help="address that the API listens on")
        verb.add_argument("--region", help="region, for federation")
    up.add_argument("--detach", action="store_true", help="return when ready, run on")
    up.add_argument("--report-to", type=int, help=argparse.SUPPRESS)
    settings.add_argument("--output", choices=("text", "json"), default="text")
    return parser


# --- up -------------------------------------------------------------------------------------------


def _up(loaded: LoadedSettings, report: Callable[[str, str], None]) -> int:
    signal.signal(signal.SIGTERM, _request_stop)
    signal.signal(signal.SIGINT, _request_stop)
    # A process that reports to a detaching one outlives it, and with it the terminal.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    keeper = Keeper(loaded, lambda line: report(_PROGRESS, line))
    status = DONE
    try:
        keeper.start()
        report(_READY, f"callboard is ready at {keeper.url}")
        keeper.watch()
    except StopRequested:
        report(_PROGRESS, "ending")
    except AlreadyRunning as refusal:
        print(f"callboard: {refusal}; end it with: callboard down", file=sys.stderr)
        return REFUSED
    except (DeploymentError, EmbeddedPostgresError, StartFailed) as failure:
        report(_FAILURE, f"callboard: {failure}")
        status = FAILED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        keeper.stop()
    return status


def _request_stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StopRequested


def _reporter(report_to: int | None) -> Callable[[str, str], None]:
    """Return what tells people and, in the background, the waiting `up --detach` as well."""
    began = time.monotonic()

    def report(kind: str, line: str) -> None:
        text = f"[{time.monotonic() - began:5.1f} s] {line}" if kind == _PROGRESS else line
        print(text, flush=True, file=sys.stderr if kind == _FAILURE else sys.stdout)
        if report_to is not None:
            try:
                os.write(report_to, f"{json.dumps([kind, text])}\n".encode())
            except BrokenPipeError:
                pass  # it has seen enough, or was interrupted; the deployment runs on

    return report


def _up_detached(loaded: LoadedSettings, argv: Sequence[str]) -> int:
    """Start `up` in a session of its own and pass its progress on until it is ready."""
    holder = loaded.deployment.holder()
    if holder is not None:
        print(f"callboard: {loaded.settings.home} is already up (process {holder});"
              " end it with: callboard down", file=sys.stderr)  # fmt: skip
        return REFUSED
    loaded.deployment.logs.mkdir(parents=True, exist_ok=True)
    log = loaded.deployment.logs / "supervisor.log"
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "serve_app.supervisor"]
    command += [word for word in argv if word != "--detach"] + ["--report-to", str(writing)]
    command += ["--home", loaded.settings.home]  # the given one may be relative
    with log.open("ab") as file:
        keeper = subprocess.Popen(
            command, cwd=ROOT, env=child_environment({}), stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, start_new_session=True, pass_fds=(writing,),
        )  # fmt: skip
    os.close(writing)
    is_explained = False
    try:
        with os.fdopen(reading, encoding="utf-8") as reports:
            for report in reports:
                kind, text = json.loads(report)
                print(text, flush=True, file=sys.stderr if kind == _FAILURE else sys.stdout)
                if kind == _READY:
                    return DONE
                is_explained = is_explained or kind == _FAILURE
    except KeyboardInterrupt:
        keeper.terminate()
    status = keeper.wait()
    if not is_explained:
        print(last_lines(log), file=sys.stderr)
    return status or FAILED


# --- down, settings -------------------------------------------------------------------------------


def _down(loaded: LoadedSettings) -> int:
    deployment = loaded.deployment
    holder = deployment.holder()
    if holder is not None:
        try:
            os.kill(holder, signal.SIGTERM)
            if not wait_end([holder], _STOP_PATIENCE_S):
                print(f"process {holder} does not end by itself; forcing it", file=sys.stderr)
                os.kill(holder, signal.SIGKILL)
                wait_end([holder], _STOP_PATIENCE_S)
        except ProcessLookupError:
            pass  # it ended in between
    if deployment.home.exists():
        clear_leftovers(deployment, print)
        deployment.url_file.unlink(missing_ok=True)
    print(f"callboard in {deployment.home} is down")
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
