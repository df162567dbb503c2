"""Observing does not change modules: they can be copied, saved, scripted, traced, compiled."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.training.script.hooks import Hooks
from harness.training.script.observed import Observed
from harness.training.script.samples import Rows

BATCH = 16


class Net(nn.Module):
    """A model with nested modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.inner:
            x = block(x)
        return x


class Following(Observed):
    """An observer of every step."""

    def mark(self) -> None: ...


@pytest.fixture
def observed() -> Iterator[Following]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call = nn.Module.__call__
    observed = Following()
    observed.hooks.install()
    yield observed
    observed.hooks.remove()
    nn.Module.__call__ = call  # type: ignore[method-assign]  # remove() keeps it after compiling


def trained(module: Callable[[Tensor], Tensor], parameters: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(BATCH, 8)).square().mean().backward()
        optimizer.step()


def came(observed: Following) -> list[int]:
    """Return the number of samples of each finished step."""
    rows = next(iter(observed.rows.values()), Rows())
    return [rows.came(step, step + 1) for step in range(len(observed.sentences.words))]


@pytest.mark.parametrize("settled", [False, True])
def test_an_observed_module_is_copied_and_saved_unchanged(
    observed: Following, *, settled: bool
) -> None:
    """Copies and saved files contain nothing of the observer."""
    net = Net()
    bare = io.BytesIO()
    torch.save(net, bare)
    trained(net, net)
    if settled:
        observed.hooks.settle()
        trained(net, net)
    assert not vars(net)["_forward_pre_hooks"] and not vars(net)["_forward_hooks"]
    other = copy.deepcopy(net)
    other(torch.randn(BATCH, 8))
    assert vars(other).keys() == vars(Net()).keys()
    saved = io.BytesIO()
    torch.save(net, saved)
    assert len(saved.getvalue()) == len(bare.getvalue())
    torch.optim.swa_utils.AveragedModel(net)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "made"),
    [
        ("scripted", torch.jit.script),
        ("traced", lambda net: torch.jit.trace(net, torch.randn(2, 8))),
        ("symbolic", torch.fx.symbolic_trace),
    ],
)
def test_scripted_and_traced_modules_are_observed(
    observed: Following, way: str, made: Callable[[nn.Module], nn.Module]
) -> None:
    net = Net()
    other = made(net)
    trained(other, other)
    observed.hooks.settle()
    trained(other, other)
    made(net)  # can be repeated while the module is observed
    assert came(observed) == [BATCH] * 5, way


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's warning about compiled code
@pytest.mark.parametrize("way", ["wrapped", "in place", "inner"])
def test_compiled_modules_are_observed_and_not_recompiled(observed: Following, way: str) -> None:
    """Observing causes no compilation in the window."""
    net: nn.Module = Net()
    called: Callable[[Tensor], Tensor] = net
    if way == "wrapped":
        called = torch.compile(net, backend="eager", fullgraph=True)
    elif way == "in place":
        net.compile(backend="eager")
    else:
        for block in net.inner:
            block.compile(backend="eager")
    trained(called, net)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    observed.hooks.settle()
    trained(called, net)
    observed.hooks.remove()  # training continues without hooks
    trained(called, net)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0
    assert came(observed) == [BATCH] * 5


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that nothing was compiled in this process, although other tests may have."""
    monkeypatch.setattr("harness.training.script.hooks.compiled", lambda: False)


@pytest.mark.usefixtures("nothing_compiled")
def test_only_classes_of_root_modules_are_hooked_once_roots_are_known(observed: Following) -> None:
    net = Net()
    trained(net, net)
    before = nn.Module.__call__
    observed.hooks.settle()
    assert nn.Module.__call__ is not before and "__call__" in vars(Net)
    assert "__call__" not in vars(nn.Sequential) and "__call__" not in vars(nn.Linear)
    trained(net, net)
    assert came(observed) == [BATCH] * 5


@pytest.mark.usefixtures("nothing_compiled")
def test_reads_are_counted_until_roots_are_known_and_again_after_a_restart(
    observed: Following,
) -> None:
    """Reads are not hooked later, because optimizers may read a value of every parameter."""
    item = Tensor.item
    net = Net()
    trained(net, net)
    float(net(torch.randn(BATCH, 8)).sum().item())
    assert observed.hooks.reads == 1
    observed.hooks.settle()
    assert "item" not in vars(Tensor) and Tensor.item is not item
    observed.restart()
    torch.zeros(()).item()
    torch.zeros(()).item()
    assert observed.hooks.reads == 3


@pytest.mark.usefixtures("nothing_compiled")
def test_removing_the_hooks_leaves_nothing_behind() -> None:
    before = nn.Module.__call__
    observed = Following()
    observed.hooks.install()
    net = Net()
    trained(net, net)
    observed.hooks.settle()
    observed.hooks.remove()
    assert nn.Module.__call__ is before and "__call__" not in vars(Net)


def test_a_failed_forward_ends_the_call(observed: Following) -> None:
    """After the failure, the next call counts as a call of a root module again."""

    class Fails(Net):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] != 8:
                raise ValueError("columns")
            return super().forward(x)

    net = Fails()
    with pytest.raises(ValueError, match="columns"):
        net(torch.randn(BATCH, 7))
    trained(net, net)
    assert came(observed)[1:] == [BATCH]


def test_hooks_belong_to_one_observer() -> None:
    """Two successive observers do not see each other's training runs."""
    first, second = Following(), Following()
    for observed in (first, second):
        observed.hooks.install()
        net = Net()
        trained(net, net)
        observed.hooks.remove()
    assert came(first) == came(second) == [BATCH] * 2
    assert isinstance(first.hooks, Hooks)


