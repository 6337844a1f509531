"""The shape of the tree (DESIGN 10): who may import whom, and the one home of each hard thing.

Always: a rule is an entry of RULES with its reason and a plant, code that breaks it; each plant is
seen to be found. Modules are named as Python imports them; a name stands for the module and for
everything below it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {  # folder of files -> the name under which its modules are known here
    "shared/stillrun": "stillrun",
    "store_service/stillrun_store": "stillrun_store",
    "agent_service/stillrun_agent": "stillrun_agent",
    "agent_service/agents": "agents",
    "tests": "tests",
}
PRODUCT = ("stillrun", "stillrun_store", "stillrun_agent", "agents")
PURE = tuple(
    f"stillrun.{name}"
    for name in (
        "events state status reducers folding compaction check schema values errors essence"
    ).split()
)
JSON_BYTES = ("encode", "decode", "Encoder", "Decoder")
CODEC = ("stillrun.codec", "stillrun_store.storage.format")

# What gives the same answer on any machine in any year; what is missing here must be argued for.
PURE_STDLIB = frozenset(
    """
    __future__ abc base64 binascii bisect collections copy dataclasses datetime decimal enum
    fractions functools hashlib hmac itertools json keyword math operator re string struct
    textwrap types typing unicodedata
    """.split()
)
CLOCKS = (
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)

# Names that open, create, name or remove files. To read and write a descriptor is free: only
# these can give one out.
FILE_NAMES = frozenset(
    """
    open io.open shutil tempfile fcntl mmap glob os.open os.fdopen os.fsync os.fdatasync os.sync
    os.rename os.renames os.replace os.unlink os.remove os.rmdir os.removedirs os.mkdir
    os.makedirs os.listdir os.scandir os.walk os.truncate os.ftruncate os.link os.symlink os.stat
    os.lstat os.utime os.chmod os.chown os.posix_fallocate os.statvfs os.access
    """.split()
)
# Of pathlib. `open`, `replace` and `rename` are left out: other types have them too.
FILE_METHODS = frozenset(
    """
    write_text write_bytes read_text read_bytes unlink mkdir rmdir touch iterdir symlink_to
    hardlink_to
    """.split()
)
READING = {"open", "io.open", "glob", "os.stat", "os.listdir", "read_text", "read_bytes", "iterdir"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """In the modules `within`, except in `homes`, none of `names` and `methods` is used.

    Where `only` is set, nothing but that is imported.
    """

    says: str
    within: tuple[str, ...]
    homes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # dotted: a module, or something in one
    methods: frozenset[str] = (
        frozenset()
    )  # attributes of whatever object, unless it is called `files`
    only: frozenset[str] | None = None
    plant: tuple[str, str]  # a module and code in it that breaks this rule


RULES = [
    Rule(
        says="shared imports neither service; its test kit, loaded by tests alone, plays both",
        within=("stillrun",),
        homes=("stillrun.testing",),
        names=("stillrun_store", "stillrun_agent", "agents"),
        plant=("stillrun.client", "from stillrun_store import app"),
    ),
    Rule(
        says="the services know each other over HTTP only: the store",
        within=("stillrun_store",),
        names=("stillrun_agent", "agents"),
        plant=("stillrun_store.app", "def f():\n    import stillrun_agent.worker"),
    ),
    Rule(
        says="the services know each other over HTTP only: the agent",
        within=("stillrun_agent",),
        names=("stillrun_store",),
        plant=("stillrun_agent.worker", "import stillrun_store.storage as s"),
    ),
    Rule(
        says="the test kit is for tests: nothing that runs in a service loads it",
        within=PRODUCT,
        homes=("stillrun.testing",),
        names=("stillrun.testing",),
        plant=("stillrun.agent", "from .testing import run_agent"),
    ),
    Rule(
        says="no product code imports tests",
        within=PRODUCT,
        names=("tests", "world", "demo", "pytest", "hypothesis"),
        plant=("agents.mine", "from world import desk"),
    ),
    Rule(
        says="the engine knows seq and opaque bytes: no event type, no HTTP, nothing above it",
        within=("stillrun_store.storage",),
        names=("stillrun", "flask", "werkzeug", "granian"),
        plant=("stillrun_store.storage.log", "from stillrun.events import Event"),
    ),
    Rule(
        says="the pure core calls nothing and asks no clock",
        within=PURE,
        only=PURE_STDLIB | {"msgspec", *PURE},
        plant=("stillrun.state", "from .client import StoreClient"),
    ),
    Rule(
        says="the pure core reads no clock by way of datetime",
        within=PURE,
        names=CLOCKS,
        plant=("stillrun.check", "from datetime import datetime as d\nd.now()"),
    ),
    Rule(
        says="flask stays in app and routes",
        within=PRODUCT,
        homes=(
            "stillrun_store.app",
            "stillrun_store.routes",
            "stillrun_agent.app",
            "stillrun_agent.routes",
        ),
        names=("flask", "werkzeug"),
        plant=("stillrun_store.leases", "from flask import request"),
    ),
    Rule(
        says="the server is started in one place per service",
        within=PRODUCT,
        homes=("stillrun_store.__main__", "stillrun_store.serve", "stillrun_agent.__main__"),
        names=("granian",),
        plant=("stillrun_store.app", "import granian.server"),
    ),
    Rule(
        says="calls over the network are made by the client's transport, by models and by tools",
        within=PRODUCT,
        homes=("stillrun.transport", "stillrun_agent.models", "agents"),
        names=("requests", "urllib3", "urllib.request", "http.client", "socket.create_connection"),
        plant=("stillrun_agent.worker", "import http.client"),
    ),
    Rule(
        says="msgpack stays in the codec and in the format of the files",
        within=PRODUCT,
        homes=CODEC,
        names=("msgpack",),
        plant=("stillrun_store.routes.runs", "import msgpack"),
    ),
    Rule(
        says="msgspec makes and reads bytes in the codec and in the format of the files",
        within=PRODUCT,
        homes=CODEC,
        names=("msgspec.msgpack", *(f"msgspec.json.{x}" for x in JSON_BYTES)),
        plant=("stillrun.client", "import msgspec\nx = msgspec.json.decode"),
    ),
    Rule(
        says="the store touches files in one module",
        within=("stillrun_store",),
        homes=("stillrun_store.storage.files",),
        names=FILE_NAMES,
        methods=FILE_METHODS,
        plant=("stillrun_store.storage.log", "from os import fsync as sync\nsync(3)"),
    ),
    Rule(
        says="the agent service keeps nothing: it writes no file",
        within=("stillrun", "stillrun_agent"),
        names=FILE_NAMES - READING,
        methods=FILE_METHODS - READING,
        plant=("stillrun_agent.worker", "def f(p):\n    p.write_text('x')"),
    ),
    Rule(
        says="the text of metrics has one home in each service",
        within=PRODUCT,
        homes=("stillrun_store.metrics", "stillrun_agent.metrics"),
        names=("prometheus_client",),
        plant=("stillrun_store.store", "from prometheus_client import Counter"),
    ),
    Rule(
        says="docker is for tests",
        within=PRODUCT,
        names=("docker",),
        plant=("stillrun_agent.tools", "import importlib\nimportlib.import_module('docker')"),
    ),
    Rule(
        says="an agent file imports the standard library, stillrun and requests",
        within=("agents",),
        only=frozenset(sys.stdlib_module_names) | {"stillrun", "requests"},
        plant=("agents.mine", "import stillrun_agent"),
    ),
    Rule(
        says="an agent file imports what stillrun shows, not what it is made of",
        within=("agents",),
        names=tuple(
            f"stillrun.{path.stem}"
            for path in (ROOT / "shared/stillrun").glob("*.py")
            if path.stem not in {"__init__", "testing"}
        ),
        plant=("agents.mine", "from stillrun import wire"),
    ),
]


def below(name: str, roots: tuple[str, ...] | frozenset[str]) -> bool:
    """Whether a dotted name is one of the roots, or something in one."""
    return any(name == root or name.startswith(root + ".") for root in roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    line: int
    name: str
    method: bool = False


class Module:
    """One source file: its name, and every import, dotted name and method it uses."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tree = ast.parse(path.read_bytes(), str(path))
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.stars: list[int] = []
        self.imports = list(self._imports())
        self.uses = [*self.imports, *self._references()]

    def _imports(self) -> Iterator[Use]:
        self.known: dict[str, str] = {}  # a name in this file -> what it stands for
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        first = alias.name.partition(".")[0]
                        self.known[alias.asname or first] = alias.name if alias.asname else first
                        yield Use(line=node.lineno, name=alias.name)
                case ast.ImportFrom(module=module, names=names, level=level):
                    base = module or ""
                    if level:
                        parents = self.package.split(".")
                        base = ".".join(filter(None, [*parents[: len(parents) - level + 1], base]))
                    for alias in names:
                        if alias.name == "*":
                            self.stars.append(node.lineno)
                        self.known[alias.asname or alias.name] = f"{base}.{alias.name}"
                        yield Use(line=node.lineno, name=f"{base}.{alias.name}")
                case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                    if ast.unparse(func).rpartition(".")[2] in {"import_module", "__import__"}:
                        yield Use(line=node.lineno, name=name)

    def _references(self) -> Iterator[Use]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                root, _, rest = owner.partition(".")
                if root in self.known:
                    name = ".".join(filter(None, [self.known[root], rest, node.attr]))
                    yield Use(line=node.lineno, name=name)
                elif not owner.rpartition(".")[2].strip("_").endswith("files"):
                    yield Use(line=node.lineno, name=node.attr, method=True)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.id in self.known:
                    yield Use(line=node.lineno, name=self.known[node.id])
                elif hasattr(builtins, node.id):
                    yield Use(line=node.lineno, name=node.id)


