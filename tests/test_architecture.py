"""The rules of the layout, read from the sources: imports, owners of libraries, and names.

Each rule is a function from modules to complaints, proven on small wrong sources before it is
trusted with the real ones. Imports under `if TYPE_CHECKING`, inside functions, and by name
through `import_module` count like any other.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Imports go from a row to rows further down. A package may import within itself.
ROWS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),  # `python -m app`
    frozenset({"cli"}),
    frozenset({"main"}),
    frozenset({"addresses"}),
    frozenset({"settings"}),
    frozenset({"setting_values", "version_table"}),
    frozenset({"rest", "rpc", "prepare"}),
    frozenset({"audit", "open_inference"}),
    frozenset({"data_plane", "control_plane"}),
    frozenset({"access_log", "auth", "refusals", "request_ids"}),
    frozenset({"metrics"}),
    frozenset({"callers", "rollouts", "tls", "webhook_secret", "webhooks"}),
    frozenset({"registry", "remote"}),
    frozenset({"inspection", "repository"}),
    frozenset({"drawing", "profiling", "scheduling"}),
    frozenset({"exactness"}),
    frozenset({"batching", "session"}),
    frozenset({"comparing"}),
    frozenset({"codec"}),
    frozenset({"tensors"}),
    frozenset({"row_independence"}),
    frozenset({"model_file"}),
    frozenset({"workers"}),
    frozenset({"children", "errors", "kept_files", "listeners", "processor", "remote_address"}),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

# An adapter speaks a protocol: it sees what a caller and an operator may ask for, and the tensors.
ADAPTERS = frozenset({"rest", "rpc"})
ADAPTERS_SEE = frozenset(
    {
        *("access_log", "audit", "open_inference", "auth", "refusals", "request_ids"),
        *("data_plane", "control_plane", "codec", "tensors", "errors", "listeners"),
    }
)

# Who may import a library; a name stands for the module and all inside it. Nothing in `app` may
# import the tests or the programs for developers.
OWNERS: Mapping[str, frozenset[str]] = {
    "onnxruntime": frozenset({"session", "prepare"}),
    "onnx": frozenset({"prepare"}),
    "fastapi": frozenset({"rest", "main"}),
    "starlette": frozenset({"rest", "main"}),
    "uvicorn": frozenset({"main", "cli", "rest.hot"}),
    "grpc": frozenset({"rpc", "main", "cli.bench_command"}),  # which is a client
    "grpc_health": frozenset({"rpc", "main"}),
    "grpc_reflection": frozenset({"rpc", "main"}),
    "prometheus_client": frozenset({"metrics", "cli.top_command"}),  # which reads them
    "httpx": frozenset({"webhooks", "cli.bench_command", "cli.top_command"}),
    "obstore": frozenset({"remote"}),
    "tests": frozenset(),
    "tools": frozenset(),
}

LONGEST_MODULE = 400  # lines

GENERATED = ("_pb2", "_pb2_grpc")  # by protoc

# The same in every module that has them: a module's logger, and a type variable of no meaning.
MANY_HOMES = frozenset({"log", "T"})

# In tests/ and tools/. The simulation has a clock of its own, in which sleeps take no time.
MAY_SLEEP = frozenset({"waiting", "simulation.callers", "simulation.world"})

# Newer Pythons may take a name that was ours first; inside `app` it hides nothing.
OURS_FIRST = frozenset({"profiling"})  # the standard library's arrives in 3.15


@dataclass(frozen=True, slots=True)
class Module:
    """A module under app/, its dotted name written without the leading `app.`."""

    name: str
    source: str

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    def imports(self) -> Sequence[tuple[int, str]]:
        """Give the line and full dotted name of everything imported, e.g. `(3, "app.rest.hot")`."""
        return imports_in(self.source)

    def imports_from_app(self) -> Iterator[tuple[int, str]]:
        """Give the line and the name without `app.` of each import from this package."""
        for line, name in self.imports():
            package, _, rest = name.partition(".")
            if package == "app" and not (rest.startswith("__") and rest.endswith("__")):
                yield line, rest


@cache
def imports_in(source: str) -> Sequence[tuple[int, str]]:
    """Give the line and full dotted name of everything imported; relative ones begin with a dot."""
    return _read(source)[0]


@cache
def _read(source: str) -> tuple[Sequence[tuple[int, str]], Set[str]]:
    """Give what a source imports and defines: to parse all of them twice would take seconds."""
    tree = ast.parse(source)
    found = []
    by_name = "import_module" in source or "__import__" in source
    for node in ast.walk(tree) if by_name else _statements(tree):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, alias.name) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                package = "." * level + (module or "")
                found += [(node.lineno, f"{package}.{alias.name}") for alias in names]
            case ast.Call(
                func=(
                    ast.Attribute(attr="import_module" | "__import__")
                    | ast.Name(id="import_module" | "__import__")
                ),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.append((node.lineno, name))
    return found, _defined(tree)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node: there are ten times as many expressions."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            yield child
            yield from _statements(child)


def read_modules(folder: Path) -> list[Module]:
    """Read every module below `folder`, except the ones protoc writes."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.endswith(GENERATED):
            modules.append(Module(name, path.read_text(encoding="utf-8")))
    return modules


