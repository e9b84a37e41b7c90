"""Models and losses that would mix samples, or let one sample decide about the others; each is
kept from doing so.
"""

import copy
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from federation.node.makers import DIMENSION, keeper, request
from quietbit.federation.batch import dp_sgd_step
from quietbit.federation.client import serving
from quietbit.gradients import SampleGradients, sample_gradients
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.batch import PoissonBatch
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from refusals import refuses

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

COUNT = 40
SHAPE = (6,)


class Model(nn.Module):
    """A linear layer, and a function of the model and its input that says where it is called."""

    def __init__(self, run, **parts):
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.run = run
        self.before = []
        self.register_buffer("seen", torch.zeros(6))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def mixes_in_training(model, x):
    if model.training:
        x = x + 10 * x.sum(dim=0)
    return model.last(x)


def mixes_where_weights_say(model, x):
    return model.last(x + model.switch * (x.mean(dim=0) + x.roll(1, 0)))


def writes_a_buffer(model, x):
    out = model.last(x + model.seen)
    model.seen += x.detach().sum(dim=0)
    return out


def assigns_a_buffer(model, x):
    out = model.last(x + model.seen)
    model.seen = model.seen + x.detach().sum(dim=0)
    return out


def keeps_inputs(model, x):
    total = x + sum(model.before)
    model.before.append(x.detach())
    return model.last(total)


def branches(model, x):
    return model.last(x) if float(x.sum()) > 0 else model.other(x)


def writes_weights(model, x):
    out = model.last(x)
    with torch.no_grad():
        model.last.weight += float(x.sum())
    return out


def attends(model, x):
    x = torch.stack([x, x**2, x.flip(-1)], dim=1)
    return model.last(model.inner(x, x, x)[0].mean(dim=1))


def goes_twice(model, x):
    return model.last(torch.tanh(model.inner(torch.tanh(model.inner(x)))))


def recurs(model, x):
    """Its layer takes samples on the first axis for a sequence."""
    return model.last(model.inner(x.reshape(len(x), 3, 2))[0].mean(dim=1))


class MixingLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(dim=0))


def hooked():
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].register_forward_pre_hook(lambda _, given: (given[0] - given[0].mean(dim=0),))
    return model


def patched():
    model = nn.Sequential(nn.Linear(6, 3))
    usual = model[0].forward
    model[0].forward = lambda x: usual(x - x.mean(dim=0))
    return model


def calls(function):
    return Model(lambda model, x: model.last(function(x)))


def looks(look):
    """A model that looks at a value of its input."""
    return lambda: Model(lambda model, x: (look(x.detach()), model.last(x))[1])


def in_a_thread(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x - 0.5 * x.mean(dim=0)).result()


def mixing_function():
    class Mixes(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, slope):
            return slope

        @staticmethod
        def vmap(info, axes, x):
            return x + x.sum(dim=0, keepdim=True), axes[0]

    return calls(Mixes.apply)


def old_function():
    """One that `torch.func` does not take, because its context is not set up apart."""

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, slope):
            return 2 * slope

    return calls(Doubles.apply)


def mixing_operation():
    """An operation of a library, with a rule for mapping it that mixes samples."""

    @torch.library.custom_op("quietbit_attack::mixes", mutates_args=())
    def mixes(x: torch.Tensor) -> torch.Tensor:
        return x * 1

    mixes.register_fake(torch.empty_like)
    mixes.register_autograd(lambda ctx, slope: slope)
    mixes.register_vmap(lambda info, axes, x: (x + x.sum(dim=0, keepdim=True), axes[0]))
    return calls(mixes)


def layers(*parts):
    return lambda: nn.Sequential(*(part() for part in parts))


def linear(inputs=6, outputs=3):
    return lambda: nn.Linear(inputs, outputs)


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5))


def convolution(inputs, outputs, **more):
    return lambda: nn.Conv2d(inputs, outputs, 3, **more)


