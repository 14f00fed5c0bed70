"""The rules of the layout, read from the sources: imports, owners of libraries, and names.

Each rule is a function from modules to complaints, proven on small wrong sources before it is
trusted with the real ones. Imports under `if TYPE_CHECKING`, inside functions, and by name
through `import_module` count like any other.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Imports go down the layers. Packages of one layer may import each other, without circles.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__", "cli"}),
    frozenset({"process", "scoring", "ray_serve"}),
    frozenset({"http", "rpc"}),
    frozenset({"open_inference", "workers", "serving", "operating"}),
    frozenset(
        {
            *("http2", "connections", "auth", "notifications", "observability"),
            *("metrics", "rollouts", "registry", "remote", "repository", "inspection", "profiling"),
            *(
                "onnx_engine",
                "pipelines",
                "scheduling",
                "batching",
                "row_independence",
                "session",
                "model_file",
                "processing",
                "transforms",
                "sequences",
                "response_cache",
                "settings",
                "planning",
                "generative",
            ),
        }
    ),
    frozenset({"codec", "comparing", "generation", "tensors", "system", "errors", "extras"}),
)
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}

PREPARE = "cohort_prepare"  # a separate layer, above all; only commands may import it

# An adapter speaks a protocol: it sees what a caller and an operator may ask for, and the tensors.
ADAPTERS = frozenset({"http", "rpc"})
ADAPTERS_SEE = frozenset(
    {
        *("open_inference", "serving", "operating", "http2", "connections", "auth"),
        *("observability", "codec", "generation", "tensors", "errors"),
    }
)

# Modules that may import a library; a name includes all modules inside it. Nothing in `app` may
# import the tests or the programs for developers.
OWNERS: Mapping[str, frozenset[str]] = {
    "onnxruntime": frozenset({"cohort.session", "cohort.generative", PREPARE}),
    "onnx": frozenset({PREPARE}),
    "ray": frozenset({"cohort.ray_serve", "cohort.scoring"}),
    "pyarrow": frozenset({"cohort.scoring"}),
    "fastapi": frozenset({"cohort.http", "cohort.process"}),
    "starlette": frozenset({"cohort.http", "cohort.process", "cohort.ray_serve"}),
    "uvicorn": frozenset({"cohort.process", "cohort.cli", "cohort.http.fast_path"}),
    "grpc": frozenset({"cohort.cli.bench_command", "cohort.ray_serve"}),  # clients
    "grpc_health": frozenset(),
    "grpc_reflection": frozenset(),
    "prometheus_client": frozenset(
        {"cohort.metrics", "cohort.cli.top_command", "cohort.ray_serve"}  # the latter read them
    ),
    "httpx": frozenset(
        {"cohort.notifications", "cohort.cli.bench_command", "cohort.cli.top_command"}
    ),
    "obstore": frozenset({"cohort.remote"}),
    "jinja2": frozenset({"cohort.generative"}),
    "llguidance": frozenset({"cohort.generative"}),
    "opentelemetry": frozenset({"cohort.observability.tracing"}),
    "tests": frozenset(),
    "tools": frozenset(),
}

MAX_MODULE = 400  # lines

GENERATED = ("_pb2", "_pb2_grpc")  # by protoc

# The same in every module that has them: a module's logger, and a type variable of no meaning.
MANY_HOMES = frozenset({"log", "A", "B", "T"})

# In tests/ and tools/. The simulation has its own clock, in which sleeps take no time. The played
# Kubernetes repeats probes and passes on changes at fixed periods.
MAY_SLEEP = frozenset(
    {
        *("waiting", "simulation.callers", "simulation.world"),
        *("kubernetes.cluster", "kubernetes.gateway", "kubernetes.pod"),
    }
)

# Inside a package they hide nothing: no import is relative.
SAME_WORDS = frozenset({"http", "profiling"})  # the standard library's profiling arrives in 3.15


@dataclass(frozen=True, slots=True)
class Module:
    """A module under app/, tests/ or tools/, by its dotted name below that folder."""

    name: str
    source: str

    @property
    def room(self) -> str:
        return room_of(self.name)

    def imports(self) -> Sequence[tuple[int, str]]:
        """Give the line and dotted name of everything imported, as `(3, "cohort.http.pages")`."""
        return imports_in(self.source)

    def own_imports(self) -> Iterator[tuple[int, str]]:
        """Give the line and the name of each import from the two packages."""
        for line, name in self.imports():
            package, _, rest = name.partition(".")
            if package in {"cohort", PREPARE} and not (
                rest.startswith("__") and rest.endswith("__")
            ):
                yield line, name


def room_of(name: str) -> str:
    """Return the room of a module: `http` for `cohort.http.pages`; "" for `cohort` itself."""
    package, _, rest = name.partition(".")
    return PREPARE if package == PREPARE else rest.partition(".")[0]


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


def outside_layers(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name} belongs to no layer"
        for module in modules
        if module.room not in {"", PREPARE, *LAYER}
    ]


def upwards(modules: Iterable[Module]) -> list[str]:
    complaints = []
    for module in modules:
        own = LAYER.get(module.room, -1)  # public modules and cohort_prepare are above all
        for line, name in module.own_imports():
            target = room_of(name)
            if target not in {module.room, PREPARE} and LAYER.get(target, -1) < own:
                complaints.append(f"{module.name}:{line} imports {name}, which is further up")
    return complaints


def circles_of_packages(modules: Sequence[Module]) -> list[str]:
    """Name each circle of packages once, with the packages on it."""
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = {room_of(name) for _, name in module.own_imports()} - {module.room, PREPARE}
        graph.setdefault(module.room, set()).update(targets)
    return _circles_in(graph)


def adapters_seeing_too_much(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name}:{line} imports {name}; an adapter sees {seen}"
        for seen in [", ".join(sorted(ADAPTERS_SEE))]
        for module in modules
        if module.room in ADAPTERS
        for line, name in module.own_imports()
        if room_of(name) not in ADAPTERS_SEE | {module.room}
    ]


def prepare_imported_to_serve(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name}:{line} imports {name}; only cli may, for its commands"
        for module in modules
        if module.room not in {"cli", PREPARE}
        for line, name in module.own_imports()
        if room_of(name) == PREPARE
    ]


def borrowed(library: str, modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name}:{line} imports {name}; {library} is for {', '.join(sorted(owners))}"
        for owners in [OWNERS[library]]
        for module in modules
        if not any(module.name == owner or module.name.startswith(f"{owner}.") for owner in owners)
        for line, name in module.imports()
        if name.split(".")[0] == library
    ]


def circles(modules: Sequence[Module]) -> list[str]:
    """Name each circle of imports once, by the modules on it.

    `from cohort.http import errors` is an import of `cohort.http.errors` if that is a module. That
    Python runs `cohort/http/__init__.py` first is not counted: it would make a circle of each
    package.
    """
    return _circles_in({one.name: set(_imported_modules(one, modules)) for one in modules})


def _circles_in(graph: dict[str, set[str]]) -> list[str]:
    complaints = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]  # each imports the next
            graph[circle[0]].remove(circle[1])
            complaints.append(" imports ".join(circle))
        else:
            return complaints


def _imported_modules(importer: Module, modules: Sequence[Module]) -> Iterator[str]:
    names = {module.name for module in modules}
    for _, imported in importer.own_imports():
        parts = imported.split(".")
        if any(part.endswith(GENERATED) for part in parts):
            continue
        while parts and ".".join(parts) not in names:
            parts.pop()
        if parts:
            yield ".".join(parts)


def many_homes(modules: Iterable[Module]) -> list[str]:
    """Name each public name that several modules of a package define. Imports define nothing."""
    homes: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        for name in _read(module.source)[1]:
            if not name.startswith("_") and name not in MANY_HOMES:
                homes[module.room, name].append(module.name)
    return [f"{name} is in {', '.join(found)}" for (_, name), found in homes.items() if found[1:]]


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
            if isinstance(node, ast.ImportFrom) and module.name != node.module
            for alias in node.names
        }
        complaints += [
            f"{module.name} binds {name}, which hides {prefix}{name}"
            for name in sorted(bound & inside)
        ]
    return complaints


def _defined(node: ast.AST) -> set[str]:
    """Return the names that a module defines at its top level, including conditional ones."""
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
        f"{module.name}:{line} imports relatively"
        for module in modules
        for line, name in module.imports()
        if name.startswith(".")
    ]


def named_after_stdlib(modules: Iterable[Module]) -> list[str]:
    taken = sys.stdlib_module_names - SAME_WORDS
    return [
        f"{module.name} has the name of a standard-library module"
        for module in modules
        if module.name.rsplit(".", maxsplit=1)[-1] in taken
    ]


def too_long(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name} has {lines} lines: does it hold two subjects?"
        for module in modules
        if (lines := len(module.source.splitlines())) > MAX_MODULE
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


def test_every_module_belongs_to_a_layer(modules: list[Module]) -> None:
    """A new package must be given a layer before it is imported."""
    assert not outside_layers(modules)


def test_imports_go_down_the_layers(modules: list[Module]) -> None:
    """Imports go down the layers or stay in one."""
    assert not upwards(modules)


def test_no_packages_need_each_other(modules: list[Module]) -> None:
    """Within a layer, too, there is an order: a package can be read after those it imports."""
    assert not circles_of_packages(modules)


def test_adapters_see_planes_and_tensors_only(modules: list[Module]) -> None:
    """`http` and `rpc` see what all adapters share, the planes, codec, tensors and errors."""
    assert not adapters_seeing_too_much(modules)


def test_prepare_stays_out_of_serving(modules: list[Module]) -> None:
    """Converters and their libraries are never imported by a serving process."""
    assert not prepare_imported_to_serve(modules)


@pytest.mark.parametrize("library", OWNERS)
def test_library_is_imported_by_its_owners_only(library: str, modules: list[Module]) -> None:
    """Each outside library is met in one or two places, so replacing it touches only those."""
    assert not borrowed(library, modules)


def test_imports_are_absolute(modules: list[Module]) -> None:
    """An import reads the same in every module."""
    assert not relative_imports(modules)


def test_no_imports_run_in_a_circle(modules: list[Module]) -> None:
    """Each module can be read after those it imports, those for types only included."""
    assert not circles(modules)


def test_each_public_name_has_one_home(modules: list[Module]) -> None:
    """A name that is read in one place means the same in all of its package."""
    assert not many_homes(modules)


def test_no_package_hides_its_own_modules(modules: list[Module]) -> None:
    """`from cohort.http.v2 import models` gives the module of that name."""
    assert not hidden_modules(modules)


def test_no_module_is_named_after_the_standard_library(modules: list[Module]) -> None:
    """A reader who sees `import queue` knows which one is meant."""
    assert not named_after_stdlib(modules)


@pytest.mark.filterwarnings("default")
def test_long_modules_are_named(modules: list[Module]) -> None:
    """A module past 400 lines may hold two subjects: a warning asks."""
    for sentence in too_long(modules):
        warnings.warn(sentence, stacklevel=1)
    assert too_long(module("cohort.tensors", "\n" * 500))


def test_no_test_sleeps() -> None:
    """A test waits for a condition, however long that takes, and no longer."""
    assert not sleeps([*read_modules(ROOT / "tests"), *read_modules(ROOT / "tools")])


def test_programs_are_in_tools() -> None:
    """tests/ contains only tests and their support."""
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
        ("errors", "import cohort.http"),
        ("errors", "from cohort import registry"),
        ("registry", "from cohort.serving import Lease"),
        ("http.v2", "from cohort.process import server"),
        ("tensors", "if TYPE_CHECKING:\n    from cohort.batching import Batch"),
        ("tensors", "def late():\n    from cohort import session"),
        ("tensors", "importlib.import_module('cohort.session')"),
        ("process", "import cohort.nowhere"),
    ],
)
def test_import_up_is_caught(name: str, source: str) -> None:
    """Imports up, to nowhere, late, for types only or by name are each a complaint."""
    assert len(upwards(module(f"cohort.{name}", source))) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cohort.tensors", "from cohort.errors import InvalidInput"),
        ("cohort.cli", "from cohort import process, __version__"),
        ("cohort.http.v2", "from cohort.http import errors\nimport cohort.http.tls"),
        ("cohort.errors", "import json\nfrom application import main"),
        ("cohort_prepare.steps", "from cohort.cli import options"),
    ],
)
def test_import_down_or_within_a_layer_is_fine(name: str, source: str) -> None:
    """Imports from lower layers, from the same layer and from other packages are allowed."""
    assert not upwards(module(name, source))


def test_module_outside_layers_is_caught() -> None:
    """A module of no layer is named, alone or as a package; the package's own root is none."""
    assert outside_layers(module("cohort.helpers.numbers"))
    assert not outside_layers([*module("cohort"), *module("cohort.http.v2")])