# --- The rules


def outside_rows(modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name} belongs to no row"
        for module in modules
        if module.name and module.top not in ROW
    ]


def up_or_sideways(modules: Iterable[Module]) -> list[str]:
    complaints = []
    for module in modules:
        for line, name in module.imports_from_app():
            target = name.split(".")[0]
            if target == module.top:
                continue
            # app/__init__.py is below every row: it may import none of them.
            if target not in ROW or ROW[target] <= ROW.get(module.top, len(ROWS)):
                complaints.append(f"app.{module.name}:{line} imports app.{name}, not further down")
    return complaints


def adapters_seeing_too_much(modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name}:{line} imports app.{name}; an adapter sees {seen}"
        for seen in [", ".join(sorted(ADAPTERS_SEE))]
        for module in modules
        if module.top in ADAPTERS
        for line, name in module.imports_from_app()
        if name.split(".")[0] not in ADAPTERS_SEE | {module.top}
    ]


def prepare_imported_to_serve(modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name}:{line} imports app.{name}; only cli may, for its commands"
        for module in modules
        if module.top not in {"cli", "prepare"}
        for line, name in module.imports_from_app()
        if name.split(".")[0] == "prepare"
    ]


def borrowed(library: str, modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name}:{line} imports {name}; {library} is for {', '.join(sorted(owners))}"
        for owners in [OWNERS[library]]
        for module in modules
        if not any(module.name == owner or module.name.startswith(f"{owner}.") for owner in owners)
        for line, name in module.imports()
        if name.split(".")[0] == library
    ]


def circles(modules: Sequence[Module]) -> list[str]:
    """Name each circle of imports once, by the modules on it.

    `from app.rest import errors` is an import of `app.rest.errors` where that is a module. That
    Python runs `app/rest/__init__.py` first is not counted: it would make a circle of each package.
    """
    graph = {module.name: set(_imported_modules(module, modules)) for module in modules}
    complaints = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]  # each imports the next
            graph[circle[0]].remove(circle[1])
            complaints.append(" imports ".join(f"app.{name}" for name in circle))
        else:
            return complaints


def _imported_modules(importer: Module, modules: Sequence[Module]) -> Iterator[str]:
    names = {module.name for module in modules}
    for _, imported in importer.imports_from_app():
        parts = imported.split(".")
        if any(part.endswith(GENERATED) for part in parts):
            continue
        while parts and ".".join(parts) not in names:
            parts.pop()
        if parts:
            yield ".".join(parts)