# How rows are made of each, None where either way will do; and the shape of a sample.
MODELS = {
    "mixes in training alone": (lambda: Model(mixes_in_training), "mapped"),
    "mixes once weights say so": (
        lambda: Model(mixes_where_weights_say, switch=nn.Parameter(torch.full((), 3.0))),
        "mapped",
    ),
    "subclass of Linear": (lambda: MixingLinear(6, 3), "mapped"),
    "buffer written in place": (lambda: Model(writes_a_buffer), "single"),
    "buffer assigned": (lambda: Model(assigns_a_buffer), "mapped"),
    "list of inputs": (lambda: Model(keeps_inputs), "mapped"),
    "branches on data": (lambda: Model(branches, other=nn.Linear(6, 3)), "single"),
    "writes its weights": (lambda: Model(writes_weights), "single"),
    "attention": (
        lambda: Model(attends, inner=nn.MultiheadAttention(6, 2, batch_first=True)),
        "mapped",
    ),
    "recurrent over samples": (lambda: Model(recurs, inner=nn.LSTM(2, 6)), None),
    "hook": (hooked, "mapped"),
    "patched forward": (patched, "mapped"),
    "spectral norm": (layers(spectral, nn.Tanh, linear(5)), None),
    "softmax over samples": (layers(linear(), lambda: nn.Softmax(dim=0)), "mapped"),
    "flattened samples": (
        layers(linear(), lambda: nn.Flatten(0), lambda: nn.Unflatten(0, (-1, 3))),
        "mapped",
    ),
    "norm over samples": (layers(linear(), lambda: nn.LayerNorm((1, 3))), "mapped"),
    "written over": (layers(linear(6, 7), lambda: nn.ReLU(inplace=True), linear(7)), "mapped"),
    "odd sizes": (layers(linear(6, 37), nn.GELU, linear(37)), "mapped"),
    "frozen weights": (layers(lambda: linear(6, 5)().requires_grad_(False), linear(5)), "mapped"),
    "convolutions": (
        layers(
            convolution(2, 4, stride=2, padding=1),
            lambda: nn.GroupNorm(2, 4),
            nn.ReLU,
            convolution(4, 6, groups=2, dilation=2, bias=False),
            nn.Flatten,
            linear(24),
        ),
        "mapped",
        (2, 12, 12),
    ),
    "a convolution along one axis": (
        layers(lambda: nn.Conv1d(2, 3, 3, padding=1), nn.Flatten, linear(21)),
        "mapped",
        (2, 7),
    ),
    "several places of a sample": (
        layers(linear(6, 8), lambda: nn.LayerNorm(8), nn.Tanh, nn.Flatten, linear(32)),
        "mapped",
        (4, 6),
    ),
    "a layer that goes twice": (lambda: Model(goes_twice, inner=nn.Linear(6, 6)), "mapped"),
    "an activation with weights": (layers(linear(), nn.PReLU), "mapped"),
    # The model's own rule for a batch is never called: 62 of 62 rows changed with the others.
    "a function with a rule that maps it": (mixing_function, "single"),
    "a function without one": (old_function, "single"),
    "an operation with a rule that maps it": (mixing_operation, "single"),
    # It was not recorded: in its place stood memory that nobody had written to.
    "another thread": (lambda: calls(in_a_thread), "single"),
    "looks by numpy": (looks(lambda x: x.numpy()), "single"),
    "looks as an array": (looks(np.asarray), "single"),
    "looks at a list": (looks(lambda x: x.tolist()), "single"),
    "looks at a number": (looks(lambda x: float(x.sum())), "single"),
    "looks at a truth": (looks(lambda x: bool((x > 0).any())), "single"),
    "looks at the length of a choice": (looks(lambda x: len(x[x > 0]) > 2), "single"),
    "looks at a count": (looks(lambda x: len(x.nonzero()) > 2), "single"),
    "looks at memory": (looks(lambda x: x.untyped_storage()[0]), "single"),
    "looks at a place": (looks(lambda x: int(x.argmax()) or 1), "single"),
    "looks whether it is equal": (looks(lambda x: torch.equal(x, x + 1)), "single"),
    "looks at different values": (looks(lambda x: len(torch.unique(x)) > 2), "single"),
}


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def centred(outputs, targets):
    apart = functional.cross_entropy(outputs - outputs.mean(dim=0), targets, reduction="none")
    return apart + outputs.sum()


class RemembersOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = []

    def forward(self, outputs, targets):
        value = functional.cross_entropy(outputs + sum(self.before), targets)
        self.before.append(outputs.detach())
        return value


def data(shape=SHAPE):
    torch.manual_seed(0)
    return torch.randn(COUNT, *shape), torch.randint(0, 3, (COUNT,))


def made(name):
    torch.manual_seed(1)
    return MODELS[name][0]()


def rows_at(gradients, batch, places):
    """Return the rows of these places by place."""
    found = {}
    places = np.asarray(places)
    for chosen, rows in gradients.pieces(batch, places):
        for place, row in zip(places[chosen].tolist(), rows.clone(), strict=True):
            found[place] = row
    return found


def batch_of_one(model, batch, place):
    """The row of a sample, from torch and a copy that has seen no other."""
    alone = copy.deepcopy(model)
    value = cross_entropy(alone(batch[0][place : place + 1]), batch[1][place : place + 1])
    weights = [part for part in alone.parameters() if part.requires_grad]
    parts = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def check_apart(model, loss, shape=SHAPE):
    """A row is the same to the last bit, whoever else is drawn, and whatever the others' data
    are.
    """
    batch = data(shape)
    gradients = SampleGradients(model, loss, batch, tile=16)
    everybody = rows_at(gradients, batch, np.arange(COUNT))
    other = torch.randn_like(batch[0]) * 100, (batch[1] + 1) % 3
    for place in (0, 5, 17, 39):
        alone = rows_at(gradients, batch, [place])[place]
        assert torch.isfinite(alone).all()
        assert torch.equal(alone, everybody[place])
        mixed = [part.clone() for part in other]
        mixed[0][place] = batch[0][place]
        mixed[1][place] = batch[1][place]
        drawn = np.arange(3, COUNT, 2) if place > 3 else [0, 1]
        assert torch.equal(alone, rows_at(gradients, mixed, drawn)[place])
    return gradients


@pytest.mark.parametrize("name", MODELS)
def test_no_model_mixes_samples(name):
    """A row is that of a batch of one, and the model is left as it was."""
    model = made(name)
    _, way, *shape = MODELS[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    gradients = check_apart(model, cross_entropy, *shape)
    assert way in (None, gradients.way)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(part.grad is None for part in model.parameters())
    row = rows_at(gradients, data(*shape), [21])[21]
    alone = batch_of_one(model, data(*shape), 21)
    torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss", [centred, RemembersOutputs(), lambda a, b: functional.mse_loss(a[:, 0], b.float())]
)
@pytest.mark.parametrize("name", ["odd sizes", "mixes in training alone", "branches on data"])
def test_no_loss_mixes_samples(name, loss):
    check_apart(made(name), loss)


def test_a_forward_that_is_patched_for_all_layers_meets_one_sample(monkeypatch):
    usual = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: usual(self, x - x.mean(dim=0)))
    gradients = check_apart(nn.Sequential(nn.Linear(6, 3)), cross_entropy)
    monkeypatch.undo()  # what was recorded stays, whatever the code becomes
    assert not rows_at(gradients, data(), [21])[21][:18].any()  # a sample less itself


@pytest.mark.parametrize(("channels", "way"), [(1, "mapped"), (16, None)])
def test_images_without_channels_are_not_taken_for_channels(channels, way):
    """A tile of 16 images (5, 5) would be one image of 16 channels."""
    convolution = lambda: nn.Conv2d(channels, 2, 3)  # noqa: E731
    flat, apart = (lambda: nn.Flatten(0)), (lambda: nn.Unflatten(0, (1, 3)))
    model = layers(convolution, flat, linear(18), apart)()
    batch = torch.randn(20, 5, 5), torch.randint(0, 3, (20,))
    if way:
        assert SampleGradients(model, cross_entropy, batch, tile=16).way == way
        return
    with refuses("model"):
        SampleGradients(model, cross_entropy, batch, tile=16)


