"""``memory_aware``: Tune's own loop, with shares by what trials need, caps, and retries with more."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray import tune

import tuner
from tests.support.tune_mnist import train_mnist, train_within
from tuner.decisions.retry import RetryPolicy
from tuner.errors import InputError
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.integrations.ray_tune.attempt import CappedAttempt
from tuner.integrations.ray_tune.resources import Budget, RunAgain, TrainableSpec, TrialResources, trial_resources
from tuner.machine.holders import Memory
from tuner.machine.leases import read_leases
from tuner.spec.settings import Settings
from tuner.trial import GB, Device, MemoryEstimate, Request, Trial

# What the example takes of its process at its peak, as ``peak_memory_gb`` says on the machine that this is from.
NEED_GB = 1.06
EXAMPLE = {"lr": 0.01, "channels": 32, "batch_size": 3072, "epochs": 2}
RAM = Budget("cpu", 4 * GB, 4 * GB)


def a_share(need_bytes: int = GB, budget: Budget = RAM, refusal: str = "") -> TrialResources:
    estimate = MemoryEstimate("given", context_bytes=need_bytes)
    request = Request(Trial("", "net", "", {}, 0), estimate, need_bytes)
    return TrialResources(request, None if refusal else budget, {"CPU": 1.0}, refusal)


class Net(tune.Trainable):
    """Runs out of memory in the method that its configuration names, while its share is below 1.5 GB."""

    def setup(self, config: dict[str, Any]) -> None:
        self.done: list[str] = []
        self._do("setup", config)

    def step(self) -> dict[str, Any]:
        self._do("step", self.config)
        return {"loss": 0.5}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        self._do("save", self.config)
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._do("load", self.config)

    def cleanup(self) -> None:
        self._do("cleanup", self.config)

    def _do(self, what: str, config: dict[str, Any]) -> None:
        if config.get("fails_in") == what and self.trial_resources.request.need_bytes < 1.5 * GB:
            raise MemoryError(what)
        self.done.append(what)


def begun(share: TrialResources, config: dict[str, Any], **options: Any) -> Any:
    """A wrapped ``Net``'s trial in this process, set up as Tune does."""
    trial = object.__new__(tuner.memory_aware(Net, estimate=0.1, device="cpu", caps=False, **options))
    trial.config, trial._trial_info = config, SimpleNamespace(trial_resources=share)
    trial.setup(config)
    return trial


def test_shares_are_rounded_down_so_that_the_last_one_fits() -> None:
    budget = Budget("cuda", 7 * GB, 1.0)
    assert 7 * budget.fraction(GB) <= 1 < 7 * (budget.fraction(GB) + 1e-4)
    assert budget.resources(GB) == {"GPU": 0.1428}
    assert budget.resources(9 * GB) == {"GPU": 1.0}
    assert RAM.resources(GB) == {"memory": GB}


def test_a_share_that_grows_is_still_found_in_tunes_dictionaries() -> None:
    first, second = a_share(), a_share()
    names = {first: "first", second: "second"}
    assert first != second
    first.grow(Request(Trial("", "", "", {}, 0, attempt=2), first.request.estimate, 2 * GB))
    assert (names[first], names[second]) == ("first", "second")
    assert (first.bundles, second.bundles) == ([{"CPU": 1.0, "memory": 2 * GB}], [{"CPU": 1.0, "memory": GB}])
    assert (first.fraction, second.fraction) == (0.5, 0.25)


def test_what_an_attempt_raises_makes_the_drivers_share_grow_once() -> None:
    share = a_share()
    sent = pickle.loads(pickle.dumps(share))  # noqa: S301
    trial = begun(sent, {"fails_in": "step"}, retry_growth=2)
    with pytest.raises(RunAgain, match=r"attempt 1, which had 1\.00 GB: runs again with 2\.00 GB") as raised:
        trial.step()
    error = pickle.loads(pickle.dumps(raised.value))  # noqa: S301
    assert error.preempted and error.preempted
    assert (share.request.need_bytes, share.request.trial.attempt, share.request.history.out_of_memory) == (
        2 * GB,
        2,
        1,
    )
    assert sent.request.need_bytes == GB
    assert not RunAgain("of another driver", share.request).preempted