def many_homes(modules: Iterable[Module]) -> list[str]:
    """Name each public name that several modules define. Imports define nothing."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        for name in _read(module.source)[1]:
            if not name.startswith("_") and name not in MANY_HOMES:
                homes[name].append(f"app.{module.name}")
    return [f"{name} is in {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def hidden_modules(modules: Sequence[Module]) -> list[str]:
    """Name each module whose package binds its name to something else."""
    complaints = []
    for module in modules:
        prefix = f"{module.name}." if module.name else ""
        inside = {
            one.name.removeprefix(prefix)
            for one in modules
            if one.name and one is not module and one.name.startswith(prefix)
        }
        if not inside:
            continue
        tree = ast.parse(module.source)
        bound = _defined(tree) | {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and f"app.{module.name}".rstrip(".") != node.module
            for alias in node.names
        }
        complaints += [
            f"app.{module.name} binds {name}, which hides app.{prefix}{name}"
            for name in sorted(bound & inside)
        ]
    return complaints


def _defined(node: ast.AST) -> set[str]:
    """The names that a module defines at its top level, also where that depends on a condition."""
    names: set[str] = set()
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(child.name)
            case ast.Name(ctx=ast.Store()):
                names.add(child.id)
            case ast.comprehension() | ast.Lambda():  # their names are their own
                pass
            case _:
                names |= _defined(child)
    return names


def relative_imports(modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name}:{line} imports relatively"
        for module in modules
        for line, name in module.imports()
        if name.startswith(".")
    ]


def named_after_stdlib(modules: Iterable[Module]) -> list[str]:
    taken = sys.stdlib_module_names - OURS_FIRST
    return [
        f"app.{module.name} has the name of a standard-library module"
        for module in modules
        if module.name.rsplit(".", maxsplit=1)[-1] in taken
    ]


def too_long(modules: Iterable[Module]) -> list[str]:
    return [
        f"app.{module.name} has {lines} lines; past {LONGEST_MODULE} it becomes a package"
        for module in modules
        if (lines := len(module.source.splitlines())) > LONGEST_MODULE
    ]


def sleeps(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} sleeps; tests.waiting has ways to wait"
        for module in modules
        if "sleep" in module.source
        for node in ast.walk(ast.parse(module.source))
        if isinstance(node, ast.Call)
        if getattr(node.func, "attr", getattr(node.func, "id", None)) == "sleep"
        if module.name not in MAY_SLEEP
    ]


def importing_tests(modules: Iterable[Module]) -> list[str]:
    return [
        f"tools.{module.name}:{line} imports {name}; move shared code out of the test module"
        for module in modules
        for line, name in module.imports()
        if name.startswith("tests.") and ".test_" in name
    ]


# --- The rules, held to the code


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    found = read_modules(ROOT / "app")
    assert found
    return found


def test_every_module_belongs_to_a_row(modules: list[Module]) -> None:
    """A new module says where it stands before it is imported."""
    assert not outside_rows(modules)


def test_imports_go_down_the_rows(modules: list[Module]) -> None:
    """Modules import from rows further down only, never sideways except inside a package."""
    assert not up_or_sideways(modules)


def test_adapters_see_planes_and_tensors_only(modules: list[Module]) -> None:
    """`rest` and `rpc` see what all adapters share, the planes, codec, tensors and errors."""
    assert not adapters_seeing_too_much(modules)


def test_prepare_stays_out_of_serving(modules: list[Module]) -> None:
    """Converters and their libraries are never imported by a serving process."""
    assert not prepare_imported_to_serve(modules)


@pytest.mark.parametrize("library", OWNERS)
def test_library_is_imported_by_its_owners_only(library: str, modules: list[Module]) -> None:
    """Each outside library is met in one or two places, so replacing it touches only those."""
    assert not borrowed(library, modules)


def test_imports_are_absolute(modules: list[Module]) -> None:
    """An import reads the same wherever it stands."""
    assert not relative_imports(modules)


def test_no_imports_run_in_a_circle(modules: list[Module]) -> None:
    """Each module can be read after those it imports, those for types only included."""
    assert not circles(modules)


def test_each_public_name_has_one_home(modules: list[Module]) -> None:
    """A name that is read in one place means the same in every other."""
    assert not many_homes(modules)


def test_no_package_hides_its_own_modules(modules: list[Module]) -> None:
    """`from app.rest.v2 import models` gives the module of that name."""
    assert not hidden_modules(modules)


def test_no_module_is_named_after_the_standard_library(modules: list[Module]) -> None:
    """A reader who sees `import queue` knows which one is meant."""
    assert not named_after_stdlib(modules)


def test_no_module_is_too_long(modules: list[Module]) -> None:
    """A module is read in one sitting; past 400 lines it becomes a package of the same name."""
    assert not too_long(modules)


def test_no_test_sleeps() -> None:
    """A test waits for what it needs, however long that takes, and no longer."""
    assert not sleeps([*read_modules(ROOT / "tests"), *read_modules(ROOT / "tools")])


def test_programs_are_in_tools() -> None:
    """What a newcomer finds in tests/ are tests and their support."""
    assert not [*(ROOT / "tests").rglob("__main__.py")]


def test_programs_import_no_test_module() -> None:
    """A program in tools/ may use what supports the tests, but not the tests themselves."""
    programs = read_modules(ROOT / "tools")
    assert programs
    assert not importing_tests(programs)


# --- The rules, shown to bite


def module(name: str, source: str = "") -> list[Module]:
    return [Module(name, source)]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("errors", "import app.tensors"),
        ("errors", "from app import tensors"),
        ("errors", "from app.tensors import TensorSpec"),
        ("registry", "from app.metrics import Metrics"),
        ("rest.v2", "from app.rpc import server"),
        ("batching.policy", "from app.session import Session"),
        ("tensors", "if TYPE_CHECKING:\n    from app.codec import decode"),
        ("tensors", "def late():\n    from app import codec"),
        ("tensors", "importlib.import_module('app.codec')"),
        ("main", "import app.nowhere"),
        ("", "from app.main import create_app"),
    ],
)
def test_import_up_or_sideways_is_caught(name: str, source: str) -> None:
    """Up, sideways, to nowhere, late, for types only or by name: each is a complaint."""
    assert len(up_or_sideways(module(name, source))) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tensors", "from app.errors import InvalidInput"),
        ("cli", "from app import main, __version__"),
        ("rest.v2", "from app.rest import errors\nfrom app.rest.hot import protocol"),
        ("errors", "import json\nfrom application import main"),
    ],
)
def test_import_down_or_within_a_package_is_fine(name: str, source: str) -> None:
    """Rows further down, one's own package, and everybody else's packages are no complaint."""
    assert not up_or_sideways(module(name, source))


def test_module_outside_rows_is_caught() -> None:
    """A module of no row is named, alone or as a package; the package's own root is none."""
    assert outside_rows(module("helpers.numbers")) == ["app.helpers.numbers belongs to no row"]
    assert not outside_rows([*module(""), *module("rest.v2")])


