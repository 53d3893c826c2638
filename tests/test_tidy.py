"""The house rules, run: layers, purity, sizes, cycles, names, and who may touch what.

Ruff keeps the length of lines (E501) and the docstrings of modules (D100, D104).

Each rule is a function from one parsed file (or all of them) to findings, and each has a snippet
below that it must refuse: a rule that cannot fail is not a rule. Rules: Style.md section 1.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("core", "ledger", "federation", "actors", "serve_app", "callboard")
BESIDE = ("tests", "bench", "examples", "scripts")
LINES_MAX, WRAPPER_LINES_MAX, FUNCTION_LINES_MAX = 700, 200, 70

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "core": ("core",),
    "ledger": ("ledger", "core"),
    "federation": ("federation", "core"),
    "actors": ("actors", "ledger", "federation", "core"),
    "serve_app": ("serve_app", "actors", "ledger", "federation", "core"),
    "callboard": ("callboard", "core.records", "core.trust", "core.jcs", "core.wording"),
}
# Inside packages, lowest first: a room imports itself and lower rows, never one in its own row.
# The room of a package's name is every module that stands in no folder, but for those named here.
ROWS: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (
        ("core",),
        ("schemas",),
        ("capabilities", "triggers"),
        ("planning", "records", "trust", "egress", "shards"),
        ("market", "peers", "subnets"),
        ("workflow",),
        ("settings",),
    ),
    "actors": (
        ("actors",),
        ("process", "shards"),
        ("transport",),
        ("values", "routing"),
        ("directory", "dispatch"),
        ("shards",),
        ("workflows",),
        ("engine",),
        ("cluster",),
        ("gateway",),
    ),
}
ROOMS = {
    package: {room: row for row, rooms in enumerate(rows) for room in rooms}
    for package, rows in ROWS.items()
}
ROOM_FILES_MAX = 12
IMPURE = {
    "time", "random", "secrets", "os", "logging", "structlog", "socket", "asyncio", "subprocess",
    "threading", "io", "pathlib", "shutil", "tempfile", "sys", "signal", "selectors",
    "multiprocessing", "concurrent", "urllib", "http", "ssl", "ray", "sqlalchemy", "psycopg",
    "aiohttp", "httpx", "requests", "uvloop", "fastapi", "starlette",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "print", "input"}
BANNED_WORDS = {
    "manager", "helper", "helpers", "util", "utils", "misc", "common", "data", "info",
    "processor", "handle2", "v2",
}  # fmt: skip
# Who may import what, by path prefix. Every other file of the packages may not.
RESERVED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ray": (
        ("ray",),
        (
            "actors/",
            "serve_app/app.py",
            "serve_app/supervisor/deploy.py",
            "serve_app/supervisor/releases/upgrade.py",
        ),
    ),
    "SQL": (("sqlalchemy", "psycopg", "alembic"), ("ledger/",)),
    "HTTP clients": (
        ("aiohttp", "httptools", "httpx", "requests", "urllib.request", "urllib3", "http.client"),
        (
            "federation/",
            "callboard/",
            "serve_app/supervisor/machines/api_health.py",
        ),
    ),
}
# Plain classes: they run, and are tested, without Ray.
WITHOUT_RAY = (
    "actors/engine/runner.py",
    "actors/transport/sockets.py",
    "actors/dispatch/dispatcher.py",
    "actors/transport/messages.py",
    "actors/ports.py",
)
ENVIRONMENT_READERS = ("serve_app/settings_from_env.py", "callboard/")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path from the root with forward slashes, its text, its tree.

    `nodes` and `imported` are what the rules look for in the tree, which is walked once.
    """

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imported: tuple[tuple[int, str], ...]

    @property
    def package(self) -> str:
        return self.path.split("/", 1)[0]


def parse(path: str, text: str) -> Source:
    tree = ast.parse(text, filename=path)
    nodes = tuple(ast.walk(tree))
    return Source(path, text, tree, nodes, tuple(imports(path, nodes)))