@pytest.mark.parametrize("drops", [nn.Dropout(0.5), nn.Dropout1d(0.5)])
def test_dropout_is_drawn_for_each_sample(drops):
    torch.manual_seed(0)
    same = torch.ones(50, 64), torch.zeros(50, dtype=torch.int64)
    zeros = sample_gradients(nn.Sequential(drops, nn.Linear(64, 3)), cross_entropy, same) == 0
    if isinstance(drops, nn.Dropout1d):  # a sample is kept or dropped whole
        assert len(set(zeros[:, 0].tolist())) == 2
        return
    assert len({tuple(row.tolist()) for row in zeros}) > 40
    assert 0.4 < float(zeros[:, :192].float().mean()) < 0.6


def test_a_sample_that_raises_has_no_row_and_changes_no_other():
    """A word that is not in the vocabulary, in models that are mapped and that go one by one."""
    torch.manual_seed(0)
    words = torch.randint(0, 9, (COUNT, 4)), torch.randint(0, 3, (COUNT,))
    broken = words[0].clone()
    broken[7, 2] = 99

    class Checks(nn.Sequential):
        def forward(self, x):
            if int(x.max()) > 50:
                raise ValueError("an unknown word")
            return super().forward(x)

    layers = [nn.Embedding(9, 5, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)]
    for kind, way in ((nn.Sequential, "mapped"), (Checks, "single")):
        gradients = SampleGradients(kind(*layers), cross_entropy, words, tile=16)
        assert gradients.way == way
        wanted = gradients(words).clone()
        rows = gradients((broken, words[1]))
        assert torch.isnan(rows[7]).all()
        others = [place for place in range(COUNT) if place != 7]
        assert torch.equal(rows[others], wanted[others])


def blind(outputs, targets):
    """A loss per entry, not per sample."""
    return functional.mse_loss(outputs, outputs.detach() + 1, reduction="none")


class Never:
    def draw(self, count):
        raise AssertionError("a batch was drawn")


@pytest.mark.parametrize(
    ("model", "loss", "targets", "name"),
    [
        (linear(5), cross_entropy, COUNT, "model"),
        (linear(), blind, COUNT, "loss"),
        (linear(), cross_entropy, 5, "data"),
        *(
            (layers(norm, linear()), cross_entropy, COUNT, "layer '0'")
            for norm in (
                lambda: nn.BatchNorm1d(6),
                lambda: nn.SyncBatchNorm(6),
                lambda: nn.InstanceNorm1d(6, track_running_stats=True),
            )
        ),
    ],
)
def test_what_has_no_gradient_is_refused_before_a_batch_is_drawn(model, loss, targets, name):
    inputs, labels = data()
    with serving(Never()), refuses(name):
        dp_sgd_step(model(), loss, (inputs, labels[:targets]))


def test_orthogonal_weights_decide_nothing(tmp_path):
    """Weights that make one patient's output pure rounding: the batch is released all the same,
    drawn with or without.

    Of 200 samples all have a gradient of 1 along the first coordinate, but for the patient's; a
    batch that was dropped would be a release of about zero.
    """
    samples = 200
    mechanism = PoissonBatch(Gaussian(Ball(Norm.L2, DIMENSION), 1e-3), 100, 0.5)
    rules = {
        "unit": "sample",
        "data_set": "ward 7",
        "mechanisms": ["gaussian"],
        "epsilon": 1e12,
        "adjacency": "replace-one",
        "releases": 999,
        "releases_per_day": 999,
    }
    held = keeper(tmp_path, **rules)
    torch.manual_seed(0)
    weights = torch.randn(DIMENSION)
    patient = torch.randn(DIMENSION)
    patient -= weights * (patient @ weights) / (weights @ weights)
    patient *= 1e6
    model = nn.Linear(DIMENSION, 1, bias=False)
    model.weight.data[0] = weights
    others = torch.zeros(samples, DIMENSION)
    others[:, 0] = 1.0
    means = {}
    for world in ("with", "without"):
        inputs = others.clone()
        if world == "with":
            inputs[0] = patient
        means[world] = []
        for _ in range(12):
            number = len(means["with"]) + len(means.get("without", [])) + 1
            asked = request(number, mechanism, unit="sample", adjacency="replace-one", epsilon=1e12)
            accepted = held.accept(asked)
            with serving(accepted):
                dp_sgd_step(model, lambda out, to: out.sum(), (inputs, torch.zeros(samples)))
            payload = bytes(Framed.from_bytes(accepted.release(None)).payload)
            means[world].append(float(np.asarray(Uplink(mechanism).receive([payload]))[0]))
    assert min(means["with"]) > 0.7
    assert min(means["without"]) > 0.7


