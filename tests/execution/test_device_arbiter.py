"""What a study may promise beside others: decided from readings that are made up, without Ray."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.decisions.plan import make_plan
from tuner.errors import option
from tuner.execution.device_arbiter import GIVEN_UP_SECONDS, DeviceArbiter
from tuner.machine.holders import Holder, Memory
from tuner.machine.leases import WAITING_SECONDS
from tuner.trial import GB, RANKS, Device, History, MemoryEstimate, Placement, Request, Trial


class Machine:
    """A 16 GB card of which programs have taken some, and the study on it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.free_gb, self.theirs_gb = 16.0, 0.0
        self.own_gb: float | None = 0.0
        self.now = 1000.0
        self.shares: list[DeviceArbiter] = []
        self.running: dict[DeviceArbiter, list[Placement]] = {}

    def study(self, name: str = "own", **options: bool) -> DeviceArbiter:
        plan = make_plan([self.device], [4 * GB] * 8, packing="per-trial", buffer_bytes=0, threads=1)
        share = DeviceArbiter(
            name,
            plan,
            read=self.read,
            read_holders=lambda *_: [Holder(77, "hog", "ann", 10 * GB)],
            reading_lasts=lambda _: -1.0,
            clock=lambda: self.now,
            **options,
        )
        self.shares.append(share)
        return self.shares[-1]

    def read(self, device: Device, groups: Sequence[Collection[int]]) -> Memory:
        return Memory(16 * GB, int(self.free_gb * GB), self.held(len(groups)))

    def held(self, groups: int) -> tuple[int, ...] | None:
        """All that studies hold is held by the one that asks, or it cannot be told."""
        return None if self.own_gb is None else (int(self.own_gb * GB), *[int(self.theirs_gb * GB)] * (groups - 1))


