"""Every refusal passes the value at fault, and a rule: the source is read, not run."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "src" / "quietbit", ROOT / "packages" / "lab" / "src")
VAGUE = {"another", "others", "other", "something else", "wrong"}
# The places of the value and of the rule among the arguments, self not counted.
REQUIRE = {"value": 2, "rule": 3}
OF = {"rule": 1, "value": 2}
REFUSE_PAYLOAD = {"rule": 1, "value": 2}


def places(call):
    """Return where a refusal has its value and rule; nothing for other calls."""
    function = call.func
    if isinstance(function, ast.Name):
        return {"require": REQUIRE, "refuse_payload": REFUSE_PAYLOAD}.get(function.id, {})
    if isinstance(function, ast.Attribute) and function.attr == "of":
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id == "InvalidParameter":
            return OF
    return {}


def literal(call, name, place):
    """Return an argument that is text in the source; None for any other."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == name]
    given = [*call.args[place : place + 1], *named]
    if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
        return given[0].value
    return None


def faults(source):
    """Yield the line and the fault of every refusal with a vague value or an empty rule."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        for name, place in places(node).items():
            text = literal(node, name, place)
            if text is None:
                continue
            plain = text.strip().lower()
            if name == "value" and plain in VAGUE:
                yield f"line {node.lineno}: the value is {text!r}; pass what was given"
            if name == "rule" and not plain:
                yield f"line {node.lineno}: the rule is empty"


@pytest.mark.parametrize("folder", SOURCES, ids=lambda folder: folder.parent.name)
def test_refusals_pass_the_value_and_a_rule(folder):
    paths = sorted(folder.rglob("*.py"))
    assert paths
    found = [
        f"{path.relative_to(ROOT)}, {fault}"
        for path in paths
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "snippet",
    [
        'require(fits, "trust", "another", "local")',
        'require(fits, "trust", value="Others", rule="local")',
        'InvalidParameter.of("trust", "local", "something else")',
        'InvalidParameter.of("trust", rule="local", value="wrong")',
        'refuse_payload("length", "24 bytes", "other")',
        'require(fits, "trust", trust, "")',
        'require(fits, "trust", trust, rule=" ")',
        'InvalidParameter.of("trust", "", trust)',
    ],
)
def test_a_vague_value_and_an_empty_rule_are_found(snippet):
    assert len(list(faults(snippet))) == 1


@pytest.mark.parametrize(
    "snippet",
    [
        'require(fits, "trust", trust, "local")',
        'InvalidParameter.of("epsilon", "given")',
        'InvalidParameter.of("other", "left out", other)',
        'Cost.of("other", "", "another")',
    ],
)
def test_a_plain_refusal_passes(snippet):
    assert not list(faults(snippet))