def test_packages_that_need_each_other_are_caught() -> None:
    """Packages that import each other are found, even without a circle of modules."""
    modules = [
        *module("cohort.session.running", "from cohort.batching.batch import Batch"),
        *module("cohort.batching.stacking", "from cohort.session.opening import open_session"),
    ]
    assert circles(modules) == []
    assert len(circles_of_packages(modules)) == 1


@pytest.mark.parametrize("target", ["registry", "settings", "metrics", "session"])
def test_adapter_seeing_too_much_is_caught(target: str) -> None:
    """Lower layers are also closed to an adapter, except for the parts it needs."""
    assert adapters_seeing_too_much(module("cohort.http.models", f"from cohort import {target}"))


@pytest.mark.parametrize("target", [*sorted(ADAPTERS_SEE), "http"])
def test_adapter_seeing_what_it_needs_is_fine(target: str) -> None:
    """The planes, codec, tensors, errors and its own package are what an adapter is made of."""
    one = module("cohort.http.models", f"from cohort.{target} import thing")
    assert not adapters_seeing_too_much(one)


def test_prepare_in_serving_is_caught() -> None:
    """`process` may not import it; the commands may."""
    source = "from cohort_prepare import publish"
    assert prepare_imported_to_serve(module("cohort.process", source))
    assert not prepare_imported_to_serve(module("cohort.cli", source))


