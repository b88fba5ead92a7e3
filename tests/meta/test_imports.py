"""Who may import whom, how long files and functions may be, and that each file says what lives in it.

Read from the syntax trees of all sources, nothing is imported. One table a rule; a rule that nothing obeys any
more, since its files are gone, is red too.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FILE, LONGEST_FUNCTION = 300, 60
LONGEST_PREFACE = 15  # lines of a module's docstring, where it states a rule the code follows

WRITER = {"grid", "codes", "packing", "kernels", "plan", "config", "convert", "builder", "blocks", "writer"}
JUDGE = {
    "verify", "verify_config", "verify_fields", "verify_files", "verify_values", "as_found", "left_dense",
    "reference", "judge_groups", "judge_rows", "bounds", "metrics", "findings", "foreign", "diagnose", "patterns",
    "unknown_rules",
}  # fmt: skip
SHARED = {
    "errors",
    "formats",
    "model",
    "textconfig",
    "header",
    "checkpoint",
}  # what writer and judge may both know
PURE = {
    "errors", "formats", "model", "textconfig", "grid", "codes", "packing", "kernels", "config", "plan", "reference",
    "bounds", "metrics", "findings", "patterns", "judge_groups", "judge_rows", "as_found", "verify_config",
    "verify_fields", "memory", "eligibility",
}  # fmt: skip
TOUCHES_THE_WORLD = {
    "os",
    "io",
    "subprocess",
    "socket",
    "shutil",
    "tempfile",
    "threading",
    "concurrent",
    "mmap",
}
OUTSIDE_OF_PACKAGE = {
    "pytest",
    "vllm",
    "docker",
    "torch",
    "transformers",
    "safetensors",
    "compressed_tensors",
}
ENGINE_PLUGIN = "vllm_cpu"
JUDGE_LIBRARIES = {"numpy", "numba", "ml_dtypes"}
ALLOWED = {  # the lowest floor, name by name
    "errors": set(),
    "formats": {"errors"},
    "textconfig": {"errors"},
    "model": {"errors", "textconfig"},
    "header": {"errors"},
    "checkpoint": {"errors", "header"},
    "reference": {"formats"},
}
SUITES = {"quant", "gemm", "serve", "sweep"}
FLOORS = {  # part of tests -> parts it may import, besides itself
    "nano": set(),
    "support": {"nano"},
    "unit": {"support", "nano"},
    "report": {"support"},
    **{suite: {"support", "nano"} for suite in SUITES},
    "meta": {"support", "nano", "report", *SUITES},
}
# Rooms of tests/support, lowest first: each imports only what stands before it. The first are the files beside them.
ROOMS = (
    "", "sources", "host", "engine", "boot", "answers", "load", "gate", "gemm", "plugins", "miniatures",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One file of Python."""

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names of all that it imports, inside functions too."""
        return frozenset(_imports(self.tree))

    @property
    def name(self) -> str:
        """Path from the root, for messages."""
        return str(self.path.relative_to(ROOT))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "a relative import may not leave its folder"
            if node.level == 0:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _sources(*folders: str) -> list[Source]:
    return [Source(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


PACKAGE = {source.path.stem: source for source in _sources("src/quantkit")}
TESTS = _sources("tests")
ALL = [*PACKAGE.values(), *TESTS, *_sources("benchmarks"), Source(ROOT / "conftest.py")]


def inside(source: Source) -> set[str]:
    """Modules of the package that a source imports."""
    dotted = (name.split(".") for name in source.imports if name.startswith("quantkit."))
    return {parts[1] for parts in dotted}


def libraries(source: Source) -> set[str]:
    """Top-level packages that a source imports, other than ours and the standard library's."""
    return (
        {name.partition(".")[0] for name in source.imports}
        - set(sys.stdlib_module_names)
        - {"quantkit", "tests"}
    )


def reached(name: str) -> set[str]:
    """Modules of the package that are loaded with one, itself included."""
    seen, todo = {name}, [name]
    while todo:
        for other in inside(PACKAGE[todo.pop()]) & set(PACKAGE):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def test_the_tables_name_modules_that_exist() -> None:
    assert WRITER | JUDGE | SHARED | PURE | set(ALLOWED) | {ENGINE_PLUGIN} <= set(PACKAGE)


@pytest.mark.parametrize("name", sorted(JUDGE))
def test_the_judge_shares_nothing_with_the_writers(name: str) -> None:
    assert inside(PACKAGE[name]) <= JUDGE | SHARED
    assert libraries(PACKAGE[name]) <= JUDGE_LIBRARIES
    assert reached(name) & WRITER == set()