def modules(root: Path) -> list[Module]:
    found = []
    for folder, name in SOURCES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found.append(Module(".".join((name, *parts)), path))
    return found


def breaches(rule: Rule, tree: list[Module]) -> list[str]:
    """The places that break a rule, each as `file:line uses name`, once."""
    found = {}
    for module in tree:
        if not below(module.name, rule.within) or below(module.name, rule.homes):
            continue
        for use in module.imports if rule.only is not None else module.uses:
            if rule.only is not None:
                broken = not below(use.name, rule.only)
            elif use.method:
                broken = use.name in rule.methods
            else:
                broken = below(use.name, rule.names)
            if broken:
                found[f"{module.path}:{use.line} uses {use.name}"] = None
    return list(found)


@pytest.fixture(scope="module")
def tree() -> list[Module]:
    return modules(ROOT)


def says(rule: Rule) -> str:
    return rule.says


@pytest.mark.parametrize("rule", RULES, ids=says)
def test_the_tree_keeps_the_rule(rule, tree):
    assert not (found := breaches(rule, tree)), "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=says)
def test_a_planted_breach_is_found(rule, tmp_path):
    name, code = rule.plant
    plant(tmp_path, name, code)
    assert breaches(rule, modules(tmp_path)) != []


@pytest.mark.parametrize("rule", RULES, ids=says)
def test_the_homes_of_a_rule_exist(rule, tree):
    """A home that was renamed away would leave an exception that excepts nothing."""
    names = {module.name for module in tree}
    assert [
        home for home in (*rule.within, *rule.homes) if not any(below(n, (home,)) for n in names)
    ] == []