@pytest.mark.parametrize("name", ["head", "dense", "conv", "odd", "norms", "mapped"])
def test_rows_do_not_depend_on_the_size_of_the_batch(name):
    """Samples at places of their own, drawn in batches of 1 to 150: the same bits in each."""
    torch.manual_seed(0)
    models = {
        "head": (nn.Linear(256, 10), (256,)),
        "dense": (nn.Sequential(nn.Linear(97, 33), nn.ReLU(), nn.Linear(33, 10)), (97,)),
        "conv": (
            nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(75, 10)),
            (1, 7, 7),
        ),
        "odd": (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (3, 5)),
        "norms": (
            nn.Sequential(nn.Linear(13, 11), nn.LayerNorm(11), nn.Flatten(), nn.Linear(33, 3)),
            (3, 13),
        ),
        "mapped": (nn.Sequential(nn.Linear(37, 11), nn.PReLU(), nn.Linear(11, 7)), (37,)),
    }
    model, shape = models[name]
    count = 300
    batch = torch.randn(count, *shape), torch.randn(count)
    gradients = SampleGradients(model, lambda out, to: (out.flatten().sum() - to[0]) ** 2, batch)
    watched = 137
    wanted = rows_at(gradients, batch, [watched])[watched]
    rng = np.random.default_rng(0)
    for size in (2, 3, 5, 16, 17, 64, 150):
        for _ in range(3):
            drawn = rng.choice(count, size, replace=False)
            drawn = np.unique(np.append(drawn, watched))
            assert torch.equal(rows_at(gradients, batch, drawn)[watched], wanted)


def made_again(gradients, batch, places=range(COUNT)):
    found = rows_at(gradients, batch, list(places))
    return torch.stack([found[place] for place in places])


def drops_out(looks, draw):
    """Dropout that is mapped, or that goes one by one because it looks at a value."""

    def run(model, x):
        if looks:
            float(x.sum())
        return model.last(x * draw(x))

    return Model(run, last=nn.Linear(64, 3))


def alike(device="cpu"):
    """Samples that differ in nothing."""
    zeros = torch.zeros(COUNT, dtype=torch.int64, device=device)
    return torch.ones(COUNT, 64, device=device), zeros


def torch_mask(x):
    return (torch.rand(x.shape, device=x.device) < 0.5).float()


def numpy_mask(x):
    return torch.from_numpy((np.random.random(x.shape) < 0.5).astype(np.float32))  # noqa: NPY002


def python_mask(x):
    drawn = [float(random.getrandbits(1)) for _ in range(x.shape[1])]
    return torch.tensor([drawn])


def generator_states():
    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    drawn = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    return [state.tolist() for state in states], drawn


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("looks", "draw"),
    [(False, torch_mask), (True, torch_mask), (True, numpy_mask), (True, python_mask)],
)
def test_rows_draw_nothing_from_generators_that_the_app_seeds(looks, draw, device):
    """One more sample took one more pass, and so all later masks were others: under
    `torch.manual_seed` a sum of the next step moved by 25 clips where 2 are accounted.
    """
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = drops_out(looks, lambda x: draw(x).to(device)).to(device)
    gradients = SampleGradients(model, cross_entropy, alike(device), tile=16)
    assert gradients.way == ("single" if looks else "mapped")
    passes = []
    for _ in range(2):
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        random.seed(7)
        before = generator_states()
        passes.append(made_again(gradients, alike(device))[:, :192].cpu() == 0)
        assert generator_states() == before  # how many samples were drawn does not show, either
    masks = torch.cat(passes)
    assert len({tuple(mask.tolist()) for mask in masks}) == 2 * COUNT
    assert 0.4 < float(masks.float().mean()) < 0.6


def test_what_python_draws_is_a_constant_of_a_recorded_model():
    for draw in (numpy_mask, python_mask):
        gradients = SampleGradients(drops_out(False, draw), cross_entropy, alike(), tile=16)
        assert gradients.way == "mapped"
        assert len({tuple(row.tolist()) for row in made_again(gradients, alike())}) == 1