@pytest.mark.parametrize("target", ["registry", "settings", "metrics", "rpc", "session"])
def test_adapter_seeing_too_much_is_caught(target: str) -> None:
    """Also what is further down the rows is closed to an adapter, except what it needs."""
    assert adapters_seeing_too_much(module("rest.models", f"from app import {target}"))


@pytest.mark.parametrize("target", [*sorted(ADAPTERS_SEE), "rest"])
def test_adapter_seeing_what_it_needs_is_fine(target: str) -> None:
    """The planes, codec, tensors, errors and its own package are what an adapter is made of."""
    assert not adapters_seeing_too_much(module("rest.models", f"from app.{target} import thing"))


def test_prepare_in_serving_is_caught() -> None:
    """`main` above `prepare` may still not import it; the commands may."""
    assert prepare_imported_to_serve(module("main", "from app.prepare import publish"))
    assert not prepare_imported_to_serve(module("cli", "from app.prepare import publish"))


@pytest.mark.parametrize("library", OWNERS)
@pytest.mark.parametrize("form", ["import {}", "import {}.part as p", "from {} import thing"])
def test_borrowed_library_is_caught(library: str, form: str) -> None:
    """Every way to import a library is seen, and its owners are let alone."""
    source = form.format(library)
    assert borrowed(library, module("registry", source))
    for owner in OWNERS[library]:
        assert not borrowed(library, [*module(owner, source), *module(f"{owner}.part", source)])


def test_library_owner_is_no_prefix_of_a_word() -> None:
    """`rest.hot` owns uvicorn, `rest.hotel` and `rest` do not; onnx is not onnxruntime."""
    assert borrowed("uvicorn", module("rest.hotel", "import uvicorn"))
    assert borrowed("uvicorn", module("rest", "import uvicorn"))
    assert not borrowed("onnx", module("session", "import onnxruntime"))


def test_relative_import_is_caught() -> None:
    """One dot is enough."""
    assert relative_imports(module("rest.v2", "from . import errors"))
    assert relative_imports(module("rest.v2", "from .errors import answer"))


@pytest.mark.parametrize(
    "back",
    [
        "import app.codec.json",
        "from app.codec import json",
        "from app.codec.json import encode",
        "if TYPE_CHECKING:\n    from app.codec.json import encode",
        "def late():\n    from app.codec.json import encode",
        "importlib.import_module('app.codec.json')",
    ],
)
def test_circle_is_caught(back: str) -> None:
    """Within a package, by any kind of import, and however long; each is named once."""
    pair = [Module("codec.json", "from app.codec.rows import split"), Module("codec.rows", back)]
    assert len(circles(pair)) == 1
    long = [
        Module("codec.json", "from app.codec import rows"),
        Module("codec.rows", "from app.codec import arrays"),
        Module("codec.arrays", back),
        Module("codec", "from app.codec.json import encode"),
    ]
    (complaint,) = circles(long)
    assert sorted(set(complaint.split(" imports "))) == [
        "app.codec.arrays",
        "app.codec.json",
        "app.codec.rows",
    ]


def test_every_circle_is_named() -> None:
    """Two in one graph are two complaints; a module that imports itself is one."""
    pairs = [
        Module(name, f"from app.codec import {other}")
        for pair in (("a", "b"), ("c", "d"))
        for name, other in ((f"codec.{pair[0]}", pair[1]), (f"codec.{pair[1]}", pair[0]))
    ]
    assert len(circles(pairs)) == 2
    assert circles(module("tensors", "from app.tensors import Array"))


