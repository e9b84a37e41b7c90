"""Reading a job: values of Python without running it, and input that means harm."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from check.kit import job, nvflare_job, verdict, write
from cli.kit import assert_refused, shell
from quietbit.check.law import LAWS
from quietbit.check.program import Program
from quietbit.check.reader import Source, read_job
from quietbit.check.values import Given, Unknown
from quietbit.errors import QuietbitError
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import NodeName
from quietbit.federation.own_round import OwnRound
from quietbit.federation.plan import Plan
from quietbit.node.gate import LocalGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Simulation

WORDS = ["task_result_filters", "components", "executors", "workflows", "tasks", "filters", "args"]
NAMES = [
    "epsilon",
    "delta",
    "clipping_norm",
    "sensitivity",
    "gamma",
    "fraction",
    "adjacency",
    "off",
]
MOST_SECONDS = 5.0
MOST_MEGABYTES = 200


def value(text: str, config=None, name: str = "epsilon"):
    sources = [Source(f"f{place}.py", part) for place, part in enumerate(text.split("# file\n"))]
    program = Program(sources, Given({}), {"LocalDpMod": ("clip", "epsilon")}, config or {})
    (use,) = program.uses("LocalDpMod")
    return use.arguments.get(name)


@pytest.mark.parametrize(
    "text",
    [
        "LocalDpMod(1.0, 8.0)",
        "LocalDpMod(epsilon=8)",
        "E = 8\nF = E\nLocalDpMod(epsilon=F)",
        "from f1 import E\nLocalDpMod(epsilon=E)\n# file\nE = float(8)",
        "import f1\nLocalDpMod(epsilon=f1.E)\n# file\nE = 8",
        "settings = {'epsilon': 8, 'clip': 1}\nLocalDpMod(**settings)",
        "def f(context):\n  LocalDpMod(epsilon=context.run_config['dp.e'])",
        "def f(context):\n  c = context.run_config\n  LocalDpMod(epsilon=c.get('dp.e', 3))",
        "def f(context):\n  LocalDpMod(epsilon=context.run_config.get('other', 8))",
    ],
)
def test_a_value_that_the_text_fixes_is_known(text):
    assert value(text, {"dp.e": 8.0}) == 8.0


@pytest.mark.parametrize(
    "text",
    [
        "LocalDpMod(epsilon=os.environ['E'])",
        "E = 3\nE = 8\nLocalDpMod(epsilon=E)",
        "E = 3\nE += 5\nLocalDpMod(epsilon=E)",
        "for e in (1, 8):\n  LocalDpMod(epsilon=e)",
        "def f(e=8):\n  LocalDpMod(epsilon=e)\nf(9)",
        "E = 8\ndef f(E):\n  LocalDpMod(epsilon=E)",
        "E = 8\nLocalDpMod(epsilon=args.E)",
        "s = {'epsilon': 8}\ns['epsilon'] = 9\nLocalDpMod(epsilon=s['epsilon'])",
        "s = {'epsilon': 8}\ns.update(epsilon=9)\nLocalDpMod(epsilon=s['epsilon'])",
        "E = 8.5\nLocalDpMod(epsilon=int(E))",
        "import f1\nf1.E = 9\nLocalDpMod(epsilon=f1.E)\n# file\nE = 8",
        "p.add_argument('--e')\nLocalDpMod(epsilon=args.e)",
        "def f(e):\n  LocalDpMod(epsilon=e)\nf(*values)",
        "a = b\nb = a\nLocalDpMod(epsilon=a)",
        "LocalDpMod(epsilon=9e9 ** 9e9)",
        "LocalDpMod(epsilon=8 if fast else 9)",
    ],
)
def test_a_value_that_is_computed_is_unknown_with_its_line(text):
    found = value(text)
    assert isinstance(found, Unknown)
    assert found.place.file == "f0.py"


def test_arguments_that_cannot_be_seen_are_not_defaults(tmp_path):
    text = "def f(**options):\n  ClientApp(mods=[LocalDpMod(**options)])\nstrategy.start(g, num_rounds=1)\n"
    missing = verdict(job(tmp_path, app_py=text)).missing
    assert {found.name for found in missing} == {"clipping_norm", "sensitivity", "epsilon", "delta"}


def test_a_given_value_fills_what_the_job_leaves_open(tmp_path):
    text = "ClientApp(mods=[LocalDpMod(1.0, 1.0, E, 1e-5)])\nstrategy.start(g, num_rounds=1)\n"
    found = verdict(job(tmp_path, app_py=text), "epsilon=0.5", accepted=["metrics"])
    assert (found.claim.epsilon, found.holds) == (0.5, True)


def test_values_that_double_with_every_line_take_no_time():
    lines = ["x0 = 1"] + [f"x{n} = x{n - 1}.get(1, x{n - 1})" for n in range(1, 29)]
    start = time.process_time()
    assert isinstance(value("\n".join([*lines, "LocalDpMod(epsilon=x28)"])), Unknown)
    assert time.process_time() - start < MOST_SECONDS


def hostile(folder: Path, name: str) -> Path:
    """Make input that means harm."""
    client = "config_fed_client"
    texts = {
        "empty folder": {},
        "no job": {"README.md": "hello"},
        "python of no engine": {"a.py": "print(1)"},
        "broken json": {f"{client}.json": '{"task_result_filters": ['},
        "deep json": {f"{client}.json": '{"a":' + "[" * 90_000 + "]" * 90_000 + "}"},
        "deep values": {f"{client}.json": '{"a":' + "[" * 60 + "]" * 60 + "}"},
        "json of a list": {f"{client}.json": "[1, 2]"},
        "recursive yaml": {f"{client}.yml": "a: &a\n  b: *a\n"},
        "laughing yaml": {
            f"{client}.yml": "a0: &a0 [x, x]\n"
            + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 31))
        },
        "yaml of objects": {
            f"{client}.yml": "a: !!python/object/apply:os.system ['touch pwned']\n"
        },
        "including hocon": {f"{client}.conf": 'include "/etc/passwd"\n'},
        "including an address": {f"{client}.conf": 'a = 1\ninclude url("http://localhost/x")\n'},
        "deep hocon": {f"{client}.conf": "a = " + "[" * 5000 + "]" * 5000},
        "large hocon": {f"{client}.conf": "a = 1\n" * 100_000},
        "broken python": {"a.py": "def ("},
        "deep python": {"a.py": "x = " + "-" * 190_000 + "1"},
        "python with null": {"a.py": "x\0y"},
        "python in no encoding": {"a.py": b"x = '\xff\xfe\xfa'"},
    }
    folder.mkdir()
    if name in texts:
        for file, text in texts[name].items():
            (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder
    if name == "link":
        (folder / "a.py").symlink_to("/etc/passwd")
    elif name == "pipe":
        os.mkfifo(folder / "a.py")
    elif name == "pipe as the job":
        os.mkfifo(folder / "pipe")
        return folder / "pipe"
    elif name == "absent":
        return folder / "absent"
    elif name == "hundred megabytes of python":
        with (folder / "a.py").open("wb") as file:
            file.truncate(100 * 2**20)
    elif name == "many files":
        for number in range(21):
            (folder / f"{number}.txt").touch()
    else:
        path = folder / "job.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            if name == "zip with dots":
                archive.writestr("../a.py", "x = 1")
            elif name == "zip of 256 megabytes":
                with archive.open(f"{client}.json", "w") as file:
                    for _ in range(16):
                        file.write(bytes(2**24))
            else:
                archive.writestr(f"{client}.json", "{}")
        if name == "broken zip":
            path.write_bytes(path.read_bytes()[:40] + path.read_bytes()[60:])
        return path
    return folder


QUICK = [
    "empty folder",
    "no job",
    "python of no engine",
    "broken json",
    "deep json",
    "deep values",
    "json of a list",
    "recursive yaml",
    "laughing yaml",
    "yaml of objects",
    "including hocon",
    "including an address",
    "deep hocon",
    "large hocon",
    "broken python",
    "deep python",
    "python with null",
    "python in no encoding",
    "link",
    "pipe",
    "pipe as the job",
    "absent",
    "many files",
    "zip with dots",
    "broken zip",
]


@pytest.mark.parametrize("name", QUICK)
def test_bad_input_is_one_sentence(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quietbit.check.reader.MOST_ENTRIES", 20)
    path = hostile(tmp_path / "job", name)
    before = sorted(tmp_path.rglob("*"))
    assert_refused(shell(capsys, "check", path))
    assert sorted(tmp_path.rglob("*")) == before


MEASURED = """
import sys, time
from pathlib import Path
from quietbit.cli.main import main
for path in sys.argv[1:]:
    start = time.process_time()
    code = main(["check", path])
    print("said", code, time.process_time() - start)