@pytest.mark.parametrize("name", sorted(set(PACKAGE) - JUDGE - {"cli", "__main__"}))
def test_nothing_but_the_command_line_asks_the_judge(name: str) -> None:
    assert inside(PACKAGE[name]) & JUDGE == set()


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_the_lowest_floor_rests_on_nothing_else(name: str) -> None:
    assert inside(PACKAGE[name]) <= ALLOWED[name]


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_core_does_no_input_or_output(name: str) -> None:
    assert {each.partition(".")[0] for each in PACKAGE[name].imports} & TOUCHES_THE_WORLD == set()
    calls = {
        node.func.id
        for node in ast.walk(PACKAGE[name].tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls & {"print", "open", "input", "eval", "exec"} == set()


@pytest.mark.parametrize("name", sorted(set(PACKAGE) - {ENGINE_PLUGIN}))
def test_the_package_needs_no_engine_and_no_test_library(name: str) -> None:
    assert libraries(PACKAGE[name]) & OUTSIDE_OF_PACKAGE == set()
    assert not any(each.startswith("tests") for each in PACKAGE[name].imports)


@pytest.mark.parametrize("name", sorted(PACKAGE))
def test_no_module_of_the_package_imports_itself_in_a_circle(name: str) -> None:
    for other in inside(PACKAGE[name]) & set(PACKAGE) - {name}:
        assert name not in reached(other), f"{name} and {other} import each other"


@pytest.mark.parametrize("name", sorted(set(PACKAGE) - {"__main__"}))
def test_nothing_imports_the_command_line(name: str) -> None:
    assert "cli" not in inside(PACKAGE[name])


@pytest.mark.parametrize("part", sorted(FLOORS))
def test_imports_of_tests_go_one_way(part: str) -> None:
    sources = [source for source in TESTS if source.path.relative_to(ROOT).parts[1] == part]
    assert sources
    for source in sources:
        parts = {name.split(".")[1] for name in source.imports if name.startswith("tests.")}
        assert parts <= FLOORS[part] | {part}, source.name


def test_every_part_of_tests_has_a_floor() -> None:
    parts = {
        source.path.relative_to(ROOT).parts[1]
        for source in TESTS
        if len(source.path.relative_to(ROOT).parts) > 2
    }
    assert parts == set(FLOORS)


def room_of(parts: tuple[str, ...]) -> str:
    """Room of the workshop in which a module lies, given its path or dotted name after ``tests.support``."""
    return parts[0] if (ROOT / "tests/support" / parts[0]).is_dir() else ""


def test_the_workshop_has_these_rooms() -> None:
    folders = {path.parent.name for path in (ROOT / "tests/support").glob("*/__init__.py")}
    assert folders == set(ROOMS) - {""}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_workshop_import_downwards(room: str) -> None:
    below = set(ROOMS[: ROOMS.index(room) + 1])
    for source in _sources("tests/support"):
        if room_of(source.path.relative_to(ROOT / "tests/support").parts) == room:
            asked = [name.split(".")[2:] for name in source.imports if name.startswith("tests.support.")]
            assert {room_of(tuple(parts)) for parts in asked} <= below, source.name


def test_each_file_says_what_lives_in_it_and_is_short() -> None:
    for source in ALL:
        assert len(source.path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE, source.name
        preface = (ast.get_docstring(source.tree) or "").splitlines()
        assert 1 <= len(preface) <= LONGEST_PREFACE, source.name


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, less what is defined inside it; 0 for one that returns a table and does nothing else."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return 0
    nested = (n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))
    return lines_of(function) - sum(map(lines_of, nested))


def lines_of(node: ast.stmt) -> int:
    """Lines from a definition's first to its last."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_are_short() -> None:
    for source in ALL:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert own_lines(node) <= LONGEST_FUNCTION, f"{node.name} in {source.name}"


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def f():\n" + "    x = 1\n" * 61, 62),
        ("def f():\n    return [\n" + "        1,\n" * 61 + "    ]\n", 0),
        ("def f():\n    def g():\n" + "        x = 1\n" * 61 + "    return g\n", 2),
    ],
    ids=["statements", "table", "nested"],
)
def test_tables_and_nested_functions_are_counted_apart(code: str, lines: int) -> None:
    function = ast.parse(code).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert own_lines(function) == lines