@pytest.mark.parametrize("method", ["setup", "load", "save"])
def test_a_class_may_run_out_of_memory_in_any_of_its_methods(method: str) -> None:
    trial = begun(a_share(), {"fails_in": method})
    trial.load_checkpoint({})
    with pytest.raises(RunAgain, match="out of memory in attempt 1"):
        if method == "save":
            trial.save_checkpoint("")
        trial.step()
    trial.cleanup()
    assert trial.done == {"setup": [], "load": ["setup", "cleanup"], "save": ["setup", "load", "cleanup"]}[method]


def test_results_say_what_a_trial_was_given_and_took() -> None:
    result = begun(a_share(), {}).step()
    assert result.pop("peak_memory_gb") > 0
    assert result == {"loss": 0.5, "attempts": 1, "gpu_fraction": 0.25, "estimated_memory_gb": 1.0}


@pytest.mark.parametrize(
    ("share", "options"), [(a_share(GB), {"on_oom": "fail"}), (a_share(GB, Budget("cpu", GB, GB)), {})]
)
def test_the_last_attempt_raises_its_own_error_with_a_note(share: TrialResources, options: dict[str, Any]) -> None:
    with pytest.raises(MemoryError, match="step") as raised:
        begun(share, {"fails_in": "step"}, **options).step()
    assert raised.value.__notes__[0].startswith("tuner: out of memory in attempt 1, which had 1.00 GB of ")


def test_a_trial_that_fits_no_device_fails_alone_and_is_not_set_up() -> None:
    trial = begun(a_share(refusal="estimate: a trial needs 99 GB"), {})
    with pytest.raises(InputError, match="needs 99 GB"):
        trial.step()
    assert not hasattr(trial, "done")


def test_a_share_smaller_than_the_process_itself_is_too_little_memory() -> None:
    attempt = CappedAttempt(a_share(1000), RetryPolicy(growth=2), caps=True)
    with pytest.raises(RunAgain, match="runs again with"), attempt.computing():
        raise AssertionError("nothing is computed")


def test_a_trial_waits_for_its_memory_while_others_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    waits: list[float] = []
    arbiter = partial(
        DeviceArbiter,
        read=lambda *_: Memory(24 * GB, 24 * GB * (len(waits) == 2), (0,)),
        reading_lasts=lambda _: -1.0,
    )
    attempt = CappedAttempt(a_share(), RetryPolicy(), caps=False, make_arbiter=arbiter)
    attempt.wait_for_room(waits.append)
    assert waits == [0.5, 0.5]
    assert [share.given_bytes for lease in read_leases() for share in lease.shares] == [GB]
    attempt.close()
    assert read_leases() == []


def spec(device: Device, estimate: Any) -> TrainableSpec:
    return TrainableSpec("net", estimate, [device], Settings())


def test_tunes_resources_stay_but_for_memory_and_gpus(gpu_16gb: Device) -> None:
    requested = tune.PlacementGroupFactory([{"CPU": 3, "GPU": 0.5, "memory": 7, "licence": 1}])
    share = trial_resources(spec(gpu_16gb, lambda config: config["gb"]), {"gb": 3.5}, requested)
    assert share.bundles == [{"CPU": 3.0, "GPU": 0.25, "licence": 1.0}]
    assert trial_resources(spec(gpu_16gb, 7), {}, None).bundles == [{"CPU": 1.0, "GPU": 0.5}]
    assert trial_resources(spec(gpu_16gb, 7), {}, {"cpu": 2}).bundles == [{"CPU": 2.0, "GPU": 0.5}]
    with pytest.raises(InputError, match="trials must be of one process"):
        trial_resources(spec(gpu_16gb, 7), {}, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]))


def test_an_estimate_of_ours_counts_with_its_margin(gpu_16gb: Device) -> None:
    estimate = MemoryEstimate("traced", activation_bytes=4 * GB, context_bytes=GB, margin=0.5)
    assert trial_resources(spec(gpu_16gb, lambda _: estimate), {}, None).request.need_bytes == 7 * GB


def test_what_fits_no_device_asks_for_none_of_it(gpu_16gb: Device) -> None:
    share = trial_resources(spec(gpu_16gb, lambda _: 15), {}, None)
    assert share.bundles == [{"CPU": 1.0}]
    assert share.refusal.startswith("estimate: a trial needs 15.00 GB, and cuda:0 has 14.00 GB for trials")