@pytest.mark.filterwarnings("ignore")  # torch's warnings about compiled code
def test_a_compiled_training_step_is_not_recompiled(observed: Following) -> None:
    """Backward passes are observed, and the observer causes no recompilation."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(x: Tensor) -> float:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    step(torch.randn(BATCH, 8))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = [step(torch.randn(BATCH, 8)) for _ in range(5)]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0
    assert [word.backwards for word in observed.sentences.words] == [1] * 5
    assert observed.losses(1, 5).tolist() == losses[:4]


@pytest.mark.parametrize("called", [True, False])
def test_the_wrapper_of_a_root_is_known_if_its_forward_is_called_directly(
    observed: Following, *, called: bool
) -> None:
    """Barlow Twins, for example, calls ``model.forward``."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        wrapper = nn.parallel.DistributedDataParallel(net)
        trained(wrapper if called else wrapper.forward, net)
        assert observed.hooks.wrapped == [wrapper]
        assert list(observed.hooks.roots.values()) == [wrapper if called else net]
    finally:
        dist.destroy_process_group()


def test_digests_of_parameters_ignore_the_wrapper_of_a_framework(observed: Following) -> None:
    """Fabric's wrapper names the wrapped module differently on several ranks than on one."""

    class Framed(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.of_a_framework = net

        def forward(self, x: Tensor) -> Tensor:
            return self.of_a_framework(x)  # type: ignore[no-any-return]

    net = Net()
    digests = []
    for wrapped in (net, Framed(net)):
        observed.restart()
        wrapped(torch.randn(BATCH, 8)).square().mean().backward()
        digests.append(observed.bits().whole)
    assert digests[0] == digests[1] != ""
    with torch.no_grad():
        net.inner[1][0].bias[0] += 1e-3
    assert observed.bits().whole != digests[0]


def test_recomputation_in_backward_adds_no_root(observed: Following) -> None:
    """Activation checkpointing recomputes inner modules within the backward pass."""

    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.inner:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    net = Checkpointed()
    trained(net, net)
    with torch.no_grad():
        net.eval()(torch.randn(BATCH, 8))
    assert list(observed.hooks.roots.values()) == [net]
    assert observed.hooks.evaluations == 1
    assert came(observed) == [BATCH] * 2


def test_an_evaluation_counts_once_however_many_roots_it_calls(
    observed: Following,
) -> None:
    """The pass also calls modules that are trained separately elsewhere."""
    net = Net()
    for part in (net, *net.inner):
        trained(part, part)
    with torch.no_grad():
        net(torch.randn(BATCH, 8))
    assert len(observed.hooks.roots) == 3 and observed.hooks.evaluations == 1


class Derived(torch.optim.SGD):
    """An optimizer that calls its base's step, so that torch's hooks run for both."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        return super().step(closure)


def test_an_optimizer_step_that_calls_its_bases_step_counts_once(observed: Following) -> None:
    net = Net()
    torch.optim.SGD(net.parameters(), lr=0.1)  # installs torch's hooks in SGD.step
    observed.hooks.optimizers.clear()
    optimizer = Derived(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(BATCH, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert observed.sentences.done == 3 and not observed.sentences.twice


class Decoder(nn.Module):
    """A decoder with tokens and the states of an encoder as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(32, 8), nn.Linear(16, 8)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        mixed: Tensor = self.mix(torch.cat([self.words(tokens), states], dim=1))
        return mixed


def test_a_decoder_of_another_models_states_has_no_separate_samples(observed: Following) -> None:
    encoder, decoder = Net(), Decoder()
    both = nn.ModuleList([encoder, decoder])

    def translated(x: Tensor) -> Tensor:
        decoded: Tensor = decoder(torch.randint(32, (BATCH,)), encoder(x))
        return decoded

    trained(translated, both)
    assert list(observed.rows) == [id(encoder)] and came(observed) == [BATCH] * 2
    assert set(observed.hooks.roots) == {id(encoder), id(decoder)}


def test_two_towers_have_separate_samples(observed: Following) -> None:
    left, right = Net(), Net()
    trained(lambda x: left(x) * right(x.flip(0)), nn.ModuleList([left, right]))
    assert set(observed.rows) == {id(left), id(right)}


class Energy(nn.Module):
    """A model whose forces are gradients of its energies, in validation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        places = x.clone().requires_grad_()
        energy = self.net(places).sum()
        (forces,) = torch.autograd.grad(energy, places, create_graph=True)
        return forces


def test_validation_of_a_frozen_model_in_training_mode_is_an_evaluation(
    observed: Following,
) -> None:
    """MACE does this because its forward pass needs gradients, which excludes no_grad()."""
    model = Energy()
    trained(model, model)
    before = came(observed)
    for p in model.parameters():
        p.requires_grad = False
    for _ in range(5):
        model(torch.randn(BATCH, 8))
    for p in model.parameters():
        p.requires_grad = True
    trained(model, model)
    assert observed.hooks.evaluations == 5
    assert came(observed) == [*before, *[BATCH] * (len(came(observed)) - len(before))]


def test_a_frozen_critic_of_a_trained_model_is_no_evaluation(observed: Following) -> None:
    maker, critic = Net(), Net()
    trained(critic, critic)
    for p in critic.parameters():
        p.requires_grad = False
    trained(lambda x: critic(maker(x)), maker)
    assert observed.hooks.evaluations == 0


class Wrapper(nn.Module):
    """A wrapper like DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.module(x)
        return made


def test_an_extra_sample_that_bypasses_the_wrapper_belongs_to_the_same_model(
    observed: Following,
) -> None:
    model = Wrapper(Net())
    trained(lambda x: model(x).sum() + model.module(torch.zeros(1, 8)).sum(), model)
    assert list(observed.rows) == [id(model)] and came(observed) == [BATCH + 1] * 2


@pytest.mark.parametrize("attacks_alone", [False, True])
def test_samples_with_an_adversarial_perturbation_are_counted_once(
    observed: Following, *, attacks_alone: bool
) -> None:
    """FGSM trains on perturbed samples in a second pass, free training (Shafahi 2019) in one."""
    net, delta = Net(), torch.zeros(BATCH, 8, requires_grad=True)

    def attacked(x: Tensor) -> Tensor:
        first: Tensor = net(x + delta)
        if attacks_alone:
            return first
        first.sum().backward()
        second: Tensor = net((x + delta).detach())
        return second

    trained(attacked, net, steps=4)
    assert came(observed)[1:] == [BATCH] * 2
