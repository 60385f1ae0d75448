"""The simulated studies find what they should: each of these faults in a decision fails some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulated.studies import run_study
from tests.simulated.whole import KINDS, Whole, run_whole
from tuner.decisions import claims, retry, state
from tuner.decisions.accounts import Account, Accounts
from tuner.decisions.events import Concluded, Ended, Event, Planned, Reported
from tuner.decisions.packer import Packer
from tuner.decisions.queue import Queue
from tuner.decisions.retry import Retrying
from tuner.estimation.feedback import StudyFeedback
from tuner.execution.device_arbiter import DeviceArbiter
from tuner.records import study_folder
from tuner.search import optuna_trials
from tuner.study import needs, population, prepare, resume
from tuner.study.population import Population
from tuner.study.sampled import Sampled
from tuner.training.program_checkpoints import ProgramCheckpoints, Progress
from tuner.trial import GB

Patch = pytest.MonkeyPatch


def wrapped(patch: Patch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Puts ``around(original, *arguments)`` in the place of a function."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **named: around(original, *given, **named))


def retry_factor(patch: Patch) -> None:
    def more(original: Any, *given: Any, **named: Any) -> Any:
        again = original(*given, **named)
        return again and replace(again, request=replace(again.request, need_bytes=again.request.need_bytes - 1))

    wrapped(patch, retry, "next_attempt", more)


def budget_check(patch: Patch) -> None:
    patch.setattr(Account, "room", property(lambda self: self.within_bounds + GB))


def lost_device_rule(patch: Patch) -> None:
    patch.setattr(Packer, "remove", lambda *_: None)


def pruners_direction(patch: Patch) -> None:
    wrapped(patch, optuna_trials, "new_study", lambda new, sampler, pruner, _: new(sampler, pruner, ["maximize"]))


def order_of_the_queue(patch: Patch) -> None:
    def smallest(original: Any, self: Queue, room: float, ram: int) -> Any:
        entries = [entry for entry, *_ in self._entries.values() if entry[4] <= room and entry[5] <= ram]
        found = min(entries, key=lambda entry: (entry[0], entry[4]), default=None)
        return found and (found[4], found[-1])

    wrapped(patch, Queue, "first", smallest)


def double_completion(patch: Patch) -> None:
    def concluded(before: state.State, event: Concluded) -> state.State:
        trial_id = event.ended.trial.trial_id
        waiting = before.waiting.insert(trial_id, before.requests[trial_id])
        return replace(before, undecided=before.undecided.discard(trial_id), waiting=waiting)

    patch.setitem(state._CHANGES, Concluded, concluded)


def a_forgotten_event(patch: Patch) -> None:
    patch.setattr(Packer, "release", lambda *_: None)


def a_wrong_clock(patch: Patch) -> None:
    wrapped(patch, Retrying, "decide", lambda original, self, now_state, now: original(self, now_state, now + 50))


def a_resumed_estimate(patch: Patch) -> None:
    def deaf(original: Any, self: StudyFeedback, now_state: state.State, event: Any) -> None:
        if now_state.plan or not isinstance(event, Reported):
            original(self, now_state, event)

    wrapped(patch, StudyFeedback, "hear", deaf)


def attempts_that_are_not_counted(patch: Patch) -> None:
    wrapped(patch, retry, "_next_request", lambda original, request, _: original(request, request.history))


def more_trials_than_slots(patch: Patch) -> None:
    patch.setattr(Account, "open_slots", property(lambda self: 0 if self.lost else 99))


def a_device_that_is_kept(patch: Patch) -> None:
    patch.setattr(claims, "IDLE_SECONDS", 1e9)
    patch.setattr(claims, "DONE_SECONDS", 1e9)


def a_device_that_is_not_asked_for(patch: Patch) -> None:
    wrapped(patch, Packer, "is_short_of", lambda original, *given: original(*given) and given[0]._plan.workers % 2)


def a_need_that_is_cut(patch: Patch) -> None:
    def cut(original: Any, self: DeviceArbiter, held: Any) -> Any:
        request, device = held
        alone = device in self._devices and self.has_alone(device) and self._room(device)
        return replace(request, need_bytes=min(request.need_bytes, self._room(device))) if alone else None

    wrapped(patch, DeviceArbiter, "remains", cut)


def ram_that_is_not_counted(patch: Patch) -> None:
    patch.setattr(Accounts, "free_ram", lambda *_: 2**62)


def a_retry_that_a_crash_forgets(patch: Patch) -> None:
    def again(original: Any, self: Retrying, now_state: state.State, ended: Any, *, was_last: bool) -> Any:
        decision = original(self, now_state, ended, was_last=was_last)
        request = now_state.requests[ended.trial.trial_id]
        return replace(decision, request=request) if hasattr(decision, "request") else decision

    wrapped(patch, Retrying, "after_earlier", again)


def a_rounded_estimate(patch: Patch) -> None:
    def rounded(original: Any, *given: Any) -> Any:
        ended = original(*given)
        return replace(ended, estimated_bytes=int(round(ended.estimated_bytes / GB, 4) * GB))

    wrapped(patch, resume, "_ended", rounded)


def without_ends(patch: Patch, status: str) -> None:
    """A resume does not hear of such ends of members that have paused."""

    def replay(original: Any, engine: Any, retrying: Any, happened: Sequence[Event], *others: Any) -> None:
        ends = [event for event in happened if isinstance(event, Ended)]
        members = {event.trial.trial_id for event in ends if event.result.status == "paused"}
        gone = [event for event in ends if event.result.status == status and event.trial.trial_id in members]
        original(engine, retrying, [event for event in happened if event not in gone], *others)

    wrapped(patch, prepare, "replay", replay)


def a_pause_that_overwrites_a_completion(patch: Patch) -> None:
    without_ends(patch, "completed")


def a_pause_that_is_forgotten(patch: Patch) -> None:
    patch.setattr(Population, "paced", lambda self, trial: replace(trial, until=0))


def a_checkpoint_that_is_removed_too_early(patch: Patch) -> None:
    wrapped(
        patch, Population, "kept", lambda original, *given: {name for name in original(*given) if "@1" not in name}
    )


def a_member_that_gives_up_what_it_has(patch: Patch) -> None:
    without_ends(patch, "interrupted")


def a_member_that_takes_over_a_worse_one(patch: Patch) -> None:
    wrapped(patch, population, "Member", lambda original, trial, loss, epochs: original(trial, -loss, epochs))


def a_member_that_is_decided_too_early(patch: Patch) -> None:
    def replay(original: Any, engine: Any, *given: Any) -> None:
        original(engine, *given)
        for paused in engine.state.paused:
            engine.take(given[-1](engine.state, paused, replace(paused.trial, attempt=paused.trial.attempt + 1)))

    wrapped(patch, prepare, "replay", replay)


def a_checkpoint_that_is_not_read(patch: Patch) -> None:
    patch.setattr(ProgramCheckpoints, "restore", lambda self: Progress())


def a_second_best(patch: Patch) -> None:
    def last(original: Any, rows: Any, objective: Any) -> Any:
        return original(rows, replace(objective, direction="maximize"))

    wrapped(patch, study_folder, "ranked", last)


def a_recall_before_the_telling(patch: Patch) -> None:
    def first(original: Any, *given: Any) -> list[Event]:
        return sorted(original(*given), key=lambda event: not isinstance(event, Planned))

    wrapped(patch, prepare, "events_of", first)


def a_constraint_that_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(needs, "unwanted", lambda *_: "")


def a_search_that_counts_wrongly(patch: Patch) -> None:
    patch.setattr(Sampled, "left", property(lambda self: 9))


def a_recalled_trial_with_other_values(patch: Patch) -> None:
    def other(original: Any, self: Any, trial_id: str, values: Any) -> None:
        original(self, trial_id, {**values, "n": 1})

    wrapped(patch, optuna_trials.OptunaTrials, "recall", other)


FAULTS: dict[Callable[[Patch], None], str] = {  # with what the rules say of each
    retry_factor: "a retry has the wrong memory",
    budget_check: "others' memory is promised|budget is exceeded",
    lost_device_rule: "a trial starts on a lost device",
    pruners_direction: "the best trial is pruned",
    order_of_the_queue: "a smaller one first",
    double_completion: "waits beside free memory|is completed twice|goes first",
    a_forgotten_event: "waits beside free memory|does not end",
    a_wrong_clock: "a retry does not wait for its time",
    a_resumed_estimate: "a crash changes what is known of a trial's memory",
    attempts_that_are_not_counted: "the wrong thing follows",
    more_trials_than_slots: "more trials run at once than may",
    a_device_that_is_kept: "a device is held, and unused",
    a_device_that_is_not_asked_for: "a device is not asked for",
    a_need_that_is_cut: "less than it is known to need|it runs out again",
    ram_that_is_not_counted: "a host's RAM is exceeded|others' RAM is promised",
    a_rounded_estimate: "a crash changes what is known of a trial's memory",
    a_retry_that_a_crash_forgets: "another attempt follows after a crash|had ended runs again|is not tried again",
}


# The same of whole studies, with the kinds of those that it can be in.
WHOLE: dict[Callable[[Patch], None], tuple[str, tuple[str, ...]]] = {
    a_pause_that_overwrites_a_completion: ("a completed trial is planned again", ("pbt",)),
    a_pause_that_is_forgotten: ("a member trains through its next pause", ("pbt",)),
    a_checkpoint_that_is_removed_too_early: ("a checkpoint is taken over that was removed", ("pbt",)),
    a_member_that_gives_up_what_it_has: ("have the same number|an interrupted member gives up what it has", ("pbt",)),
    a_member_that_takes_over_a_worse_one: ("a member takes over a worse one", ("pbt",)),
    a_member_that_is_decided_too_early: ("it is decided too early how a member goes on", ("pbt",)),
    a_checkpoint_that_is_not_read: (
        "a trial does not go on with what it has|begins with less than it takes over",
        KINDS,
    ),
    a_second_best: ("the kept weights are not the best trial's", KINDS),
    a_recall_before_the_telling: ("a resume changes what is suggested", ("tpe",)),
    a_constraint_that_is_not_looked_at: ("a trial runs that is known to break a constraint", KINDS),
    a_search_that_counts_wrongly: ("more trials run than were asked for", KINDS),
    a_recalled_trial_with_other_values: ("a configuration is suggested twice", ("bruteforce",)),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_decision_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        for seed in range(500):
            run_study(seed)


@pytest.mark.parametrize("fault", WHOLE, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_whole_study_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    text, kinds = WHOLE[fault]
    with pytest.raises(AssertionError, match=text):
        for seed in range(500):
            if Whole.of(seed).kind in kinds:
                run_whole(seed)
