"""README, docs and CONTRIBUTING: links are followed, commands parsed, programs compiled, and the quick ones run."""

from __future__ import annotations

import ast
import builtins
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.exceptions import Exit
from click.testing import CliRunner

import tuner
from tests.cli.test_command_docs import parse
from tests.support.commands import refused
from tests.support.generated_study import write_study
from tuner.cli.main import cli

ROOT = Path(tuner.__file__).parents[1]
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN += sorted((ROOT / "docs" / "examples").glob("*.md"))
GENERATED = sorted((ROOT / "docs" / "commands").glob("*.md"))
OTHERS = [ROOT / "results" / "README.md", ROOT / "tests" / "emulated_cuda" / "README.md"]
QUICK = {"estimate", "export", "plan", "report", "results", "status"}
WITHOUT = r"--(?:watch|config-path|help|resume|address)\b"  # a browser, more files, a cluster
NEEDS_MORE = re.compile(WITHOUT + r"|[\w.]+/ |[\w.]+/$|ml-100k|\bDIR\b|…|[<|]")  # or data of the reader's
MOST_WORDS = 15_000
OF_PROSE = re.compile(r"`((?:tuner?|scripts/\w+) [^`\n]+)`")
OF_THE_READER = {"LitModel", "build", "datamodule", "model", "train_an_epoch", "train_set", "tuner", "val_set"}
OF_THE_READER |= {"item_features", "testset", "trainset", "user_features"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


pages = pytest.mark.parametrize("path", WRITTEN, ids=name_of)


def blocks(path: Path, *kinds: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands(path: Path) -> list[tuple[str, str]]:
    """The commands in a page's console blocks, each with the line below it."""
    line = r"^\$ (?:scripts/(?=tuner?\b))?((?:tuner?|scripts/\w+)\b.*?)(?: +#.*)?$\n?(.*)"
    return re.findall(line, "\n".join(blocks(path, "console")), re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_all_pages_together_are_short() -> None:
    pages_to_read = [path for path in WRITTEN if path.name != "CONTRIBUTING.md"]
    assert sum(len(path.read_text().split()) for path in pages_to_read) <= MOST_WORDS


@pytest.mark.parametrize("path", [*WRITTEN, *GENERATED, *OTHERS], ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text()):
        file = path.parent / target if target else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_every_page_that_the_code_names_exists() -> None:
    files = [file for room in ("tuner", "scripts", "tests") for file in (ROOT / room).rglob("*.py")]
    texts = [file.read_text() for file in [*files, ROOT / "pyproject.toml"]]
    named = {page for text in texts for page in re.findall(r"\bdocs/[a-z_/]+\.(?:md|ipynb)", text)}
    assert named
    assert [page for page in named if not (ROOT / page).exists()] == []


@pages
def test_every_command_can_be_typed(path: Path) -> None:
    """Those of sentences, too, unless they leave something out."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line, _ in commands(path)] + [line for line in OF_PROSE.findall(prose) if "…" not in line]
    for line in lines:
        if line.startswith("scripts/"):
            script_takes(line)
        elif len(words := line.split()[1:]) != 1 or words[0] not in cli.commands:  # else it is a name
            with suppress(Exit):  # --help
                assert parse(line) in cli.commands


def script_takes(line: str) -> None:
    """Checks that a script exists, and that its source has the options."""
    script, *words = shlex.split(line)
    if script == "scripts/benchmark":
        sources = list((ROOT / "scripts").glob(f"*/{words.pop(0)}.py"))
    else:
        sources = [file for file in (ROOT / script, ROOT / f"{script}.py") if file.exists()]
    assert sources, line
    if script not in ("scripts/test", "scripts/test_emulated"):  # they hand everything to pytest
        source = "".join(file.read_text() for file in sources)
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == [], line


@pages
def test_every_program_compiles(path: Path) -> None:
    for program in blocks(path, "python"):
        compile(program, name_of(path), "exec")
        assert undefined(program) <= OF_THE_READER or "import " not in program, program


def undefined(program: str) -> set[str]:
    """The names that a program uses and does not define."""
    nodes = list(ast.walk(ast.parse(program)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {"__name__", *dir(builtins)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    known |= {(node.asname or node.name).split(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return {node.id for node in names} - known


def with_few_trials(program: str) -> str:
    """The same with two trials in this process; several threads for such small models wait for each other."""
    return re.sub(r"\b(num_samples|n_trials)=\d+", r"\1=2, in_process=True, threads=1", program)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all named programs, some studies, and no modules of its own when the test has ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in WRITTEN:
        keep(path, tmp_path)
    write_study(tmp_path / "results" / "20261121-100207-study", 8)
    for file in tmp_path.glob("results/*/*"):
        file.write_text(file.read_text().replace("_loss", "_rmse").replace('"toy"', '"graphsage"'))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def keep(path: Path, folder: Path) -> None:
    """Writes a page's programs that begin with a file's name, and the YAML files that the line above them names."""
    files = [program.partition("\n")[::2] for program in blocks(path, "python") if re.match(r"# \w+\.py\n", program)]
    named = r"`(\w+\.(?:yaml|toml))`[^`]*\n\n```(?:yaml|toml)\n(.*?)^```"
    files += re.findall(named, path.read_text(), re.MULTILINE | re.DOTALL)
    for name, text in files:
        (folder / name.removeprefix("# ")).write_text(with_few_trials(text))


def study_of(line: str) -> None:
    """Makes the studies that a command names."""
    for word in re.findall(r"(?<= )(?<!--output )(?:study|results/[\w-]+)(?= |$)", line):
        if not Path(word).exists():
            shutil.copytree("results/20261121-100207-study", word)


@pytest.mark.long
@pages
def test_commands_do_what_the_page_says(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quick ones; of those that begin a study, the plan."""
    keep(path, folder)
    for line, below in commands(path):
        words = shlex.split(line)[1:]
        if below.startswith("error: "):
            assert refused(capsys, *words) == below
        elif not line.startswith("tune") or NEEDS_MORE.search(line):
            continue
        elif words[0] in {*QUICK, "script"} or words[0] not in cli.commands:
            study_of(line)
            result = CliRunner().invoke(cli, shortened(words))
            assert result.exit_code == 0, f"{line}: {result.output}"


def shortened(words: list[str]) -> list[str]:
    """A command with one configuration of a mode, and without training."""
    if words[0] not in QUICK and "--dry-run" not in words:
        words.insert(0 if words[0].startswith("-") else 1, "--dry-run")
    return [*words, "--limit", "1"] if "--mode" in words and not {"--only", "--limit"} & {*words} else words


@pages
def test_whole_programs_run(path: Path, folder: Path) -> None:
    keep(path, folder)
    study_of(" study")
    for number, program in enumerate(blocks(path, "python")):
        if undefined(program) or "argparse" in program or "load_best(" in program:  # arguments, a study's model
            continue
        file = folder / f"program_{number}.py"
        file.write_text(with_few_trials(program))
        assert runpy.run_path(str(file), run_name="__main__"), "it ran to its end"


def test_the_class_is_tuned(folder: Path) -> None:
    result = tuner.run("points:Points", config=[{"hidden": 8, "epochs": 1}], in_process=True, threads=1)
    assert [(row["status"], result.best_value) for row in result.rows] == [("completed", pytest.approx(0.5, abs=0.2))]


def test_the_script_is_tuned(folder: Path) -> None:
    page = ROOT / "docs" / "function_or_script.md"
    keep(page, folder)
    (line,) = (line for line, _ in commands(page) if line.startswith("tuner script "))
    words = shlex.split(line.replace("--num-samples 6", "--num-samples 1"))[1:]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0
    assert "Again: python train.py --lr 0." in result.output