def sources(folders: tuple[str, ...]) -> list[Source]:
    return [
        parse(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
        for folder in folders
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]


def imports(path: str, nodes: tuple[ast.AST, ...]) -> Iterator[tuple[int, str]]:
    """Every imported module, wherever it stands: in functions and under TYPE_CHECKING too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = path.removesuffix(".py").split("/")[: -node.level]
                base = ".".join([*parts, base] if base else parts)
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def is_within(module: str, names: tuple[str, ...] | set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


# --- the rules ------------------------------------------------------------------------------------


def check_layers(source: Source) -> Iterator[str]:
    allowed = MAY_IMPORT.get(source.package)
    if allowed is None:
        return
    for line, module in source.imported:
        if module in PACKAGES and any(name.startswith(f"{module}.") for name in allowed):
            continue  # `from core import records`: judged by its second half
        if module.split(".", 1)[0] in PACKAGES and not is_within(module, allowed):
            yield f"{source.path}:{line}: {source.package} may not import {module}"


def room_of(module: str, package: str) -> str | None:
    """The room of a module of a package by its dotted name; None for any other module."""
    first, *rest = module.split(".")
    if first != package or not rest:
        return None
    if rest[0] in ROOMS[package]:
        return rest[0]
    return rest[0] if (ROOT / package / rest[0]).is_dir() else package


def check_rows(source: Source) -> Iterator[str]:
    package = source.package
    if package not in ROWS:
        return
    rows = ROOMS[package]
    room = room_of(source.path.removesuffix(".py").replace("/", "."), package)
    if room is None:
        return
    if room not in rows:
        yield f"{source.path}: {package}/{room} has no row in ROWS"
        return
    for line, module in source.imported:
        target = room_of(module, package)
        if target in (None, room):
            continue
        if rows.get(target, len(rows)) >= rows[room]:
            yield f"{source.path}:{line}: the {room} row of {package} may not import {module}"


def check_rooms_are_small(all_sources: list[Source]) -> Iterator[str]:
    files = Counter(s.path.rsplit("/", 1)[0] for s in all_sources if s.package == "actors")
    for room, count in files.items():
        if count - 1 > ROOM_FILES_MAX:  # beside its __init__
            yield f"{room}: {count - 1} files, at most {ROOM_FILES_MAX}"


def check_core_is_pure(source: Source) -> Iterator[str]:
    if source.package != "core":
        return
    for line, module in source.imported:
        if is_within(module, IMPURE):
            yield f"{source.path}:{line}: core may not import {module}"
    for node in source.nodes:
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in IMPURE_CALLS:
                yield f"{source.path}:{node.lineno}: core may not call {name}()"


def check_sizes(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    uses_ray = any(is_within(module, ("ray",)) for _, module in source.imported)
    limit = WRAPPER_LINES_MAX if source.package == "actors" and uses_ray else LINES_MAX
    if lines > limit:
        yield f"{source.path}: {lines} lines, at most {limit}"
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{source.path}:{node.lineno}: {node.name} has {length} lines, "
                    f"at most {FUNCTION_LINES_MAX}"
                )


def check_permissions_are_decided_in_one_place(source: Source) -> Iterator[str]:
    """No file but core/trust/access.py and the call's own questions compares who the caller is."""
    if source.package != "serve_app" or source.path == "serve_app/http/calls.py":
        return
    for node in source.nodes:
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            if isinstance(side, ast.Attribute) and side.attr == "did":
                owner = side.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name in ("caller", "principal"):
                    yield f"{source.path}:{node.lineno}: compares the caller's DID: ask `may`"


def words_of(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower() for word in spaced.split("_") if word}


def check_names(source: Source) -> Iterator[str]:
    names = [(1, part.removesuffix(".py")) for part in source.path.split("/")]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names += [(n.lineno, n.name) for n in source.nodes if isinstance(n, definitions)]
    for line, name in names:
        for word in sorted(words_of(name) & BANNED_WORDS):
            yield f"{source.path}:{line}: {name!r} contains the banned word {word!r}"


def check_citations(source: Source) -> Iterator[str]:
    text = re.sub(r"\s*\n\s*(?:# )?", " ", source.text)
    if "Spec" + ":" in text and not source.path.startswith("tests/contract/"):
        yield f"{source.path}: cites the specification, which is not in the repository"
    for document, names in re.findall(r"\b(\w+)\.md \(([^()]*)\)", text):
        page = ROOT / f"docs/reference/{document}.md"
        headings = re.findall(r"^##+ (.*)$", page.read_text("utf-8"), re.M) if page.exists() else []
        for name in names.split(", "):
            if headings and name not in headings:
                yield f"{source.path}: {document}.md has no heading {name!r}"


def check_reserved_imports(source: Source) -> Iterator[str]:
    for what, (modules, homes) in RESERVED.items():
        is_home = source.path.startswith(homes)
        if what == "ray" and source.path in WITHOUT_RAY:
            is_home = False
        if is_home:
            continue
        for line, module in source.imported:
            if is_within(module, modules):
                yield f"{source.path}:{line}: {what} ({module}) has no place here"


def check_environment(source: Source) -> Iterator[str]:
    if source.path.startswith(ENVIRONMENT_READERS):
        return
    for node in source.nodes:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name in {"environ", "environb", "getenv"}:
            yield f"{source.path}:{node.lineno}: the environment is read in one file only"


def check_no_cycles(all_sources: list[Source]) -> Iterator[str]:
    modules = {s.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): s
               for s in all_sources}  # fmt: skip
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in modules.items():
        named = {module for _, module in source.imported if module in modules and module != name}
        # `from core import errors` needs core.errors; that it passes core/__init__ is no edge.
        edges[name] = {m for m in named if not any(n.startswith(f"{m}.") for n in named)}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> Iterator[str]:
        if name in trail:
            yield "import cycle: " + " → ".join([*trail[trail.index(name) :], name])
        elif name not in done:
            for target in sorted(edges[name]):
                yield from walk(target, (*trail, name))
            done.add(name)

    for name in sorted(modules):
        yield from walk(name, ())