words = Path("/proc/self/status").read_text().split()
print(int(words[words.index("VmHWM:") + 1]) / 1024)  # of this program, not of what started it
"""
LARGE = ["hundred megabytes of python", "zip of 256 megabytes", "laughing yaml", "deep python"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_bad_and_large_input_takes_little_time_and_memory(tmp_path):
    """In one process, with the most Python that is read as the last."""
    paths = [hostile(tmp_path / name, name) for name in LARGE]
    most = {"a.py": "x = [" + "1, f(a=2), " * 18_000 + "]\n", "b.py": "GaussianDpEvent(2.0)"}
    paths.append(write(tmp_path / "most", most))
    command = [sys.executable, "-c", MEASURED, *map(str, paths)]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.splitlines()
    said = [line.split()[1:] for line in lines if line.startswith("said")]
    assert [code for code, _ in said] == ["2", "2", "2", "2", "0"]
    for name, (_, seconds) in zip([*LARGE, "most"], said, strict=True):
        assert float(seconds) < MOST_SECONDS, name
    assert float(lines[-1]) < MOST_MEGABYTES


def test_a_folder_and_its_zip_are_the_same_job(tmp_path):
    folder = nvflare_job(tmp_path / "job")
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for path in folder.rglob("*.json"):
            archive.write(path, path.relative_to(folder))
    names = [
        [source.name for source in read_job(path).ending(".json")]
        for path in (folder, tmp_path / "job.zip")
    ]
    assert names[0] == names[1]
    assert len(names[0]) == 2


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-3, 3)
    | st.sampled_from(["", "train", "{x}"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2)
    ),
    max_leaves=4,
)
FILTER = st.fixed_dictionaries(
    {
        "path": st.sampled_from(
            ["a.SVTPrivacy", "a.LocalDifferentialPrivacy", "q.LocalPrivacy", "B"]
        )
    },
    optional={"args": st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3) | ANYTHING},
)
CHAIN = st.fixed_dictionaries(
    {"tasks": st.just(["train"]) | ANYTHING, "filters": st.lists(FILTER, max_size=2)}
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {}, optional={word: ANYTHING | st.lists(CHAIN, max_size=2) for word in WORDS}
    )
)
def test_a_configuration_of_any_shape_is_judged_or_refused(table):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config_fed_client.json").write_text(json.dumps(table))
        with contextlib.suppress(QuietbitError):
            verdict(Path(folder), given={"dimension": 1000})


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(LAWS)),
    st.lists(
        st.sampled_from(
            [
                "1",
                "-1",
                "None",
                "'x'",
                "[]",
                "[1]",
                "{}",
                "f()",
                "*a",
                "1e999",
                "1e-300",
                "1e300",
                "[1, 'x']",
            ]
        )
    ),
    st.booleans(),
)
def test_a_call_of_any_arguments_is_judged_or_refused(name, arguments, by_name):
    if by_name:
        pairs = zip(LAWS[name][0], arguments, strict=False)
        arguments = [f"{key}={value}" for key, value in pairs if value != "*a"]
    with tempfile.TemporaryDirectory() as folder:
        text = f"f(mods=[{name}({', '.join(arguments)})])\nflip_local_dp_mod\nBatchNorm1d\n"
        (Path(folder) / "app.py").write_text(text)
        with contextlib.suppress(QuietbitError):
            verdict(Path(folder), given={"dimension": 1000, "samples": 10})


LOCAL = "app = ClientApp(mods=[LocalDpMod(1.0, 1.0, {epsilon}, 1e-5)])\nstrategy.start(g, num_rounds={rounds})\n"


@pytest.mark.parametrize(
    ("epsilon", "rounds", "words", "code"),
    [
        (0.5, 1, ["--accept", "metrics"], 0),
        (0.5, 1, [], 1),
        (0.5, 9, ["--accept", "metrics"], 1),
        (0.5, 9, ["--accept", "metrics", "--max-epsilon", "8"], 0),
        ("E", 1, ["--accept", "metrics"], 3),
        ("E", 1, ["--accept", "metrics", "--set", "epsilon=0.5"], 0),
        (0.5, "R", ["--accept", "metrics"], 3),
        (0.5, "R", ["--accept", "metrics", "--rounds", "1"], 0),
        (0.5, 1, ["--set", "epsilon=3"], 2),
        (0.5, 1, ["--set", "epsilon"], 2),
        (0.5, 1, ["--rounds", "7"], 2),
    ],
)
def test_exit_codes(tmp_path, capsys, epsilon, rounds, words, code):
    path = job(tmp_path, app_py=LOCAL.format(epsilon=epsilon, rounds=rounds))
    assert shell(capsys, "check", path, *words).code == code


def test_json_has_the_fields_that_its_page_lists(tmp_path, capsys):
    path = job(tmp_path, app_py=LOCAL.format(epsilon=10, rounds=20))
    found = shell(capsys, "check", path, "--attack", "--json").json
    page = (Path(__file__).parents[2] / "docs/how-to/check-a-job.md").read_text(encoding="utf-8")
    for name in [*found, *found["rows"][0]]:
        assert f"`{name}`" in page
    assert (found["schema"], found["holds"]) == (1, False)
    update = found["rows"][0]
    assert (update["file"], update["line"], update["law"]) == ("app.py", 1, "LocalDpMod")
    assert update["refuted_epsilon"] <= update["epsilon_zero_out"] < update["epsilon_replace_one"]
    assert {reason["reason"] for reason in update["reasons"]} == {"formula", "per_round"}


def test_people_read_the_verdict_first_and_the_remedy_last(tmp_path, capsys):
    path = job(tmp_path, app_py=LOCAL.format(epsilon=10, rounds=20))
    result = shell(capsys, "check", path, "--dimension", 10_000, "--clients", 3)
    lines = result.out.splitlines()
    assert lines[0].startswith("The claim of epsilon 10 per round does not hold: epsilon 81.")
    assert "quietbit.nvflare" not in result.out, "the line is for the engine of the job"
    assert "which takes noise of 2.24 times the clip" in result.out
    assert "PrivateClientApp(epsilon=10" in result.out
    assert "you cannot have this with 3 sites; protect patients instead" in result.out


def test_the_line_to_write_instead_holds_the_claim(tmp_path, capsys):
    path = job(tmp_path / "app", app_py=LOCAL.format(epsilon=10, rounds=20))
    (line,) = shell(capsys, "check", path, "--json").json["remedy"][:1]
    mended = f"from quietbit.flower import PrivateClientApp\n{line}\n"
    found = verdict(job(tmp_path / "mended", app_py=mended))
    assert (found.holds, found.claim.epsilon) == (True, 10)


def test_the_line_for_nvflare_holds_the_claim(tmp_path, capsys):
    path = nvflare_job(tmp_path / "job", rounds=20)
    line = shell(capsys, "check", path, "--max-epsilon", 10, "--json").json["remedy"][0]
    chain = json.loads(line[line.index("{") : line.rindex("}") + 1])
    assert chain["filters"][0]["args"]["releases"] == 20
    found = verdict(nvflare_job(tmp_path / "mended", rounds=20, task_result_filters=[chain]))
    assert (found.holds, found.claim.epsilon) == (True, 10)


QUIETBIT = """
[tool.flwr.app.config.quietbit]
mechanism = "gaussian"
clip = 0.5
epsilon = 4.0
adjacency = "zero-out"
releases = 20
"""


def test_quietbits_own_app_proves_its_budget(tmp_path, capsys):
    code = "from quietbit.flower import PrivateClientApp\napp = PrivateClientApp()\n"
    path = job(tmp_path, pyproject_toml=QUIETBIT, app_py=code)
    result = shell(capsys, "check", path, "--json")
    assert result.code == 0
    assert 3.9 < result.json["proven_epsilon"] <= 4.0
    assert result.json["rows"][0]["epsilon_replace_one"] is None


LINE = {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0, "releases": 5, "adjacency": "zero-out"}
SAMPLES = {"dataset-size": 2000, "sampling-rate": 0.05, "steps": 20, "learning-rate": 0.5}


def ledger(folder: Path, **line) -> float:
    """Return what the node's ledger holds after the last release of a line of quietbit's own."""
    plan = Plan.read({"mechanism": "gaussian", **line})
    paths = str(folder / "ledger"), str(folder / "counter")
    FileLedger.create(*paths)
    gate = LocalGate(Simulation(), FileLedger(*paths, {}), {})
    arrays = named_arrays({"w": np.zeros(50, np.float32)})
    for number in range(1, plan.releases + 1):
        opened = OwnRound.begin(plan, gate, NodeName(1, 1, None), arrays).opened
        assert opened.request.round == number
        opened.check()
        opened.accept(with_zero=True)
    return gate.spent(opened.request)


@pytest.mark.parametrize("more", [{}, {"samples": SAMPLES}, {"adjacency": "replace-one"}])
def test_a_line_of_quietbit_proves_what_its_ledger_reaches(tmp_path, more):
    line = {**LINE, **more}
    arguments = ", ".join(f"{name}={value!r}" for name, value in line.items())
    app = verdict(job(tmp_path / "app", app_py=f"app = PrivateClientApp({arguments})"))
    member = {"path": "quietbit.nvflare.local.LocalPrivacy", "args": {**line, "spent": "zero"}}
    folder = verdict(nvflare_job(tmp_path / "job", member))
    assert app.proven == folder.proven
    assert 3.9 < app.proven <= 4.0
    assert app.holds
    assert folder.holds
    assert app.releases[0].unit.value == ("sample" if "samples" in more else "client")
    assert app.proven == ledger(tmp_path, **line)


def test_a_recipe_with_a_budget_proves_it(tmp_path):
    text = (
        "add_privacy(recipe, {'quietbit.mechanism': 'gaussian', 'quietbit.clip': 1.0, "
        "'quietbit.epsilon': 4.0, 'quietbit.adjacency': 'zero-out', 'quietbit.releases': 50})"
    )
    assert 3.9 < verdict(job(tmp_path, app_py=text)).proven <= 4.0