def of_two(config: Any, data: Any) -> None:
    """No trainable of Tune's."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimate": "big"}, "estimate 'big': must be a number of GB above 0"),
        ({"estimate": -1}, "estimate -1: must be a number of GB above 0"),
        ({"estimate": True}, "estimate True: must be a number"),
        ({"estimate": float("nan")}, "estimate nan: must be a number"),
        ({"estimate": 100_000}, r"a trial needs 100000\.00 GB, and cpu has"),
        ({"trainable": 3}, "trainable 3: must be a function of a configuration, or a subclass"),
        ({"trainable": Device}, "must be a function of a configuration, or a subclass"),
        ({"trainable": of_two}, "trainable of_two: must take one argument, the configuration"),
        ({"retry_growth": 1}, "retry_growth=1: must be more than 1"),
        ({"max_attempts": 0}, "max_attempts=0: must be at least 1"),
        ({"backoff": "soon"}, "backoff='soon': must be a number"),
        ({"on_oom": "accumulate"}, "on_oom='accumulate': a trainable of Tune"),
        ({"on_oom": "explode"}, "on_oom='explode': must be 'grow'"),
        ({"device": "tpu"}, "device='tpu': must be 'auto'"),
    ],
)
def test_bad_input_is_one_line(arguments: dict[str, Any], message: str) -> None:
    given = {"trainable": train_mnist, "estimate": 0.1, "device": "cpu", **arguments}
    with pytest.raises(InputError, match=message) as raised:
        tuner.memory_aware(given.pop("trainable"), **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (lambda config: config["nope"], r"estimate: failed on \{'a': 1\}: KeyError: 'nope'"),
        (lambda _: None, r"estimate None for \{'a': 1\}: must be a number of GB"),
    ],
)
def test_a_function_that_estimates_nothing_is_bad_input(
    gpu_16gb: Device, estimate: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        trial_resources(spec(gpu_16gb, estimate), {"a": 1}, None)


@pytest.mark.parametrize(
    ("share", "parameters", "message"),
    [(tune.PlacementGroupFactory([{"CPU": 1}]), {}, "with_resources"), (a_share(), {"data": 1}, "with_parameters")],
)
def test_tunes_own_wrappers_come_first(share: Any, parameters: dict[str, Any], message: str) -> None:
    trial = object.__new__(tuner.memory_aware(train_mnist, estimate=0.1, device="cpu"))
    trial._trial_info = SimpleNamespace(trial_resources=share)
    with pytest.raises(InputError, match=rf"train_mnist: tune\.{message}\(\) .* apply it before memory_aware\(\)"):
        trial.setup({}, **parameters)


@pytest.mark.long
@pytest.mark.ray
def test_rays_example_with_half_of_what_it_needs_completes_wrapped_and_fails_unwrapped(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    half = NEED_GB / 2
    options: dict[str, Any] = {"device": "cpu", "gpu_memory_buffer_gb": 0, "retry_growth": 2.5, "backoff": 0.1}
    wrapped = tuner.memory_aware(train_mnist, estimate=half, **options)
    (result,) = tune.Tuner(wrapped, param_space=EXAMPLE, run_config=run_config).fit()
    (unwrapped,) = tune.Tuner(train_within, param_space={**EXAMPLE, "gb": half}, run_config=run_config).fit()
    assert result.error is None
    assert (result.metrics["attempts"], result.metrics["epoch"]) == (2, 1)
    assert result.metrics["resumed_at"] == 1, "the second attempt goes on from the first's checkpoint"
    assert result.metrics["peak_memory_gb"] > 1.8 * half
    with result.checkpoint.as_directory() as folder:
        assert torch.load(f"{folder}/checkpoint.pt", weights_only=True)["epoch"] == 1
    assert isinstance(unwrapped.error, ray.exceptions.RayTaskError)
    assert "can't allocate memory" in str(unwrapped.error)


def train_linear(config: dict[str, Any]) -> None:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])  # imports torch._dynamo at its first step
    model(torch.ones(256, 64)).square().mean().backward()
    optimizer.step()
    tune.report({"loss": 0.5})


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize(("gb", "attempts"), [(0.5, 1), (0.4, 2)])
def test_what_torchs_optimizers_import_is_no_trials_failure(
    gb: float, attempts: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    wrapped = tuner.memory_aware(train_linear, estimate=gb, device="cpu", gpu_memory_buffer_gb=0, backoff=0.1)
    (result,) = tune.Tuner(wrapped, param_space={"lr": 0.1}, run_config=run_config).fit()
    assert result.error is None
    assert result.metrics["attempts"] == attempts
    assert 0.4 < result.metrics["peak_memory_gb"] < 0.5