FILE_RULES: list[Callable[[Source], Iterator[str]]] = [
    check_layers,
    check_rows,
    check_core_is_pure,
    check_sizes,
    check_names,
    check_reserved_imports,
    check_environment,
    check_permissions_are_decided_in_one_place,
    check_citations,
]
# Tests, benches and examples may start processes and talk HTTP; the reader's rules hold there too.
BESIDE_RULES = [check_sizes, check_names, check_citations]


# --- the tree keeps them --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages() -> list[Source]:
    """Every file of the packages, forgotten after this module's tests."""
    return sources(PACKAGES)


@pytest.fixture(scope="module")
def beside() -> list[Source]:
    """Every file of tests, benches, examples and scripts, forgotten after this module's tests."""
    return sources(BESIDE)


@pytest.mark.parametrize("rule", FILE_RULES, ids=lambda rule: rule.__name__)
def test_packages_keep_the_rule(
    rule: Callable[[Source], Iterator[str]], packages: list[Source]
) -> None:
    findings = [finding for source in packages for finding in rule(source)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("rule", BESIDE_RULES, ids=lambda rule: rule.__name__)
def test_tests_and_examples_keep_the_rule(
    rule: Callable[[Source], Iterator[str]], beside: list[Source]
) -> None:
    findings = [finding for source in beside for finding in rule(source)]
    assert not findings, "\n".join(findings)


def test_packages_have_no_import_cycle(packages: list[Source]) -> None:
    assert not list(check_no_cycles(packages))


def test_rooms_of_the_actors_are_small(packages: list[Source]) -> None:
    assert not list(check_rooms_are_small(packages))


# --- each rule can fail ---------------------------------------------------------------------------

DOC = '"""A module."""\n'
REFUSED: list[tuple[Callable[[Source], Iterator[str]], str, str]] = [
    (check_layers, "core/a.py", "from ledger import store"),
    (check_layers, "core/a.py", "def f():\n    import actors.engine.runner"),
    (check_layers, "ledger/a.py", "if TYPE_CHECKING:\n    from serve_app.app import App"),
    (check_layers, "callboard/a.py", "from core import workflow"),
    (check_layers, "actors/deep/a.py", "from ...serve_app import app"),
    (check_rows, "core/a.py", "from core import trust"),
    (check_rows, "core/records/a.py", "def f():\n    from ..workflow import graph"),
    (check_rows, "core/records/a.py", "from core.trust import signing"),
    (check_rows, "actors/ports.py", "from actors.engine.runner import Runner"),
    (check_rows, "actors/dispatch/a.py", "from actors.directory.health.circuits import Opened"),
    (check_rows, "actors/cluster/a.py", "from ..gateway.gateway import Gateway"),
    (check_core_is_pure, "core/a.py", "import time"),
    (check_core_is_pure, "core/a.py", "def f():\n    from os import path"),
    (check_core_is_pure, "core/a.py", "at = datetime.now(UTC)"),
    (check_core_is_pure, "core/a.py", "text = open('x').read()"),
    (check_sizes, "core/a.py", "x = 1\n" * (LINES_MAX + 1)),
    (check_sizes, "actors/a.py", "import ray\n" + "x = 1\n" * 200),
    (check_sizes, "core/a.py", "def f():\n" + "    x = 1\n" * 70),
    (check_names, "core/utils.py", ""),
    (check_names, "core/a.py", "class AgentManager: ..."),
    (check_names, "core/a.py", "def load_data(): ..."),
    (check_reserved_imports, "core/a.py", "import ray"),
    (check_reserved_imports, "actors/engine/runner.py", "import ray"),
    (check_reserved_imports, "serve_app/callers/auth.py", "from sqlalchemy import select"),
    (check_reserved_imports, "actors/engine/runner.py", "import aiohttp"),
    (check_environment, "ledger/a.py", "import os\nx = os.environ['A']"),
    (check_environment, "ledger/a.py", "from os import getenv\nx = getenv('A')"),
    (check_permissions_are_decided_in_one_place, "serve_app/a.py", "x = row != call.caller.did"),
    (check_permissions_are_decided_in_one_place, "serve_app/a.py", "x = principal.did in (a, b)"),
    (check_citations, "core/a.py", "# Money (money" + ".md (Bets))."),
    (check_citations, "core/a.py", "# Spec" + ": Bid."),
]
ALLOWED: list[tuple[Callable[[Source], Iterator[str]], str, str]] = [
    (check_layers, "callboard/a.py", "from core import records"),
    (check_layers, "serve_app/a.py", "from ledger.reads.reader import LedgerReader"),
    (check_rows, "core/a.py", "from core.errors import Problem\nfrom core import money"),
    (check_rows, "core/market/a.py", "from core import errors\nimport core.records.agent"),
    (check_rows, "core/workflow/a.py", "from core.workflow.dag import compile_workflow"),
    (check_rows, "actors/engine/a.py", "from actors.dispatch.dispatcher import Dispatcher"),
    (check_rows, "actors/process/a.py", "from actors.ports import Timer\nfrom actors import ports"),
    (check_core_is_pure, "core/a.py", "from datetime import datetime\nimport hashlib"),
    (check_sizes, "core/a.py", "def f():\n" + "    x = 1\n" * 69),
    (check_names, "core/metadata.py", "class Datum: ..."),
    (check_reserved_imports, "ledger/writer/store.py", "import psycopg"),
    (check_environment, "serve_app/settings_from_env.py", "import os\nx = os.environ"),
    (check_permissions_are_decided_in_one_place, "serve_app/a.py", "x = f(call.caller.did)"),
    (check_citations, "core/a.py", "# Money: money" + ".md (Stakes,\n# Slashing)."),
]


@pytest.mark.parametrize(("rule", "path", "snippet"), REFUSED)
def test_rule_refuses(rule: Callable[[Source], Iterator[str]], path: str, snippet: str) -> None:
    assert list(rule(parse(path, DOC + snippet + "\n")))


@pytest.mark.parametrize(("rule", "path", "snippet"), ALLOWED)
def test_rule_allows(rule: Callable[[Source], Iterator[str]], path: str, snippet: str) -> None:
    assert not list(rule(parse(path, DOC + snippet + "\n")))


def test_room_rule_refuses_one_file_more() -> None:
    names = ["__init__", *(f"m{number}" for number in range(ROOM_FILES_MAX))]
    room = [parse(f"actors/engine/{name}.py", DOC) for name in names]
    assert not list(check_rooms_are_small(room))
    assert list(check_rooms_are_small([*room, parse("actors/engine/more.py", DOC)]))


def test_cycle_rule_refuses_a_cycle_inside_functions() -> None:
    first = parse("core/a.py", "from core import b")
    second = parse("core/b.py", "def f():\n    from core.a import x")
    assert list(check_no_cycles([first, second]))
    assert not list(check_no_cycles([first, parse("core/b.py", "x = 1")]))
