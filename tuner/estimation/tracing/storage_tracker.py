"""Records the storages of a traced step, with their categories."""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from tuner.estimation.caching_allocator import DEFAULT, EMPTY_CACHE, RELEASE, USE, Event
from tuner.estimation.tracing.corrections.sparse import parts
from tuner.estimation.tracing.corrections.temporaries import RESULTS, Operator, Steps
from tuner.estimation.tracing.trace import Category, DeviceKind, Origin

NOT_COUNTED = -1  # instead of an id: memory that torch did not allocate on the device


class StorageTracker:
    """Records allocations and releases in order, with their categories. Ids are unique; addresses may be reused."""

    def __init__(self, device_kind: DeviceKind, *, with_origins: bool = False) -> None:
        self.events: list[Event] = []
        self.categories: dict[int, Category] = {}
        self.origins: dict[int, Origin] = {}
        self.running: list[Operator] = []  # the operators that run now, the innermost last
        self._with_origins = with_origins
        self.is_paused = False
        self.is_building = False  # a user's code makes what a step needs, on the host or on the GPU
        self.rest_on_host = False  # what was made before the step, and not put on the GPU, is on the host
        self.inputs_at: int | None = None  # the place among the events of what the first loss finds
        self.has_guess = False  # for a workspace that only cuDNN or cuSPARSE knows, or a size that values decide
        self.on_gpu = device_kind == "cuda"
        self.pools = DEFAULT  # where the allocator takes blocks now
        self.workspaces: dict[object, int] = {}  # ids of cuBLAS's, by whose they are
        # By the storage's address: (id, size in bytes, the reference whose callback records the release).
        self._live: dict[int, tuple[int, int, weakref.ref[torch.UntypedStorage]]] = {}

    @contextmanager
    def paused(self, when: bool = True) -> Iterator[None]:
        """Records nothing in this block, such as the host's work beside a GPU."""
        was_paused, self.is_paused = self.is_paused, self.is_paused or when
        try:
            yield
        finally:
            self.is_paused = was_paused

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Records in this block, even within ``paused``."""
        was_paused, self.is_paused = self.is_paused, False
        try:
            yield
        finally:
            self.is_paused = was_paused

    @contextmanager
    def building(self) -> Iterator[None]:
        """Records only what a user's code puts on a GPU. If it does so, the rest of what it makes is on the host."""
        self.is_building = self.on_gpu
        with self.paused(self.on_gpu):
            yield
        self.is_building = False

    def allocate(self, size_bytes: int, category: Category) -> int:
        """Records an allocation, and returns its id."""
        key = len(self.events)
        self.events.append((key, size_bytes))
        self.categories[key] = category
        if self._with_origins:
            self.origins[key] = origin(self.running)
        return key

    def use(self, pools: int) -> None:
        """From now on, memory is allocated there: ``DEFAULT``, ``SIDE`` or ``PRIVATE`` of the allocator."""
        self.pools = pools
        self.events.append((USE, pools))

    def empty_cache(self) -> None:
        """Records ``torch.cuda.empty_cache``."""
        self.events.append((EMPTY_CACHE, 0))

    def release_workspaces(self) -> None:
        """Releases the workspaces of cuBLAS, which are taken again when they are needed."""
        self.events += [(key, RELEASE) for key in self.workspaces.values()]
        self.workspaces.clear()

    def run_kernel(
        self, steps: Steps, take_results: Callable[[], None], take_workspace: Callable[[], None] = lambda: None
    ) -> None:
        """Records a kernel's temporaries, which end with it, its results among them, and its workspace."""
        if RESULTS not in steps:
            take_results()
        taken: dict[int, int] = {}  # place of a step -> id of its temporary
        for place, step in enumerate(steps, 1):
            if step is RESULTS:
                take_results()
            elif step > 0:
                taken[place] = self.allocate(step, "workspace")
            elif -step in taken:
                self.events.append((taken.pop(-step), RELEASE))
        take_workspace()
        self.events += [(key, RELEASE) for key in reversed(taken.values())]

    def made_all(self, tensors: Iterable[Tensor]) -> None:
        """Records an operator's results."""
        for tensor in tensors:
            for part in parts(tensor):
                self.made(part)

    def made(self, tensor: Tensor, size_bytes: int | None = None) -> None:
        """Records an operator's result: a new storage, one that has grown, or a known one (a view)."""
        if self.is_paused:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes() if size_bytes is None else size_bytes
        before = self._live.get(storage._cdata)
        if before is None:
            self._begin(storage, self.allocate(size, "activations"), size)
        elif size_bytes is None and before[0] != NOT_COUNTED and size > before[1]:
            category = self.categories[before[0]]
            self.events.append((before[0], RELEASE))
            self._live[storage._cdata] = (self.allocate(size, category), size, before[2])

    def met(self, tensor: Tensor) -> None:
        """Records an operator's argument: a tensor from before the trace counts from now on.

        On a GPU, it stands for the copy that was moved there. On the CPU, numpy's memory does not count.
        """
        if self.is_paused:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            if self.rest_on_host:
                return self.ignore(tensor)
            ours = self.on_gpu or storage.device.type == "meta" or storage.resizable()
            size = storage.nbytes()
            self._begin(storage, self.allocate(size, "data") if ours else NOT_COUNTED, size)
            if ours and self.inputs_at is not None:  # it was there before, and so is elsewhere in the cache
                self.events.insert(self.inputs_at, self.events.pop())
                self.inputs_at += 1

    def mark(self, values: Iterable[object], category: Category) -> None:
        """Sets the category of the tensors among these values."""
        for value in values:
            for part in parts(value) if isinstance(value, Tensor) else ():
                self.met(part)
                key = self._live[part.untyped_storage()._cdata][0]
                if key != NOT_COUNTED:
                    self.categories[key] = category

    def mark_live(self, category: Category) -> None:
        """Sets the category of everything that is allocated now."""
        self.categories.update((key, category) for key, _, _ in self._live.values() if key != NOT_COUNTED)

    def ignore(self, *tensors: Tensor) -> None:
        """Never counts these tensors: they are counted elsewhere, or are not on the device."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if (key := self._live.get(storage._cdata, (NOT_COUNTED,))[0]) != NOT_COUNTED:
                self.events.append((key, RELEASE))
            self._begin(storage, NOT_COUNTED, storage.nbytes())

    def is_ignored(self, tensor: Tensor) -> bool:
        """Whether it is never counted; on a GPU, whether it is on the host."""
        live = self._live.get(parts(tensor)[-1].untyped_storage()._cdata)
        return live[0] == NOT_COUNTED if live else self.rest_on_host

    def is_counted(self, tensor: Tensor) -> bool:
        """Whether it was recorded, and is not on the host."""
        found = (self._live.get(part.untyped_storage()._cdata) for part in parts(tensor))
        return any(live is not None and live[0] != NOT_COUNTED for live in found)

    def put(self, tensor: Tensor) -> None:
        """Counts a tensor that is put on the GPU, even by the host's work."""
        was_on_host, self.rest_on_host = self.rest_on_host, False
        with self.resumed():
            for part in parts(tensor):
                if not self.is_counted(part):
                    self._live.pop(part.untyped_storage()._cdata, None)
                self.met(part)
        self.rest_on_host = was_on_host

    def _begin(self, storage: torch.UntypedStorage, key: int, size: int) -> None:
        address, live, events = storage._cdata, self._live, self.events

        def end(_: object) -> None:
            last = live.pop(address)[0]
            if last != NOT_COUNTED:
                events.append((last, RELEASE))

        live[address] = (key, size, weakref.ref(storage, end))

    def close(self) -> None:
        """Stops recording releases."""
        self._live.clear()


