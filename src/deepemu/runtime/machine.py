"""The device and the threads that a user asked for."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from deepemu.runtime import devices


@dataclass(frozen=True)
class Machine:
    """Where an emulator computes: ``device`` and ``n_jobs`` as of `DGP`."""

    device: str = "auto"
    n_jobs: int | None = -1

    def running(
        self, worth_a_gpu: bool, n_programs: int, n_rows: int
    ) -> AbstractContextManager[None]:
        """The runtime for ``n_programs`` programs at once, with matrices of ``n_rows`` rows."""
        runtime = devices.choose(self.device, self.n_jobs, worth_a_gpu)
        return devices.running(runtime, devices.blas_threads(runtime, n_programs, n_rows))
