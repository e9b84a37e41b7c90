"""The gradient of one example as a graph of torch's own operations, without values in it.

Idea     what depends on one sample is written down before any sample is there: model and loss run
         once, on an example that has a shape and a dtype but no values (torch's fake tensors), and
         the operations that they call, with those of the backward pass, are recorded. Code that
         asks for a value cannot be recorded. The record is then mapped over many samples by
         torch's own rule for each operation, never by a rule of the model. So no code of the model
         or the loss ever sees a sample: it has nothing to remember, to branch on or to pass on.
Symbols  a sample's gradient of a weight that meets one vector is a product of two vectors: such a
         pair is kept apart, and multiplied where the rows are written. One product of two floats
         rounds alike wherever it stands.
Source   docs/theory/sample-rows.md.

A recorded graph has only operations of torch that write into none of their inputs, and whose
randomness is that of torch's default generators, which `quietbit.gradients.randomness` replaces for
the pass. Whatever else the code read (clocks, numpy's randomness, a global variable) is a constant
of the graph, the same for every sample.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from quietbit.errors import InvalidParameter, require, require_module
from quietbit.gradients.randomness import private_randomness, private_randomness_of_code

__all__ = ["Loss", "NotTraceable", "TracedGradient", "loss_of_one", "trainable"]

Tensor: TypeAlias = Any
Node: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], Any]
# One gradient, of some parameter, or a column and a row whose product it is.
Slope: TypeAlias = "Tensor | tuple[Tensor, Tensor]"

NAMESPACES = ("aten", "prims")
# Where torch keeps its rules for mapped operations, and operations made of others.
MAPPED = ("FuncTorchBatched", "FuncTorchBatchedDecomposition", "FuncTorchVmapMode")
_TRACING = threading.Lock()  # torch's tracer sets global variables


class NotTraceable(Exception):
    """The code cannot be recorded, or the record cannot be mapped."""


@final
class TracedGradient:
    """One sample's gradient of every trainable parameter, for one sample and for a tile of them.

    The graph is of the model as it is now: its mode, its settings and torch's autocast. Weights and
    buffers are read anew for each pass.
    """

    def __init__(self, model: Any, loss: Loss, given: Tensor, target: Tensor) -> None:
        """Record the gradient; raise `NotTraceable` if that cannot be done.

        Args:
            model: is copied before its code runs.
            loss: is copied, too.
            given: the input of one sample, of which only the shape, dtype and device are used.
            target: likewise.
        """
        torch: Any = require_module("torch", "torch")
        self._torch = torch
        self._model = model
        self._device = given.device
        with self._tracing():
            self._one = self._recorded(model, loss, self._state(), given, target)
            self._pairs = _split_products(torch, self._one.graph)
            self._one.recompile()
            #: Whether a pass draws random numbers.
            self.draws = _draws(torch, self._one.graph)

    @property
    def numbers(self) -> int:
        """How many numbers are computed per sample."""
        values = [node.meta.get("val") for node in self._one.graph.nodes]
        sizes = [value.numel() for value in values if isinstance(value, self._torch.Tensor)]
        return max(1, int(sum(sizes)))

    def spread(self, inputs: Tensor, targets: Tensor) -> None:
        """Map the record over a tile of zeros; raise `NotTraceable` if that cannot be done."""
        torch = self._torch
        state = self._state()
        axes = (*[None] * len(state), 0, 0)
        with self._tracing():
            one = _with_patches(torch, self._one)
            mapped = torch.func.vmap(one, in_dims=axes, randomness="different")
            self._tile = _record(mapped, "real", *state, inputs, targets)

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        eager = self._torch.compiler.set_stance("force_eager")
        try:
            with _TRACING, private_randomness_of_code(), eager:
                yield
        except InvalidParameter:
            raise
        except Exception as error:
            raise NotTraceable(str(error)) from error

    def slopes(self, inputs: Tensor, targets: Tensor) -> list[Slope]:
        """Return the gradients of a tile of samples, parameter by parameter."""
        torch = self._torch
        plain = torch.autocast(self._device.type, enabled=False)
        with torch.no_grad(), plain, private_randomness():
            results = iter(self._tile(*self._state(), inputs, targets))
        return [(next(results), next(results)) if pair else next(results) for pair in self._pairs]

    def _state(self) -> list[Tensor]:
        """Return the model's arrays, the trainable parameters first."""
        parameters = trainable(self._model)
        others = _other_arrays(self._model, parameters)
        return [part.detach() for part in (*parameters.values(), *others.values())]

    def _recorded(
        self, model: Any, loss: Loss, state: Sequence[Tensor], given: Tensor, target: Tensor
    ) -> Any:
        """Return the graph of one example's gradients; parameters one after the other."""
        func = self._torch.func
        parameters = trainable(model)
        names = [*parameters, *_other_arrays(model, parameters)]
        count = len(parameters)
        model = copy.deepcopy(model)
        loss = copy.deepcopy(loss)

        def value(learnt: tuple[Tensor, ...], others: tuple[Tensor, ...], *data: Tensor) -> Tensor:
            arrays = dict(zip(names, (*learnt, *others), strict=True))
            output = func.functional_call(model, arrays, (data[0][None],))
            return loss_of_one(loss, output, data[1][None])

        def gradient(*arguments: Tensor) -> tuple[Tensor, ...]:
            learnt = arguments[:count]
            slopes: tuple[Tensor, ...] = func.grad(value)(
                learnt, arguments[count:-2], *arguments[-2:]
            )
            return slopes

        recorded = _record(func.functionalize(gradient), "fake", *state, given, target)
        _check_pure(self._torch, recorded)
        return recorded


