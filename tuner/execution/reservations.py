"""The devices of a cluster that a study has asked Ray for, and those of nodes that do not exist yet."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, product

from tuner.decisions.events import Contended, Held
from tuner.decisions.state import State
from tuner.execution.nodes import LOOK_SECONDS, NodeWatch, ObjectRef, PlacementGroup
from tuner.execution.pool import NODE_LABEL, WorkerPool, is_ready
from tuner.trial import Device

SOON_SECONDS = 3  # in which a free device is reserved
POLL_SECONDS = 0.1  # between two looks at what was asked for, until then
DEMAND_SECONDS = 5  # between two looks at what the autoscaler sees, at least
MOST_DEMANDED = 100  # trials that it sees at once


class Reservations:
    """Placement groups that wait, each for a device or a trial. Ray's autoscaler sees them; they end with the job."""

    def __init__(self, pools: Mapping[Device, WorkerPool], watch: NodeWatch) -> None:
        """Nothing is asked for. ``pools`` are those of all devices, also of later ones."""
        import ray

        self._ray, self._pools, self._watch = ray, pools, watch
        self._claimed: dict[Device, float] = {}  # since when devices are asked for; monotonic seconds
        self._look_at = math.inf  # when to look at them again
        self._leaving = set[Device]()  # that are given back once nothing runs there
        self._contended: dict[Device, int] = {}  # as said last
        self._gpus: dict[ObjectRef, Device] = {}  # by what will say which GPU of its node Ray has reserved for it
        self._demanded: list[tuple[dict[str, float], PlacementGroup]] = []
        self._ask_again = 0.0  # monotonic seconds

    @property
    def references(self) -> Mapping[ObjectRef, Device]:
        """What will say which GPU of its node Ray has reserved, for each device whose turn it was."""
        return self._gpus

    @property
    def seconds_until_look(self) -> float:
        """When to ``look`` again."""
        return max(0.0, self._look_at - time.monotonic())

    def claim(self, device: Device) -> None:
        """Asks for a device."""
        self._claimed[device], self._look_at = time.monotonic(), 0.0
        self._leaving.discard(device)

    def release(self, device: Device) -> None:
        """Gives a device back as soon as nothing runs there, with its workers."""
        self.forget(device)
        self._leaving.add(device)
        self.give_back()

    def give_back(self) -> None:
        """Gives back the devices on which nothing runs any more."""
        pools = {device: self._pools.get(device) for device in self._leaving}  # without slots there is none
        idle = [device for device, pool in pools.items() if not (pool and pool.is_busy)]
        if idle and self._watch.head_answers:
            self._leaving.difference_update(idle)
            for pool in (pools[device] for device in idle):
                if pool:
                    pool.close()

    def contended(self) -> Contended | None:
        """For which devices others wait, if that has changed: Ray shows what every job asks for.

        That matters only where several are held.
        """
        from ray.core.generated.gcs_pb2 import PlacementGroupTableData as Table

        held = [pool for device, pool in self._pools.items() if pool.is_asked and device not in self._claimed]
        found: dict[Device, int] = {}
        if len(held) > 1 and self._watch.head_answers:
            accessor = self._ray._private.state.state._connect_and_get_accessor()
            own = self._ray.get_runtime_context().get_job_id()
            groups = [Table.FromString(one) for one in accessor.get_placement_group_table()]
            holds = Counter(group.creator_job_id for group in groups if group.state == Table.CREATED)
            waiting = [one for one in groups if one.state == Table.PENDING and one.creator_job_id.hex() != own]
            for group, pool in product(waiting, held):
                if any(pool.could_serve(one.unit_resources, one.label_selector) for one in group.bundles):
                    number = holds[group.creator_job_id]
                    found[pool.device] = min(number, found.get(pool.device, number))
        before, self._contended = self._contended, found
        return Contended(found) if found != before else None

    def forget(self, device: Device) -> None:
        """Asks for a device no more, which may be lost."""
        self._claimed.pop(device, None)

    def look(self) -> Iterator[Held]:
        """Gives back what is left, and says which devices are held now."""
        self.give_back()
        now = time.monotonic()
        if now < self._look_at or not self._claimed or not self._watch.head_answers:
            return
        for device in self._claimed:
            self._pools[device].reserve()
        for device in [device for device in self._claimed if self._pools[device].is_reserved]:
            del self._claimed[device]
            if device.kind == "cuda" and sum(one.node_id == device.node_id for one in self._pools) > 1:
                task = self._ray.remote(gpu_ids).options(**self._pools[device].options(), max_retries=0)
                self._gpus[task.remote()] = device
            else:
                yield Held(device)
        soon = now - max(self._claimed.values(), default=now) < SOON_SECONDS
        self._look_at = now + (POLL_SECONDS if soon else LOOK_SECONDS) if self._claimed else math.inf

    def answered(self, answer: ObjectRef) -> Held | None:
        """Of a node's GPUs the one that Ray has reserved, as others may have the one that was asked for."""
        device = self._gpus.pop(answer)
        try:
            ids: set[str] = self._ray.get(answer)
            if not self._pools[device].is_reserved:  # it was given back meanwhile
                return None
        except self._ray.exceptions.RayError:  # the node has died, as will be noticed, or the task alone was lost
            self._claimed[device], self._look_at = time.monotonic(), time.monotonic() + LOOK_SECONDS
            return None
        there = [one for one in self._pools if one.node_id == device.node_id]
        chosen = next((one for one in there if {str(one.index), one.uuid} & ids), device)
        if chosen != device:
            self._pools[device].exchange(self._pools[chosen])
            self._claimed[device], self._look_at = self._claimed.pop(chosen, time.monotonic()), 0.0
        return Held(chosen)

    def close(self) -> None:
        """Asks for nothing more: a Ray that was there before the study outlives it, with its placement groups."""
        from ray.util import remove_placement_group

        while self._demanded:
            remove_placement_group(self._demanded.pop()[1])

    def demand(self, state: State, most: int | None = None) -> None:
        """Has a placement group wait for each trial that waits, but those for which a device is asked.

        It is removed once it has a place.
        """
        now, plan = time.monotonic(), state.plan
        idle = not (state.waiting or self._demanded)
        if idle or plan is None or now < self._ask_again or not self._watch.head_answers:
            return
        from ray.util import placement_group, remove_placement_group

        self._ask_again = now + DEMAND_SECONDS
        bundles: list[dict[str, float]] = []
        kind, cores = plan.devices[0].kind, max(device.cores for device in plan.devices)
        pending = sum(self._pools[device].slots for device in self._claimed)
        for request in islice(state.waiting.values(), pending, pending + MOST_DEMANDED):
            share = math.ceil(100 * min(1.0, request.need_bytes / plan.limits().device_bytes)) / 100
            # A type of nodes need not say its memory, so a share of RAM is asked for as a share of the cores.
            cpus = plan.threads if kind == "cuda" else max(plan.threads, share * cores)
            bundles += request.trial.ranks * [{"CPU": float(cpus), **({"GPU": share} if kind == "cuda" else {})}]
        if most is not None:
            bundles = bundles[: max(0, most - len(state.running))]
        kept: list[tuple[dict[str, float], PlacementGroup]] = []
        for bundle, group in self._demanded:
            if bundle in bundles and not is_ready(group):
                bundles.remove(bundle)
                kept.append((bundle, group))
            else:
                remove_placement_group(group)
        # On a node that joins: those that are there are asked for as a whole, and are others', too.
        new = {NODE_LABEL: f"!in({','.join(sorted(self._watch.alive))})"}
        self._demanded = kept + [(one, placement_group([one], bundle_label_selector=[new])) for one in bundles]


def gpu_ids() -> set[str]:
    """The indices or UUIDs of the GPUs that Ray has given to a task."""
    import ray

    return {str(one) for one in ray.get_runtime_context().get_accelerator_ids()["GPU"]}