FILES = "the store touches files"


@pytest.mark.parametrize(
    ("rule", "name", "code"),
    [
        (FILES, "stillrun_store.storage.files", "import os\nos.fsync(3)"),
        (FILES, "stillrun_store.storage.log", "self._files.mkdir('x')"),
        (FILES, "stillrun_store.storage.log", "'a'.replace('a', 'b')"),
        ("the engine knows", "stillrun_store.storage.log", "from stillrun_store.storage import x"),
        ("the pure core calls", "stillrun.state", "from . import values\nfrom .values import same"),
        ("msgspec makes", "stillrun.events", "import msgspec\nclass A(msgspec.Struct): ..."),
    ],
)
def test_what_a_rule_allows_is_not_flagged(rule, name, code, tmp_path):
    plant(tmp_path, name, code)
    (chosen,) = [r for r in RULES if r.says.startswith(rule)]
    assert breaches(chosen, modules(tmp_path)) == []


def vague_names(module: Module) -> list[str]:
    """STYLE: a name says what is in it; `utils` and `Manager` say nothing."""
    defined = [
        node.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    words = [*module.name.split("."), *defined]
    return [
        w
        for w in words
        if w.lower() in {"utils", "util", "helpers", "misc"} or "manager" in w.lower()
    ]


def test_no_name_is_vague(tree):
    assert {str(m.path): found for m in tree if (found := vague_names(m))} == {}


def test_no_star_import(tree):
    assert [f"{m.path}:{line}" for m in tree for line in m.stars] == []


def test_vague_names_and_stars_are_found(tmp_path):
    plant(tmp_path, "stillrun.utils", "from json import *\nclass RunManager: ...")
    (module,) = modules(tmp_path)
    assert vague_names(module) == ["utils", "RunManager"]
    assert module.stars == [1]


def plant(root: Path, name: str, code: str) -> None:
    top, *rest = name.split(".")
    (folder,) = [folder for folder, package in SOURCES.items() if package == top]
    path = (root / folder).joinpath(*rest).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(code)