@pytest.mark.parametrize("library", OWNERS)
@pytest.mark.parametrize("form", ["import {}", "import {}.part as p", "from {} import thing"])
def test_borrowed_library_is_caught(library: str, form: str) -> None:
    """Every way to import a library is seen, and its owners are let alone."""
    source = form.format(library)
    assert borrowed(library, module("cohort.registry", source))
    for owner in OWNERS[library]:
        assert not borrowed(library, [*module(owner, source), *module(f"{owner}.part", source)])


def test_library_owner_is_no_prefix_of_a_word() -> None:
    """`http.fast_path` owns uvicorn, `http` does not; onnx is not onnxruntime."""
    assert borrowed("uvicorn", module("cohort.http.fast_paths", "import uvicorn"))
    assert borrowed("uvicorn", module("cohort.http", "import uvicorn"))
    assert not borrowed("onnx", module("cohort.session", "import onnxruntime"))


def test_relative_import_is_caught() -> None:
    """One dot is enough."""
    assert relative_imports(module("cohort.http.v2", "from . import errors"))
    assert relative_imports(module("cohort.http.v2", "from .errors import answer"))


@pytest.mark.parametrize(
    "back",
    [
        "import cohort.codec.json",
        "from cohort.codec import json",
        "from cohort.codec.json import encode",
        "if TYPE_CHECKING:\n    from cohort.codec.json import encode",
        "def late():\n    from cohort.codec.json import encode",
        "importlib.import_module('cohort.codec.json')",
    ],
)
def test_circle_is_caught(back: str) -> None:
    """Circles of any length and kind of import within a package are named once."""
    pair = [
        Module("cohort.codec.json", "from cohort.codec.rows import split"),
        Module("cohort.codec.rows", back),
    ]
    assert len(circles(pair)) == 1
    long = [
        Module("cohort.codec.json", "from cohort.codec import rows"),
        Module("cohort.codec.rows", "from cohort.codec import arrays"),
        Module("cohort.codec.arrays", back),
        Module("cohort.codec", "from cohort.codec.json import encode"),
    ]
    (complaint,) = circles(long)
    assert sorted(set(complaint.split(" imports "))) == [
        "cohort.codec.arrays",
        "cohort.codec.json",
        "cohort.codec.rows",
    ]


