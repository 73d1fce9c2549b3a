"""Every error that ELDR raises on purpose, as one tree.

    EldrError
    ├── ConfigError           a setting, flag or file that the user gave is wrong
    ├── ProfileError          a profile is damaged, or does not fit the model or the pool
    ├── CalibrationError      a calibration set or prompt file is damaged, empty or of another model
    ├── PayloadError          expert counts in an engine's answer cannot be trusted
    ├── NoWorkerError         no worker of a role can take a request now
    ├── UpstreamError         a worker could not be reached, or broke off
    └── EngineError           a local engine did not start or died

Messages name the value that is wrong and the remedy. The command line prints them as one line and exits 1.
"""


class EldrError(Exception):
    """Base of all errors that ELDR raises on purpose."""


class ConfigError(EldrError):
    """A setting, flag or configuration file is wrong."""


class ProfileError(EldrError):
    """A profile is damaged, or does not fit the running model or pool."""


class CalibrationError(EldrError):
    """A calibration set or a prompt file is damaged, empty, or made from another model."""


class PayloadError(EldrError):
    """The expert counts in an engine's answer are malformed; the request is routed by load."""


class NoWorkerError(EldrError):
    """No worker of the role is available for a request.

    retry_after_s: when one may be, where that is known.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UpstreamError(EldrError):
    """A worker could not be reached, or its connection broke off."""


class EngineError(EldrError):
    """A local engine did not start, or died."""