def with_own_storage(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is a part of a larger one: what of it is moved to a GPU."""
    if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return tensor
    return tensor.clone()


MOST = 12  # of the innermost calls
OUTERMOST = ("trace_workload", "trace_step")  # what called these is no part of the step
_TORCH = Path(torch.__file__).parent
# The layers' own methods are shown, such as ``Linear.forward``; what calls them is not.
_SHOWN, _HIDDEN = f"{_TORCH / 'nn' / 'modules'}/", (f"{_TORCH}/", f"{Path(__file__).parent}/", "<")
_CALLERS = str(_TORCH / "nn" / "modules" / "module.py")


def origin(running: Sequence[Operator]) -> Origin:
    """The innermost running operator, if there is one, and the calls that led to it, without those within torch.

    Local variables are not read, as that would keep tensors alive.
    """
    frames: list[tuple[str, int, str]] = []
    if running:
        backward = " (backward)" if torch._C._current_graph_task_id() >= 0 else ""
        frames.append(("operator", 0, f"{running[-1]}{backward}"))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in OUTERMOST and len(frames) < MOST:
        file = frame.f_code.co_filename
        if (file.startswith(_SHOWN) and file != _CALLERS) or not file.startswith(_HIDDEN):
            frames.append((file, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return tuple(frames)