def test_every_circle_is_named() -> None:
    """Two in one graph are two complaints; a module that imports itself is one."""
    pairs = [
        Module(f"cohort.codec.{name}", f"from cohort.codec import {other}")
        for one, two in (("a", "b"), ("c", "d"))
        for name, other in ((one, two), (two, one))
    ]
    assert len(circles(pairs)) == 2
    assert circles(module("cohort.tensors", "from cohort.tensors import Array"))


def test_package_and_its_modules_are_no_circle() -> None:
    """A package may re-export what its modules define; a module may not import from it."""
    package = Module("cohort.codec", "from cohort.codec.json import encode")
    rows = Module(
        "cohort.codec.rows", "from cohort.codec import arrays\nfrom cohort.codec import json_pb2"
    )
    fine = [package, Module("cohort.codec.json", "from cohort.codec.rows import split"), rows]
    assert not circles([*fine, Module("cohort.codec.arrays", "from cohort.tensors import Array")])
    assert circles([package, Module("cohort.codec.json", "from cohort.codec import decode")])


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
    """A name has one home, however it is defined; another package may also have it."""
    first = Module("cohort.rpc.server", "def serve(): ...")
    assert many_homes([first, Module("cohort.rpc.calls", source)])
    assert many_homes([first, Module("cohort.rpc", source)])
    assert not many_homes([first])
    assert not many_homes([first, Module("cohort.http.calls", source)])