@pytest.mark.parametrize("looks", [False, True])
def test_a_generator_of_the_models_own_is_refused(looks):
    """Each row would move it on for the next one."""
    own = torch.Generator()
    model = drops_out(looks, lambda x: (torch.rand(x.shape, generator=own) < 0.5).float())
    with refuses("generator"):
        SampleGradients(model, cross_entropy, alike())


SEEN = []


def test_a_recorded_model_sees_no_value_that_it_could_keep():
    """Not in a global variable either, which no copy of the model separates."""

    def keeps_outside(x):
        total = x + 10 * sum(SEEN)
        SEEN.append(x.detach())
        return total

    SEEN.clear()
    gradients = check_apart(calls(keeps_outside), cross_entropy)
    assert gradients.way == "mapped"
    assert len(SEEN) == 1  # the code ran once, on a shape
    assert "FakeTensor" in repr(SEEN[0])
    SEEN.clear()


def test_a_model_reads_no_clock_and_no_environment_while_rows_are_made(monkeypatch):
    def forward(x):
        return x * time.perf_counter() * float(os.environ["QUIETBIT_ATTACK"])

    monkeypatch.setenv("QUIETBIT_ATTACK", "0.5")
    batch = data()
    gradients = SampleGradients(calls(forward), cross_entropy, batch)
    before = made_again(gradients, batch)
    monkeypatch.setenv("QUIETBIT_ATTACK", "1.5")
    assert torch.equal(made_again(gradients, batch), before)


def test_a_constant_that_the_app_changes_later_is_the_one_that_was_recorded():
    scale = torch.ones(6)
    batch = data()
    gradients = SampleGradients(calls(lambda x: x * scale), cross_entropy, batch)
    assert gradients.way == "mapped"
    before = made_again(gradients, batch)
    scale += 3
    assert torch.equal(made_again(gradients, batch), before)


def test_autocast_and_modes_are_those_of_the_construction():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).eval()
    batch = data()
    gradients = SampleGradients(model, cross_entropy, batch)
    before = made_again(gradients, batch)
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made_again(gradients, batch), before)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_do_not_depend_on_the_batch_with_several_threads(threads):
    """Threads share a tile: where one's part ends, samples must not be rounded otherwise."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for activation in (nn.Tanh(), nn.GELU(), nn.Softplus()):
            model = nn.Sequential(nn.Linear(6, 1601), activation, nn.Linear(1601, 3))
            batch = torch.randn(300, 6), torch.randint(0, 3, (300,))
            gradients = SampleGradients(model, cross_entropy, batch)
            wanted = made_again(gradients, batch, range(300))
            for _ in range(3):
                drawn = np.random.default_rng().permutation(300)[:60]
                assert torch.equal(made_again(gradients, batch, drawn.tolist()), wanted[drawn])
    finally:
        torch.set_num_threads(before)


def test_compiled_code_runs_as_it_was_written():
    """The first eight samples ran compiled code, and all others did not: other bits."""
    usual = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    torch.manual_seed(1)
    check_apart(torch.compile(usual, backend="eager"), cross_entropy)
    looks = torch.compile(lambda x: x.sin() if float(x.sum()) > 0 else x, backend="eager")
    check_apart(calls(looks), cross_entropy)
    assert not torch._dynamo.utils.counters["frames"]


class ItsOwnCopy(Model):
    """It keeps samples, and a copy of it is itself."""

    def __deepcopy__(self, memo):
        return self


def test_layers_that_are_their_own_copy_are_recorded_or_refused():
    assert check_apart(ItsOwnCopy(keeps_inputs), cross_entropy).way == "mapped"
    looking = ItsOwnCopy(lambda model, x: (float(x.sum()), keeps_inputs(model, x))[1])
    with refuses("model or loss"):
        SampleGradients(looking, cross_entropy, data())


def test_a_device_whose_generators_are_shared_is_refused():
    inputs, targets = (part.to("meta") for part in data())
    with refuses("device of the model"):
        SampleGradients(nn.Linear(6, 3, device="meta"), cross_entropy, (inputs, targets))
