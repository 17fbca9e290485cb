"""Checks of a Markdown page: links, paths, commands, settings and code.

Each check returns a list of problems, one line each, so that a test can show all at once.
"""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer
import yaml

from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig, load_config, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.request import split_words
from hgpo_rllib.run.grid import parse_axis
from hgpo_rllib.section import Section
from hgpo_rllib.studies.settings import parse_study
from tests.paths import ROOT

FENCE = re.compile(r"^ {0,3}(```+|~~~+)\s*([\w-]*)")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)|<(https?://[^>]*)>"
)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
SHELLS = ("", "bash", "sh", "shell", "console")
FOLDERS = (
    "docker",
    "docs",
    "env_wrappers",
    "examples",
    "hgpo_rllib",
    "requirements",
    "tests",
    "tuned_examples",
)
PATH = re.compile(rf"^({'|'.join(FOLDERS)})/[\w./*-]*$")
PLACEHOLDER = re.compile(r"@[A-Z_]{2,}@|\b(TODO|FIXME|XXX)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    text: str
    line: int
    """Of its first line in the page, from 1."""


def split(page: str) -> tuple[str, list[Block]]:
    """Return a page's prose, with empty lines in place of code blocks, and the blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    inside: list[str] = []
    fence = language = ""
    for number, line in enumerate(page.splitlines(), 1):
        found = FENCE.match(line)
        if not fence and found:
            fence, language, inside = found[1], found[2], []
        elif fence and line.strip() == fence:
            blocks.append(Block(language, "\n".join(inside) + "\n", number - len(inside)))
            fence = ""
        elif fence:
            inside.append(line)
        prose.append("" if fence or found else line)
    return "\n".join(prose), blocks


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub creates them."""
    prose, _ = split(page)
    seen: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(prose):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(name, 0)
        seen[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def link_problems(path: Path, page: str) -> list[str]:
    """Return relative links to missing files or headings, and malformed URLs."""
    prose, _ = split(page)
    found = [link or address for link, address in LINK.findall(CODE.sub("", prose))]
    return [problem for target in found for problem in _target_problems(path, page, target)]


def _target_problems(path: Path, page: str, target: str) -> Iterator[str]:
    address = urlsplit(target)
    if address.scheme:
        host = address.hostname or ""
        if address.scheme not in ("http", "https") or not re.fullmatch(r"[\w-]+(\.[\w-]+)+", host):
            yield f"{target}: no address"
        return
    file = path if not address.path else (path.parent / unquote(address.path)).resolve()
    if not file.is_relative_to(ROOT) or not file.exists():
        yield f"{target}: no such file"
    elif address.fragment:
        text = page if file == path else file.read_text() if file.suffix == ".md" else ""
        if address.fragment not in anchors(text):
            yield f"{target}: no such heading"


def path_problems(page: str) -> list[str]:
    """Return missing files that prose names in code font, and leftover placeholders."""
    prose, _ = split(page)
    named = [match[0].strip("`").strip() for match in CODE.finditer(prose)]
    named = [name for name in named if PATH.match(name)]
    missing = [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    marks = [match[0] for match in PLACEHOLDER.finditer(page)]
    return [f"{name}: no such file" for name in missing] + [f"{mark}: left over" for mark in marks]


def command_problems(page: str) -> list[str]:
    """Return invalid commands of this project in shell blocks."""
    return [
        f"line {block.line}: {' '.join(words)}: {problem}"
        for block in split(page)[1]
        if block.language in SHELLS
        for words in commands(block.text)
        for problem in _command_problems(words)
    ]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell script, without leading variables."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # a quotation mark without its pair: no command, but printed text
        command: list[str] = []
        for word in [*words, ";"]:
            if word in ("&&", "||", "|", ";", "&"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"\w+=", word):
                command.append(word)


def _command_problems(words: list[str]) -> list[str]:
    if any(word.startswith("[") for word in words):
        return []  # a synopsis: [--seeds N]
    if "--" in words:  # ray job submit … -- hgpo …
        return _command_problems(words[words.index("--") + 1 :])
    match Path(words[0]).name, words[1:]:
        case "hgpo", arguments:
            return hgpo_problems(arguments)
        case "make", arguments:
            return _make_problems(arguments)
        case ("python", ["-m", module, *_]) if module.startswith("hgpo_rllib"):
            return [] if (ROOT / f"{module.replace('.', '/')}.py").is_file() else ["no such module"]
    return []


def hgpo_problems(arguments: list[str]) -> list[str]:
    """Return unknown sub-commands and options, invalid values, missing run files, bad overrides."""
    command = typer.main.get_command(app)
    context = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for name in list(arguments):
                if not hasattr(command, "commands"):
                    break
                if name not in command.commands:
                    return [f"no sub-command {name}"]
                command, arguments = command.commands[name], arguments[1:]
            context = command.make_context(command.name, list(arguments))
    except Exception as error:  # click's own, which is bundled with typer
        if type(error).__name__ == "Exit":  # after --help
            return []
        return [error.format_message() if hasattr(error, "format_message") else str(error)]
    if "checkpoint" in context.params:  # whose settings are those of a run, or the defaults
        return _run_problems(Path("/dev/null"), context.params["overrides"])
    if "words" in context.params:  # of hgpo evaluate: perhaps a model, then settings
        return _run_problems(Path("/dev/null"), split_words(context.params["words"] or [])[1])
    if "run" in context.params and "overrides" in context.params:  # of hgpo bench scale
        return _run_problems(Path("/dev/null"), context.params["overrides"])
    if "source" in context.params:  # a run, a run file, or a result
        source = context.params["source"]
        file = source if source.suffix == ".yaml" else Path("/dev/null")
        return _run_problems(file, context.params["overrides"])
    if "overrides" in context.params and context.params.get("config") is not None:
        return _run_problems(**context.params)
    return []


def _run_problems(
    config: Path, overrides: list[str] | None, grid: list[str] | None = None, **_: object
) -> list[str]:
    file = ROOT / config
    if not file.is_file() and config.parts[0] in FOLDERS:
        return [f"no such file: {config}"]
    try:
        axes = [parse_axis(text) for text in grid or []]
        points = [f"{axis.key}={json.dumps(value)}" for axis in axes for value in axis.values]
        for changes in [[], *([point] for point in points)]:
            load_config(
                file if file.is_file() else Path("/dev/null"), [*(overrides or []), *changes]
            )
    except ConfigError as error:
        return [str(error)]
    return []


def _make_problems(arguments: list[str]) -> list[str]:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    variables = dict(word.partition("=")[::2] for word in arguments if "=" in word)
    asked = [word for word in arguments if "=" not in word]
    problems = [f"no target {word}" for word in asked if word not in targets]
    problems += [f"no variable {name}" for name in variables.keys() - {"ARGS", "CONFIG", "PYTHON"}]
    if asked == ["train"]:
        config = variables.get("CONFIG", "tuned_examples/alfworld_pocket.yaml")
        problems += hgpo_problems(["train", config, *shlex.split(variables.get("ARGS", ""))])
    return problems


def yaml_problems(page: str) -> list[str]:
    """Return blocks that are not YAML, and run files and studies with unknown settings."""
    problems = []
    for block in split(page)[1]:
        if block.language not in ("yaml", "yml"):
            continue
        try:
            data = yaml.safe_load(block.text)
            if isinstance(data, dict) and "arms" in data:
                parse_study(data, "study").sweep()
            elif isinstance(data, dict) and data.keys() & {"extends", *RunConfig.model_fields}:
                parse_config({key: value for key, value in data.items() if key != "extends"})
        except (yaml.YAMLError, ConfigError) as error:
            problems.append(f"line {block.line}: {' '.join(str(error).split())}")
    return problems


def python_problems(page: str) -> list[str]:
    """Return blocks that do not compile, have unknown imports or settings, or print something
    other than the block of text that follows them."""
    problems = []
    _, blocks = split(page)
    for block, after in zip(blocks, [*blocks, None][1:], strict=True):
        if block.language != "python":
            continue
        try:
            tree = ast.parse(block.text)
        except SyntaxError as error:
            problems.append(f"line {block.line}: {error.msg}")
            continue
        found = [*_import_problems(tree), *_setting_problems(tree)]
        if after and after.language == "text" and not found:
            printed = run(block.text)
            if printed != after.text:
                found.append(f"prints\n{printed}")
        problems += [f"line {block.line}: {problem}" for problem in found]
    return problems


def run(code: str) -> str:
    """Return the output of a script."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<page>", "exec"), {"__name__": "__page__"})
    return printed.getvalue()


def _import_problems(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(str(node.module), alias.name) for alias in node.names]
        for module, name in names:
            try:
                imported = importlib.import_module(module)
                if name and not hasattr(imported, name):
                    importlib.import_module(f"{module}.{name}")
            except ImportError as error:
                yield str(error)


@cache
def setting_names() -> set[str]:
    """Return the fields of all sections."""
    sections = [value for _, value in RunConfig() if isinstance(value, Section)]
    return {name for section in sections for name in type(section).model_fields}


def _setting_problems(tree: ast.Module) -> Iterator[str]:
    """Yield keywords of `.training(…)` that are not a setting of a section."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "training":
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in setting_names():
                    yield f"training({keyword.arg}=…): no such setting"