def test_use_of_a_name_is_no_home() -> None:
    """Imports, locals, attributes, private names and the names on the list are free."""
    first = Module("cohort.process.server", "def serve(): ...\nlog = 1\n_port = 2")
    for source in [
        "from cohort.process.server import serve",
        "def run():\n    serve = 1",
        "class Server:\n    serve = 1",
        "server.serve = 1",
        "ports = [serve for serve in sockets]",
        "log = 1",
        "_port = 1",
    ]:
        assert not many_homes([first, Module("cohort.process", source)])


@pytest.mark.parametrize(
    "source",
    [
        "from cohort.http.v2.models import models",
        "from cohort.metrics import Models as models",
        "def models(): ...",
        "models = 1",
    ],
)
def test_hidden_module_is_caught(source: str) -> None:
    """An import from one of its modules or from elsewhere, or a definition, hides it."""
    inside = Module("cohort.http.v2.models", "")
    assert hidden_modules([Module("cohort.http.v2", source), inside])
    assert not hidden_modules([Module("cohort.http.v1", source), inside])
    top = [Module("cohort", "from cohort.process import codec"), Module("cohort.codec", "")]
    assert hidden_modules(top)


def test_package_may_bind_its_own_modules() -> None:
    """The module itself hides nothing, nor does a name that no module has."""
    inside = Module("cohort.http.v2.models", "")
    for source in ["from cohort.http.v2 import models", "from cohort.http.v2.models import router"]:
        assert not hidden_modules([Module("cohort.http.v2", source), inside])
    both = [Module("cohort", "from cohort import codec"), Module("cohort.codec", "")]
    assert not hidden_modules(both)


def test_name_of_the_standard_library_is_caught() -> None:
    """Modules, packages and modules inside packages are all checked."""
    assert named_after_stdlib(module("cohort.queue"))
    assert named_after_stdlib(module("cohort.rpc.json"))
    assert not named_after_stdlib([*module("cohort.tensors"), *module("cohort.profiling")])


def test_long_module_is_caught() -> None:
    """Four hundred lines are fine, one more is not."""
    assert not too_long(module("session", "x = 1\n" * MAX_MODULE))
    assert too_long(module("session", "x = 1\n" * (MAX_MODULE + 1)))


@pytest.mark.parametrize("call", ["time.sleep(1)", "await asyncio.sleep(0)", "sleep(0.1)"])
def test_sleep_is_caught(call: str) -> None:
    """Sleeping for 0 s is also caught; only the helper that waits may sleep."""
    source = f"async def wait():\n    {call}"
    assert sleeps(module("rest.test_v2", source))
    assert not sleeps(module("waiting", source))


@pytest.mark.parametrize(
    "source", ["import tests.http.test_v2", "from tests.http.test_v2 import body"]
)
def test_program_importing_a_test_module_is_caught(source: str) -> None:
    """Either form of import is caught; a module that supports tests is fine."""
    assert importing_tests(module("fuzz.heads", source))
    assert not importing_tests(module("fuzz.heads", source.replace("test_v2", "wire")))


def test_modules_are_found_in_packages_and_named(tmp_path: Path) -> None:
    """A package and its modules are named alike, and what protoc wrote is left out."""
    for name in ["__init__.py", "errors.py", "rpc/__init__.py", "rpc/server.py", "rpc/kfs_pb2.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [found.name for found in read_modules(tmp_path)] == ["", "errors", "rpc", "rpc.server"]