@pytest.fixture
def machine(gpu_16gb: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    made = Machine(gpu_16gb)
    yield made
    for share in made.shares:
        share.close()


def running(device: Device, *sizes: float) -> list[Placement]:
    return [
        Placement(
            Trial(f"t{number}", "toy", f"t{number}", {}, 0), MemoryEstimate("given"), device, 0.1, int(gb * GB), 1
        )
        for number, gb in enumerate(sizes)
    ]


def held(device: Device, gb: float) -> tuple[Request, Device]:
    return Request(Trial("t9", "toy", "large", {}, 0), MemoryEstimate("given"), int(gb * GB)), device


def room(share: DeviceArbiter, machine: Machine) -> float:
    with share.placing(machine.running.get(share, ())) as bounds:
        return bounds.rooms[machine.device] / GB if bounds.rooms else float("inf")


def promise(share: DeviceArbiter, machine: Machine, *sizes: float) -> None:
    machine.running[share] = running(machine.device, *sizes)
    with share.placing(machine.running[share]):
        pass


def test_a_study_that_is_alone_has_no_bound(machine: Machine) -> None:
    assert room(machine.study(), machine) == float("inf")


def test_what_a_program_takes_after_the_plan_is_not_promised(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    assert room(share, machine) == pytest.approx(6.0, abs=0.4)


def test_what_the_studys_own_trials_have_taken_counts_once(machine: Machine) -> None:
    share = machine.study()
    promise(share, machine, 4, 4)
    machine.free_gb, machine.own_gb = 9.0, 7.0  # they have not taken all of their shares yet
    assert room(share, machine) == pytest.approx(8.0, abs=0.4)


def test_what_another_study_has_promised_is_not_promised_again(machine: Machine) -> None:
    ours, other = machine.study(), machine.study("other")
    promise(other, machine, 4, 4, 4)
    assert room(ours, machine) == pytest.approx(4.0, abs=0.1)
    promise(other, machine, 4)
    assert room(ours, machine) == pytest.approx(12.0, abs=0.1)


def test_a_study_without_a_running_trial_goes_first(machine: Machine) -> None:
    ours, other = machine.study(), machine.study("other")
    promise(ours, machine, 4, 4)
    with other.placing(machine.running.get(other, ())):
        other.wait(held(machine.device, 12), placed=False)
    assert room(ours, machine) == 0
    promise(other, machine, 8)
    assert room(ours, machine) == 0  # all is promised
    promise(ours, machine, 4)
    assert room(ours, machine) == pytest.approx(4.0, abs=0.1)


def test_cores_that_another_study_uses_are_left_to_it_but_one_trial_may_always_run(
    machine: Machine, gpu_16gb: Device
) -> None:
    machine.device = replace(gpu_16gb, kind="cpu", uuid="", cores=2)
    ours, other = machine.study(), machine.study("other")
    promise(other, machine, 1, 1)
    with ours.placing(machine.running.get(ours, ())) as bounds:
        assert bounds.most == 1
    promise(ours, machine, 1)
    with ours.placing(machine.running.get(ours, ())) as bounds:
        assert bounds.most == 0


def test_who_holds_the_memory_is_said_once_after_a_moment(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    texts = []
    for _ in range(4):
        with share.placing(machine.running.get(share, ())):
            texts.append(share.wait(held(machine.device, 8), placed=False).text)
        machine.now += 4
    assert [bool(text) for text in texts] == [False, False, True, False]
    assert texts[2] == (
        "large waits: it needs 8.00 GB of cuda:0, and 6.00 of 16.00 GB are free; "
        "held are 10.00 GB by hog (process 77 of ann)"
    )


def test_a_trial_is_given_up_when_strangers_hold_its_memory_for_half_an_hour(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    assert not share.wait(held(machine.device, 8), placed=False).given_up
    machine.now += GIVEN_UP_SECONDS
    assert "no memory in 30 minutes: it needs 8.00 GB" in share.wait(held(machine.device, 8), placed=False).given_up


def test_a_trial_is_not_given_up_that_fits_as_soon_as_the_studys_own_trials_end(machine: Machine) -> None:
    share = machine.study()
    promise(share, machine, 8)
    machine.free_gb, machine.own_gb = 4.0, 8.0
    for _ in range(3):
        assert not share.wait(held(machine.device, 8), placed=False).given_up
        machine.now += GIVEN_UP_SECONDS


def test_a_study_that_waits_and_is_stopped_keeps_no_other_from_its_trials(machine: Machine) -> None:
    ours, other = machine.study(), machine.study("other")
    promise(ours, machine, 8)
    with other.placing(machine.running.get(other, ())):
        other.wait(held(machine.device, 12), placed=False)
    assert room(ours, machine) == 0
    machine.now += WAITING_SECONDS
    assert room(ours, machine) == pytest.approx(8.0, abs=0.1)


def test_a_trial_waits_for_another_study_as_long_as_that_takes(machine: Machine) -> None:
    ours, other = machine.study(), machine.study("results/other")
    promise(other, machine, 12)
    for _ in range(3):
        with ours.placing(machine.running.get(ours, ())):
            wait = ours.wait(held(machine.device, 8), placed=False)
        assert not wait.given_up
        machine.now += GIVEN_UP_SECONDS
    assert room(ours, machine) < 8


def test_where_processes_cannot_be_told_apart_what_is_promised_counts_as_taken_by_us(machine: Machine) -> None:
    share = machine.study()
    machine.own_gb = None
    promise(share, machine, 4, 4)
    machine.free_gb = 8.0
    assert room(share, machine) == pytest.approx(8.0, abs=0.4)
    machine.free_gb = 4.0
    assert room(share, machine) == pytest.approx(4.0, abs=0.4)
    machine.running.clear()
    assert room(share, machine) < 5  # idle workers of ours may hold it
    assert share.remains(held(machine.device, 12)) == held(machine.device, 12)[0]


def test_a_trial_that_asks_for_a_whole_device_gets_what_is_left_of_it(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 12.0
    room(share, machine)
    request, device = held(machine.device, 16)
    rest = share.remains((request, device))
    assert rest is not None and rest.need_bytes / GB == pytest.approx(12.0, abs=0.4)
    assert share.remains(held(machine.device, 14)) is None, "it needs that"
    large = replace(request, estimate=MemoryEstimate("given", context_bytes=14 * GB))
    assert share.remains((large, device)) is None, "it cannot run with less"
    promise(share, machine, 1)
    assert share.remains((request, device)) is None, "its own trials end sooner or later"


def test_a_learned_footprint_is_a_guess_for_which_what_is_left_is_enough(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    room(share, machine)
    request, device = held(machine.device, 8)
    in_a_context = MemoryEstimate("learned", context_bytes=7 * GB, activation_bytes=GB)
    assert share.remains((replace(request, estimate=in_a_context), device)) is None, "a worker alone takes more"
    rest = share.remains((replace(request, estimate=MemoryEstimate("learned", activation_bytes=8 * GB)), device))
    assert rest is not None and rest.need_bytes / GB == pytest.approx(6.0, abs=0.4)


LEARNED = MemoryEstimate("learned", activation_bytes=4 * GB, margin=0.25)  # 5 GB


@pytest.mark.parametrize(("free", "given"), [(6.0, 6.0), (4.0, None)])
def test_a_first_trial_gives_up_room_but_nothing_of_what_it_is_known_to_need(
    machine: Machine, free: float, given: float | None
) -> None:
    share = machine.study()
    machine.free_gb = free
    room(share, machine)
    request, device = held(machine.device, 8)
    rest = share.remains((replace(request, estimate=LEARNED), device))
    assert (rest and rest.need_bytes / GB) == (given and pytest.approx(given, abs=0.4))


def test_a_retry_does_not_start_with_what_it_ran_out_with(machine: Machine) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    room(share, machine)
    request, device = held(machine.device, 16)
    again = replace(request, history=History(out_of_memory=1), ran_out_bytes=4 * GB)
    rest = share.remains((again, device))
    assert rest is not None and rest.need_bytes / GB == pytest.approx(6.0, abs=0.4)
    assert share.remains((replace(again, ran_out_bytes=8 * GB), device)) is None, "it would run out again"
    learned = replace(again, need_bytes=8 * GB, estimate=replace(LEARNED, activation_bytes=GB))
    assert share.remains((learned, device)) is None, "its estimate was wrong"


@pytest.mark.parametrize(
    ("estimate", "given"), [(MemoryEstimate("learned", activation_bytes=8 * GB), 6.0), (LEARNED, 6.0)]
)
def test_ranks_wait_for_no_more_than_they_are_known_to_need(
    machine: Machine, estimate: MemoryEstimate, given: float
) -> None:
    share = machine.study()
    machine.free_gb = 6.0
    room(share, machine)
    trial = Trial("t9", "toy", "large", {RANKS: 2}, 0)
    rest = share.remains((Request(trial, estimate, 8 * GB), machine.device))
    assert rest is not None and rest.need_bytes / GB == pytest.approx(given, abs=0.4)
    assert share.remains((rest, machine.device)) is None, "it asks for no more than that"


def test_a_trial_waits_for_no_ram_of_which_its_need_is_a_guess(machine: Machine, gpu_16gb: Device) -> None:
    machine.device = replace(gpu_16gb, uuid="GPU-1", ram_bytes=16 * GB, free_ram_bytes=16 * GB)
    share = machine.study()
    machine.free_gb = 8.0
    room(share, machine)
    request = replace(held(machine.device, 2)[0], host_bytes=12 * GB)
    rest = share.remains((request, machine.device))
    assert rest is not None and rest.need_bytes == 2 * GB
    assert rest.host_bytes / GB == pytest.approx(8 - 0.8, abs=0.4)
    measured = replace(request, estimate=MemoryEstimate("given", host_measured=True))
    assert share.remains((measured, machine.device)) is None
    promise(share, machine, 1)
    assert share.remains((request, machine.device)) is None, "its own trials end sooner or later"


def test_of_two_studies_that_wait_the_one_that_has_waited_longer_goes_first(machine: Machine) -> None:
    ours, other, third = machine.study(), machine.study("other"), machine.study("third")
    promise(third, machine, 12)
    for study in (other, ours):
        with study.placing(()):
            study.wait(held(machine.device, 8), placed=False)
        machine.now += 1
    promise(third, machine)
    assert room(ours, machine) == 0
    assert room(other, machine) == pytest.approx(16.0, abs=0.1)


def test_a_study_that_waits_for_one_device_leaves_the_others_alone(machine: Machine, gpu_16gb: Device) -> None:
    first, second = gpu_16gb, replace(gpu_16gb, index=1, uuid="GPU-1")
    full, waiting = machine.study(), machine.study("waiting")
    promise(full, machine, 12)
    machine.device = second
    elsewhere = machine.study("elsewhere")
    promise(elsewhere, machine, 4)
    with waiting.placing(()):
        waiting.wait(held(first, 8), placed=False)
    assert room(elsewhere, machine) == pytest.approx(12.0, abs=0.1)
    machine.device = first
    assert room(full, machine) == 0


def test_what_another_study_holds_beyond_its_promises_is_no_reason_to_give_up(machine: Machine) -> None:
    ours, other = machine.study(), machine.study("other")
    promise(other, machine, 4)
    machine.free_gb, machine.theirs_gb = 10.0, 6.0
    for _ in range(3):
        with ours.placing(()):
            wait = ours.wait(held(machine.device, 15), placed=False)
        assert not wait.given_up
        machine.now += GIVEN_UP_SECONDS


def test_the_ram_beside_a_card_is_promised_once_and_what_strangers_leave_of_it_is_a_bound(
    machine: Machine, gpu_16gb: Device
) -> None:
    machine.device = replace(gpu_16gb, uuid="GPU-1", ram_bytes=16 * GB, free_ram_bytes=16 * GB)
    ours, other = machine.study(), machine.study("other")
    promise(other, machine)
    with ours.placing(machine.running.get(ours, ())) as bounds:
        assert bounds.ram_bytes is not None, "the other one has a lease"
    with other.placing(machine.running.get(other, ())):
        other.reserve([replace(placement, host_bytes=6 * GB) for placement in running(machine.device, 1, 1)])
    with ours.placing(machine.running.get(ours, ())) as bounds:
        assert bounds.ram_bytes / GB == pytest.approx(16 - 12 - 0.8, abs=0.4), "a twentieth is left free"
        assert bounds.rooms[machine.device] / GB == pytest.approx(14, abs=0.4)
    request = replace(held(machine.device, 1)[0], host_bytes=8 * GB)
    with ours.placing(machine.running.get(ours, ())):
        ours.wait((request, machine.device), placed=False)
        machine.now += 6
        assert ours.wait((request, machine.device), placed=False).text == (
            "large waits: it needs 8.00 GB of RAM, which other studies use: 12.00 GB by other"
        )
    machine.free_gb = 6.0
    assert "held are 10.00 GB by hog" in ours.short(machine.device, "RAM")


def test_a_learned_footprint_in_this_process_does_not_wait_for_other_studies(machine: Machine) -> None:
    waits, takes, other = machine.study(), machine.study("notebook", takes_rest=True), machine.study("other")
    promise(other, machine, 10)
    request, device = held(machine.device, 8)
    learned = replace(request, estimate=MemoryEstimate("learned", activation_bytes=8 * GB))
    for share in (waits, takes):
        promise(share, machine)
    assert waits.remains((learned, device)) is None
    rest = takes.remains((learned, device))
    assert rest and rest.need_bytes / GB == pytest.approx(6, abs=0.4)
    assert takes.remains((request, device)) is None, "it has an estimate"


def test_a_share_is_not_called_a_need_and_studies_that_hold_nothing_are_not_listed(machine: Machine) -> None:
    ours, idle, other = machine.study(), machine.study("idle"), machine.study("other")
    promise(idle, machine)
    promise(other, machine, 10)
    request, device = held(machine.device, 8)
    learned = replace(request, estimate=MemoryEstimate("learned", activation_bytes=8 * GB))
    with ours.placing(machine.running.get(ours, ())):
        ours.wait((learned, device), placed=False)
        machine.now += 6
        text = ours.wait((learned, device), placed=False).text
    theirs = "its share is 8.00 GB of cuda:0, which other studies use: 10.00 GB by other"
    assert text == f"large waits: {theirs}; {option('memory_gb')} gives a smaller share"