def test_package_and_its_modules_are_no_circle() -> None:
    """A package may re-export what its modules define; a module may not import from it."""
    package = Module("codec", "from app.codec.json import encode")
    rows = Module("codec.rows", "from app.codec import arrays\nfrom app.codec import json_pb2")
    fine = [package, Module("codec.json", "from app.codec.rows import split"), rows]
    assert not circles([*fine, Module("codec.arrays", "from app.tensors import Array")])
    assert circles([package, Module("codec.json", "from app.codec import decode")])


@pytest.mark.parametrize(
    "source",
    [
        "def serve(): ...",
        "async def serve(): ...",
        "class serve: ...",
        "serve = 1",
        "serve: int = 1",
        "other, serve = 1, 2",
        "if sys.platform == 'win32':\n    serve = 1",
        "try:\n    import fast\nexcept ImportError:\n    def serve(): ...",
    ],
)
def test_second_home_is_caught(source: str) -> None:
    """However a name is defined; also where it is defined in a package's own module."""
    first = Module("main.server", "def serve(): ...")
    assert many_homes([first, Module("rpc.server", source)])
    assert many_homes([first, Module("main", source)])
    assert not many_homes([first])


def test_use_of_a_name_is_no_home() -> None:
    """Imports, locals, attributes, private names and the names on the list are free."""
    first = Module("main.server", "def serve(): ...\nlog = 1\n_port = 2")
    for source in [
        "from app.main.server import serve",
        "def run():\n    serve = 1",
        "class Server:\n    serve = 1",
        "server.serve = 1",
        "ports = [serve for serve in sockets]",
        "log = 1",
        "_port = 1",
    ]:
        assert not many_homes([first, Module("main", source)])


@pytest.mark.parametrize(
    "source",
    [
        "from app.rest.v2.models import models",
        "from app.metrics import Models as models",
        "def models(): ...",
        "models = 1",
    ],
)
def test_hidden_module_is_caught(source: str) -> None:
    """By an import from one of its modules or from elsewhere, or by a definition."""
    inside = Module("rest.v2.models", "")
    assert hidden_modules([Module("rest.v2", source), inside])
    assert not hidden_modules([Module("rest.v1", source), inside])
    top = [Module("", "from app.main import settings"), Module("settings", "")]
    assert hidden_modules(top)


def test_package_may_bind_its_own_modules() -> None:
    """The module itself hides nothing, nor does a name that no module has."""
    inside = Module("rest.v2.models", "")
    for source in ["from app.rest.v2 import models", "from app.rest.v2.models import router"]:
        assert not hidden_modules([Module("rest.v2", source), inside])
    assert not hidden_modules([Module("", "from app import settings"), Module("settings", "")])


def test_name_of_the_standard_library_is_caught() -> None:
    """Modules, packages and modules inside packages alike."""
    assert named_after_stdlib(module("queue"))
    assert named_after_stdlib(module("rest.http"))
    assert not named_after_stdlib([*module("codec"), *module("profiling")])


def test_long_module_is_caught() -> None:
    """Four hundred lines are fine, one more is not."""
    assert not too_long(module("session", "x = 1\n" * LONGEST_MODULE))
    assert too_long(module("session", "x = 1\n" * (LONGEST_MODULE + 1)))


@pytest.mark.parametrize("call", ["time.sleep(1)", "await asyncio.sleep(0)", "sleep(0.1)"])
def test_sleep_is_caught(call: str) -> None:
    """For no time at all, too; the helper that waits may."""
    source = f"async def wait():\n    {call}"
    assert sleeps(module("rest.test_v2", source))
    assert not sleeps(module("waiting", source))


@pytest.mark.parametrize(
    "source", ["import tests.rest.test_v2", "from tests.rest.test_v2 import body"]
)
def test_program_importing_a_test_module_is_caught(source: str) -> None:
    """In either form of import; a module that supports tests is fine."""
    assert importing_tests(module("fuzz.heads", source))
    assert not importing_tests(module("fuzz.heads", source.replace("test_v2", "wire")))


def test_modules_are_found_in_packages_and_named(tmp_path: Path) -> None:
    """A package and its modules are named alike, and what protoc wrote is left out."""
    for name in ["__init__.py", "errors.py", "rpc/__init__.py", "rpc/server.py", "rpc/kfs_pb2.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [found.name for found in read_modules(tmp_path)] == ["", "errors", "rpc", "rpc.server"]