def trainable(model: Any) -> dict[str, Any]:
    """Return a model's trainable parameters by name; refuse a model without any."""
    parameters = {name: part for name, part in model.named_parameters() if part.requires_grad}
    require(parameters, "model", type(model).__name__, "one with trainable parameters")
    return parameters


def loss_of_one(loss: Loss, output: Any, target: Tensor) -> Tensor:
    """Return the loss of a batch of one sample, as a 0-D tensor."""
    value = loss(output, target)
    shape = tuple(getattr(value, "shape", ()))
    if shape not in ((), (1,)):
        rule = "one number for the output and the target of one sample"
        raise InvalidParameter.of("loss", rule, f"a result of shape {shape}")
    return value.reshape(())


def _other_arrays(model: Any, parameters: dict[str, Any]) -> dict[str, Tensor]:
    """Return frozen parameters and buffers by name."""
    frozen = {name: part for name, part in model.named_parameters() if name not in parameters}
    return frozen | dict(model.named_buffers())


def _record(function: Callable[..., Any], mode: str, *arguments: Tensor) -> Any:
    """Return the graph of a function of tensors; code that asks for a value raises."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*arguments)


def _check_pure(torch: Any, module: Any) -> None:
    """Require torch's own operations alone, none of which writes, and keep constants apart."""
    from torch._subclasses.fake_tensor import FakeTensor

    torch.func.vmap(torch.neg)(torch.zeros(1))  # torch loads some of its rules at the first use
    nodes = list(module.graph.nodes)
    given = [node for node in nodes if node.op == "placeholder"]
    of_sample = set(given[-2:])
    for node in nodes:
        if not of_sample.isdisjoint(node.all_input_nodes):
            of_sample.add(node)
        if node.op == "get_attr":
            constant = getattr(module, node.target)
            if not isinstance(constant, torch.Tensor) or isinstance(constant, FakeTensor):
                raise NotTraceable("a part that is not a tensor, or was computed unseen")
            delattr(module, node.target)  # a parameter cannot be replaced by a plain tensor
            setattr(module, node.target, constant.detach().clone())
        elif node.op == "call_function" and node.target is not operator.getitem:
            _check_operation(torch, node, node in of_sample)


def _check_operation(torch: Any, node: Node, is_mapped: bool) -> None:
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or operation.namespace not in NAMESPACES:
        raise NotTraceable(f"{operation} is not an operation of torch")
    if operation._schema.is_mutable:
        raise NotTraceable(f"{operation} writes into what it is given")
    if is_mapped and not any(_has_kernel(torch, operation, key) for key in MAPPED):
        raise NotTraceable(f"torch has no rule that maps {operation}")
    values = (*node.args, *node.kwargs.values())
    if any(isinstance(value, torch.Generator) for value in values):
        raise NotTraceable(f"{operation} draws from a generator of its own")


def _has_kernel(torch: Any, operation: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), key))


def _draws(torch: Any, graph: Any) -> bool:
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(node.target, "tags", ()) for node in graph.nodes)


def _split_products(torch: Any, graph: Any) -> list[bool]:
    """Return both factors where a gradient is a column times a row, and say for which it is."""
    aten = torch.ops.aten
    end = next(node for node in graph.nodes if node.op == "output")
    results: list[Node] = []
    pairs = []
    for slope in end.args[0]:
        turned = False
        node = slope
        while node.op == "call_function" and node.target is aten.t.default:
            turned = not turned
            node = node.args[0]
        is_product = node.op == "call_function" and node.target is aten.mm.default
        pairs.append(is_product and node.args[0].meta["val"].shape[1] == 1)
        if not pairs[-1]:
            results.append(slope)
        elif not turned:
            results.extend(node.args)
        else:
            with graph.inserting_before(end):
                results.extend(
                    graph.call_function(aten.t.default, (part,)) for part in node.args[::-1]
                )
    end.args = (tuple(results),)
    graph.eliminate_dead_code()
    return pairs


def _with_patches(torch: Any, module: Any) -> Callable[..., Any]:
    """Return the function of a graph, with the weights' gradients of convolutions as products.

    Torch maps these by a convolution with a group per sample, which takes longer.
    """
    backward = torch.ops.aten.convolution_backward.default

    class WithPatches(torch.fx.Interpreter):  # type: ignore[misc]
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is backward and args[1].dim() == 4 and args[10][1] and not args[7]:
                return _patch_products(torch, *args)
            return super().call_function(target, args, kwargs)

    return WithPatches(module).run  # type: ignore[no-any-return]


def _patch_products(
    torch: Any,
    slope: Tensor,
    given: Tensor,
    weight: Tensor,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Return what convolution_backward does, of images: gradients of input, weight and bias."""
    of_input = None
    if wanted[0]:
        of_input = torch.ops.aten.convolution_backward.default(
            slope,
            given,
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            [True, False, False],
        )[0]
    tall, wide = padding
    patches = torch.nn.functional.pad(given, (wide, wide, tall, tall))
    for axis in (0, 1):
        size = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        patches = patches.unfold(2 + axis, size, stride[axis])
    patches = patches[..., :: dilation[0], :: dilation[1]].permute(0, 1, 4, 5, 2, 3)
    columns = patches.reshape(groups, -1, slope.shape[2] * slope.shape[3])
    rows = slope.reshape(groups, -1, columns.shape[2])
    of_weight = torch.bmm(rows, columns.transpose(1, 2)).reshape(weight.shape)
    of_bias = slope.sum(dim=(0, 2, 3)) if wanted[2] else None
    return of_input, of_weight, of_bias
